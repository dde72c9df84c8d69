"""LoPA on D2F, token for token, forward for forward, candidate canvas for candidate canvas."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor

from goldens import Case, Parts, assert_reproduced, decode, recorded, settings, steps_of
from unmask.core.schedules import Pipelined
from unmask.core.state import DenoisingState
from unmask.decoders import DECODERS
from unmask.decoders.lopa import SETTLED, Ahead, Lopa

END = 51  # the one token that stops the appending of blocks there
SCORES = {"default": "confidence", "neg_entropy": "entropy", "margin": "margin"}
FORKS: list[tuple[DenoisingState, Tensor]] = []  # candidate canvases of every step, and whose they are


@dataclass(frozen=True, slots=True)
class Watched(Lopa):
    """LoPA that keeps its candidates for the test; with `plain_wins` it then takes the canvas as it is."""

    plain_wins: bool = False

    def fork(self, state: DenoisingState, memory: Ahead) -> tuple[DenoisingState, Tensor]:
        FORKS.append(Lopa.fork(self, state, memory))
        return FORKS[-1]

    def merit(self, state: Any, window: Any, prediction: Any, proposed: Tensor) -> Tensor:
        return (
            (proposed == SETTLED).float() if self.plain_wins else Lopa.merit(self, state, window, prediction, proposed)
        )


def lopa(p: dict[str, Any], cache: str = "none", plain_wins: bool | None = None) -> Parts:
    score = SCORES[p["sampling_strategy"]]
    inner = DECODERS.make(f"threshold(threshold={p['skip_threshold']}, strict=True, rank='{score}')")
    decoder = Watched(
        inner,
        width=p["branching_factor"],  # the released code means to try one fewer
        share=p["branch_topp"],
        alpha=p["selection_conf_alpha"],
        score=score,  # type: ignore[arg-type]
        plain_wins=p["verification_force_base_winner"],
    )
    return Parts(
        decoder,
        Pipelined(p["block_size"], add=p["block_add_threshold"], force=p["decoded_token_threshold"]),
        p["max_new_tokens"],
        cache,
        blocks=p["block_size"],
        end_ids=(END,),
    )


def with_missing_blocks(case: Case) -> Case:
    """Blocks that were never appended are not part of a recorded output; here they stay masked."""
    missing = case["params"]["max_new_tokens"] - len(case["output"])
    masks = [recorded("dream/lopa")["mask_id"]] * missing
    return {**case, "output": case["output"] + masks, "masks_left": case["masks_left"] + missing}


def without_masks(canvas: dict[str, Any]) -> dict[str, Any]:
    """A block that a candidate has and the plain canvas has not is recorded as a difference, mask by mask."""
    mask_id = recorded("dream/lopa")["mask_id"]
    return canvas | {"diff": [pair for pair in canvas["diff"] if pair[1] != mask_id]}


@pytest.mark.parametrize("cache", ["finished-blocks", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "params"), settings(["dream/lopa"]))
def test_published_trace_is_reproduced(name: str, params: dict[str, Any], cache: str) -> None:
    assert_reproduced(name, params, lopa(params, cache), prepare=with_missing_blocks)


@pytest.mark.parametrize(("name", "params"), settings(["dream/lopa"]))
def test_published_candidates_are_the_same_at_every_step(name: str, params: dict[str, Any]) -> None:
    """Which canvases compete, in which order, and how many blocks each of them has."""
    cases = [case for case in recorded(name)["cases"] if case["params"] == params]
    prompts = [recorded(name)["prompts"][case["prompt"]] for case in cases]
    parts = lopa(params)
    rounds: list[list[list[dict[str, Any]]]] = [[] for _ in cases]
    FORKS.clear()
    for number, step in enumerate(steps_of("dream", parts, prompts)):
        shown, owner = FORKS[number]
        visible = parts.schedule.window(shown, None).visible
        for place, row in enumerate(step.row_ids.tolist()):
            begin = len(prompts[row])
            plain, *variants = (owner == place).nonzero()[:, 0].tolist()
            canvases = []
            for candidate in [*variants, plain]:
                slots = (shown.tokens[candidate] != shown.tokens[plain]).nonzero()[:, 0].tolist()
                length = int(visible[candidate].sum()) - begin
                diff = [[slot - begin, int(shown.tokens[candidate, slot])] for slot in slots]
                canvases.append({"base": int(candidate == plain), "len": length, "diff": diff})
            rounds[row].append(canvases)
    for row, case in enumerate(cases):
        assert rounds[row] == [[without_masks(canvas) for canvas in one] for one in case["rounds"]], case["id"]
        assert sum(len(canvases) for canvases in rounds[row]) == case["forward_calls"]
        assert case["steps_completed"] == len(rounds[row]) + 1, "the round that finds nothing to do runs no model"


def test_where_the_plain_canvas_always_wins_no_candidate_is_needed() -> None:
    """`verification_force_base_winner` there: the forwards of all candidates for what `width=0` gives with one."""
    case = next(case for case in recorded("dream/lopa")["cases"] if case["params"]["verification_force_base_winner"])
    parts = lopa(case["params"])
    assert isinstance(parts.decoder, Lopa)
    alone = replace(parts, decoder=Lopa(parts.decoder.inner, width=0))
    decoded = decode("dream", alone, [recorded("dream/lopa")["prompts"][case["prompt"]]])[0]
    assert decoded.equals(with_missing_blocks(case))
    assert case["forward_calls"] > 2 * len(decoded.steps)
