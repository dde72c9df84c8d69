"""WINO against traces recorded from the published function: commits, revocations and what its shadows proposed."""

from typing import Any

import pytest
import torch

from goldens import DOUBLE, Parts, assert_reproduced, recorded, settings, steps_of
from unmask.core.schedules import Sequential

FILE = "llada/wino"


def wino(p: dict[str, Any], options: str = "") -> Parts:
    decoder = f"wino(draft={p['threshold']}, verify={p['threshold_back']}{options})"
    return Parts(decoder, Sequential(p["block_length"]), p["gen_length"], sampling=DOUBLE)


@pytest.mark.parametrize(("name", "params"), settings([FILE]))
def test_published_trace_is_reproduced(name: str, params: dict[str, Any]) -> None:
    assert_reproduced(name, params, wino(params))


@pytest.mark.parametrize(("name", "params"), settings([FILE]))
def test_published_shadows_say_the_same_at_every_step(name: str, params: dict[str, Any]) -> None:
    """With a shadow for every slot at every step, as published: also what the shadows propose before a commit."""
    file = recorded(name)
    cases = [case for case in file["cases"] if case["params"] == params]
    prompts = [file["prompts"][case["prompt"]] for case in cases]
    said: list[list[torch.Tensor]] = [[] for _ in cases]  # per row and step: the shadow's best token, -1 where none
    last: dict[int, Any] = {}
    for step in steps_of("llada", wino(params, ", shadows='all'"), prompts):
        echoed = step.prediction.echo(step.prediction.tokens, -1)
        for place, row in enumerate(step.row_ids.tolist()):
            said[row].append(echoed[place])
            last[row] = (step.after.tokens[place], step.after.committed_at[place])
    for row, case in enumerate(cases):
        tokens, accepted = last[row]
        here = slice(len(prompts[row]), len(prompts[row]) + params["gen_length"])
        proposed = torch.stack(said[row])[:, here] == tokens[here]
        first = torch.where(proposed.any(0), proposed.int().argmax(0), -1)
        assert tokens[here].tolist() == case["output"]
        assert accepted[here].tolist() == case["trajectory_accepted"]
        assert first.tolist() == case["trajectory_proposed"]
