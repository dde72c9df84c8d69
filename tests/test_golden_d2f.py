"""D2F's pipelined blocks against traces recorded from the published decoders, LLaDA's and Dream's.

Compared are every forward pass, and for each of them which blocks exist, which are obliged to commit, which come out of
the cache and which go into it.
"""

from typing import Any

import pytest
import torch

from goldens import Case, Parts, assert_reproduced, recorded, settings, steps_of
from unmask.core.denoise import Step
from unmask.core.schedules import Pipelined

FILES = ("llada/d2f", "dream/d2f")
END = {"llada": 52, "dream": 51}  # the one token that stops their appending
RANKS = {"default": "confidence", "neg_entropy": "entropy", "margin_confidence": "margin"}


def d2f(name: str, p: dict[str, Any], cache: str) -> Parts:
    decoder = f"threshold(threshold={p['skip_threshold']}, strict=True, rank='{RANKS[p['sampling_strategy']]}')"
    size = p["block_size"]
    return Parts(
        decoder,
        Pipelined(size, add=p["block_add_threshold"], force=p["decoded_token_threshold"]),
        p["max_new_tokens"] - p["max_new_tokens"] % size,
        cache,
        blocks=size,
        end_ids=(END[name.split("/")[0]],),
    )


def with_missing_blocks(name: str, case: Case) -> Case:
    """Blocks that were never appended are not part of a recorded output; here they stay masked."""
    missing = d2f(name, case["params"], "none").length - len(case["output"])
    masks = [recorded(name)["mask_id"]] * missing
    return {**case, "output": case["output"] + masks, "masks_left": case["masks_left"] + missing}


@pytest.mark.parametrize("cache", ["finished-blocks", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "params"), settings(FILES))
def test_published_trace_is_reproduced(name: str, params: dict[str, Any], cache: str) -> None:
    """The exact cache changes no token; in the recorded code it cannot be switched off."""
    parts = d2f(name, params, cache)
    assert_reproduced(name, params, parts, prepare=lambda case: with_missing_blocks(name, case))


@pytest.mark.parametrize(("name", "params"), settings(FILES))
def test_published_blocks_are_the_same_at_every_step(name: str, params: dict[str, Any]) -> None:
    """Blocks there, obliged, cached and about to be cached; and the same rows run through the model.

    Dream's released code keeps the logits of the last cached row; here that row is run once more when it has to speak.
    """
    file, size = recorded(name), params["block_size"]
    cases = [case for case in file["cases"] if case["params"] == params]
    prompts = [file["prompts"][case["prompt"]] for case in cases]
    seen: list[list[Any]] = [[] for _ in cases]
    repeated = 0
    for step in steps_of(name.split("/")[0], d2f(name, params, "finished-blocks"), prompts):
        for place, row in enumerate(step.row_ids.tolist()):
            info, surplus = blocks_of(step, place, len(prompts[row]), size)
            seen[row].append(info)
            repeated += surplus
    for row, case in enumerate(cases):
        wanted = [without_full_blocks(*pair) for pair in zip(case["forward_info"], left(case), strict=True)]
        assert seen[row] == wanted, case["id"]
    assert (repeated > 0) == (name == "dream/d2f")


def left(case: Case) -> list[list[int]]:
    """Masked slots of every block, before each forward of a recorded case."""
    size = case["params"]["block_size"]
    masks = [size] * (case["params"]["max_new_tokens"] // size)
    before = []
    for changes in case["traj"]:
        before.append(list(masks))
        for offset, _ in changes:
            masks[offset // size] -= 1
    return before


def without_full_blocks(info: list[Any], masks: list[int]) -> list[Any]:
    """A recorded forward; whether a block without masks is obliged to commit has no meaning, and no place here."""
    *counts, blocks = info
    return [*counts, [[state, bool(duty) and masks[block] > 0] for block, (state, duty) in enumerate(blocks)]]


def blocks_of(step: Step, place: int, prompt: int, size: int) -> tuple[list[Any], int]:
    """What the recorder noted, read off one of our steps; and how many rows ran although they are cached."""
    window, work = step.window, step.prediction.work
    fed = torch.zeros_like(window.open[place])
    fed[work.rows[place, : work.num_rows[place]]] = True
    there = int(window.visible[place].sum())
    bounds = [(0, prompt)] + [(at, at + size) for at in range(prompt, there, size)]
    states = []
    for first, last in bounds:
        inside = slice(first, last)
        active = bool(window.open[place, inside].any())
        cached = not bool(fed[inside].all())
        states.append("acti" if active else "in_c" if cached else "to_c")
    entering = sum(last - first for (first, last), state in zip(bounds, states, strict=True) if state == "to_c")
    kept = sum(last - first for (first, last), state in zip(bounds, states, strict=True) if state == "in_c")
    surplus = int(fed[:kept].sum())
    assert surplus <= 1, "at most the row that speaks for the first open slot"
    assert int(step.rows_computed[place]) == there - kept + surplus
    duties = [bool(window.must[place, first:last].any()) for first, last in bounds[1:]]
    blocks = [list(pair) for pair in zip(states[1:], duties, strict=True)]
    return [there - prompt, kept - prompt, entering, there - kept, kept, blocks], surplus
