"""Prophet token for token, forward for forward: the standard sampler of LLaDA with Prophet's early commit around it."""

from typing import Any

import pytest

from goldens import Case, Parts, assert_reproduced, published_tie_order, recorded, settings, steps_of
from unmask.core.schedules import Sequential
from unmask.decoders import DECODERS, quota
from unmask.decoders.prophet import Prophet


def prophet(p: dict[str, Any]) -> Parts:
    bounds = p["thresholds"]
    return Parts(
        f"prophet(low-confidence(steps={p['steps']}), early={bounds['early']}, middle={bounds['mid']}, "
        f"late={bounds['late']}, region=({p['answer_offset']}, 5), steps={p['steps']})",
        Sequential(p["block_length"]),
        p["gen_length"],
        given={int(offset): token for offset, token in p.get("constraints", {}).items()},
    )


def comparable(case: Case) -> Case:
    """Forced text is written by the first forward there and given here."""
    forced = {int(offset) for offset in case["params"].get("constraints", {})}
    return case | {"traj": [[pair for pair in step if pair[0] not in forced] for step in case["traj"]]}


@pytest.mark.parametrize(("name", "params"), settings(["llada/prophet"]))
def test_published_trace_is_reproduced(name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "top", published_tie_order)
    assert_reproduced(name, params, prophet(params), prepare=comparable)


@pytest.mark.parametrize(("name", "params"), settings(["llada/prophet"]))
def test_the_step_that_ends_early_is_the_recorded_one(name: str, params: dict[str, Any]) -> None:
    cases = [case for case in recorded(name)["cases"] if case["params"] == params]
    decoder = DECODERS.make(prophet(params).decoder)
    assert isinstance(decoder, Prophet)
    ended: dict[int, int] = {}
    for step in steps_of("llada", prophet(params), [recorded(name)["prompts"][case["prompt"]] for case in cases]):
        sure = decoder.certainty(step.before, step.window, step.prediction) >= decoder.bound(step.before)
        ended |= {
            int(row): int(number) + 1 for row, number in zip(step.row_ids[sure], step.before.step[sure], strict=True)
        }
    assert ended == {row: case["exit_step"] for row, case in enumerate(cases) if case["early_exit"]}
