"""KLASS, worked out by hand and at the limits where it is another method."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from fakes import ScriptedPredictor, drifting, steps, trace
from unmask.core import rows
from unmask.core.schedules import Sequential
from unmask.core.state import DenoisingState
from unmask.decoders import DECODERS
from unmask.decoders.klass import Klass, divergence_from, watched
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Dynamic, Threshold
from unmask.errors import RequestError

SURE, HALF, UNSURE = (1, 0.8), (1, 0.5), (1, 0.2)


def slots_of(script: list[Any], decoder: Klass, length: int = 6, **options: Any) -> list[list[int]]:
    return [[slot for slot, _ in step] for step in trace(ScriptedPredictor(script), decoder, length=length, **options)]


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("history", "expected"), [(1, [[1], [2, 3, 4], [5], [6]]), (2, [[1], [2], [3, 4], [5], [6]])])
def test_sure_slots_that_did_not_move_are_committed_together(history: int, expected: list[list[int]]) -> None:
    """The same answers at every step: n comparisons are there after n + 1 forwards; until then the best slot."""
    script = [{slot: SURE for slot in (1, 2, 3, 4)} | {5: UNSURE, 6: UNSURE}]
    assert slots_of(script, Klass(0.6, 0.01, history)) == expected


def test_a_slot_that_moved_is_not_committed_and_its_count_starts_again() -> None:
    """Slot 3 says another token at step 2; at step 3 it has one calm comparison, at step 4 two."""
    other = (2, 0.8)
    script = [{1: SURE, 2: SURE, 3: SURE}, {2: SURE, 3: SURE}, {3: other, 4: HALF, 5: UNSURE}, {3: other, 4: HALF}]
    script = [entry | {4: HALF, 5: HALF, 6: HALF} for entry in script]
    decoder = Klass(0.6, 0.01, 2)
    taken = steps(ScriptedPredictor(script), decoder, length=6)
    commits = [step.move.commit[0].nonzero()[:, 0].tolist() for step in taken]
    assert commits == [[1], [2], [3], [4], [5], [6]]  # at step 2 slot 3 is the best by the quota, and not ready
    script[2] = script[2] | {4: (1, 0.9)}  # now slot 4 is the best there, and slot 3 has to wait for being ready
    assert slots_of(script, decoder)[2:4] == [[4], [3]]


def test_a_slot_that_is_calm_but_not_sure_waits() -> None:
    script = [{1: SURE, 2: SURE, 3: SURE, 4: HALF, 5: HALF, 6: HALF}]
    assert slots_of(script, Klass(0.6, 0.01, 1)) == [[1], [2, 3], [4], [5], [6]]


def test_the_bound_on_the_confidence_fails_itself_unless_told_otherwise() -> None:
    script = [{slot: [0.5, 0.5, 0.0, 0.0] for slot in (1, 2, 3)}]
    predictor = ScriptedPredictor(script, vocab_size=4)
    assert [len(step) for step in trace(predictor, Klass(0.5, 0.01, 1), length=3)] == [1, 1, 1]
    assert [len(step) for step in trace(predictor, Klass(0.5, 0.01, 1, strict=False), length=3)] == [1, 2]


def test_one_of_the_ready_slots_may_be_picked() -> None:
    """Slot 1 goes first; of the others slot 3 is the surest and slot 2 the calmest."""
    script = [{1: (1, 0.9), 2: (1, 0.7), 3: (1, 0.80), 4: (1, 0.75)}, {2: (1, 0.7), 3: (1, 0.82), 4: (1, 0.76)}]
    second = {
        pick: slots_of(script, Klass(0.6, 0.05, 1, pick=pick), length=4)[1]  # type: ignore[arg-type]
        for pick in ("all", "max-confidence", "min-divergence")
    }
    assert second == {"all": [2, 3, 4], "max-confidence": [3], "min-divergence": [2]}


def test_ready_slots_are_topped_up_to_the_quota_and_not_in_compat() -> None:
    """8 slots in 4 steps. At step 1 slot 8 alone is ready: slots 3 and 4 say something new there."""
    first = {1: (1, 0.9), 2: (1, 0.9), 3: (1, 0.85), 8: (1, 0.7)}
    script = [first, {3: (2, 0.9), 4: (2, 0.8), 8: (1, 0.7)}, {slot: HALF for slot in range(9)}]
    ours = Klass(0.6, 0.01, 1, steps=4)
    assert slots_of(script, ours, length=8) == [[1, 2], [3, 8], [4, 5], [6, 7]]
    released = Klass(0.6, 0.01, 1, steps=4, compat="klass")
    assert slots_of(script, released, length=8)[:2] == [[1, 2], [8]]


# Over blocks ---------------------------------------------------------------------------------------------------------

STEADY = [{slot: (1, 0.7) for slot in range(1, 9)}]


@pytest.mark.parametrize(
    ("watch", "history", "expected"),
    [
        ("answer", 1, [1, 3, 4]),  # the second block was calm before it opened
        ("window", 1, [1, 3, 1, 3]),
        ("answer", 2, [1, 1, 2, 1, 3]),  # the guard: nothing is ready in the first step of a window
        ("window", 2, [1, 1, 2, 1, 1, 2]),
    ],
)
def test_the_answer_is_watched_over_blocks_and_a_window_is_not(watch: Any, history: int, expected: list[int]) -> None:
    decoder = Klass(0.6, 0.01, history, watch=watch)
    taken = trace(ScriptedPredictor(STEADY), decoder, length=8, schedule=Sequential(4))
    assert [len(step) for step in taken] == expected


def test_watching_a_window_asks_about_less() -> None:
    first = {
        watch: steps(ScriptedPredictor(STEADY), Klass(watch=watch), length=8, schedule=Sequential(4))[0]  # type: ignore[arg-type]
        for watch in ("answer", "window")
    }
    asked = {watch: int(step.prediction.work.num_asked[0]) for watch, step in first.items()}
    assert asked == {"answer": 8, "window": 4}


# At the limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_when_nothing_is_calm_enough_it_is_quota_decoding(seed: int, planned: int | None) -> None:
    options = {"length": 12, "schedule": Sequential(7)}
    bounded = trace(drifting(seed), Klass(0.1, 0.0, 1, steps=planned), **options)
    assert bounded == trace(drifting(seed), LowConfidence(planned), **options)


@pytest.mark.parametrize("watch", ["answer", "window"])
@pytest.mark.parametrize("planned", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_when_everything_is_calm_it_is_a_threshold_with_a_quota(seed: int, planned: int | None, watch: Any) -> None:
    options = {"length": 12, "schedule": Sequential(7)}
    free = trace(drifting(seed), Klass(0.55, float("inf"), 1, planned, watch), **options)
    assert free == trace(drifting(seed), Dynamic(0.55, planned), **options)
    if planned is None:
        assert free == trace(drifting(seed), Threshold(0.55, strict=True), **options)
        assert len(free) < 12


def test_a_divergence_is_0_where_nothing_moved_and_never_negative() -> None:
    taken = [step for seed in range(5) for step in steps(drifting(seed), Klass(), length=6)]
    for step in taken:
        calm = torch.zeros_like(step.before.tokens)
        assert divergence_from(watched(step.prediction, calm), step.prediction)[step.before.masked].eq(0.0).all()
    for one, other in pairwise(taken):
        assert (divergence_from(watched(one.prediction, calm), other.prediction) > -1e-9).all()


# Memory --------------------------------------------------------------------------------------------------------------


def test_a_row_that_joins_later_brings_its_own_memory() -> None:
    """A fresh row with a longer canvas joins one that has had a step, and leaves again."""
    decoder, predictor = Klass(0.6, 0.05, 1), drifting(3)
    old, fresh = ([[1], length] for length in (5, 9))
    states = [DenoisingState.start([prompt], length, mask_id=5) for prompt, length in (old, fresh)]
    first = steps(predictor, decoder, state=states[0])[:2]
    memory = watched(first[0].prediction, torch.ones_like(states[0].tokens))
    joined = rows.join(memory, decoder.begin(states[1]))
    together = steps(predictor, decoder, state=first[1].before.join(states[1]))[0].prediction
    found, alone = divergence_from(joined, together), divergence_from(memory, first[1].prediction)
    assert torch.allclose(found[0, :6].double(), alone[0].double(), atol=1e-12)
    assert found[0, :6].isfinite().sum() == 4 and not found[1].isfinite().any()
    assert joined.calm.tolist() == [[1] * 6 + [0] * 4, [0] * 10]
    left = rows.take(joined, torch.tensor([0]))
    assert left.count.tolist() == [5] and left.calm.tolist() == [[1] * 6 + [0] * 4]
    other_way = rows.join(decoder.begin(states[1]), memory)
    swapped = rows.take(other_way, torch.tensor([1, 0]))
    assert torch.equal(divergence_from(swapped, together), found)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("klass(history=0)", "history must be at least 1 comparison: got 0"),
        ("klass(steps=0)", "steps must be at least 1, or None for one step per token: got 0"),
        ("klass(watch='prompt')", "prompt"),
        ("klass(pick='random')", "random"),
    ],
)
def test_values_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DECODERS.make(spec)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("watch", "prompt", 'watch must be "answer" or "window": got "prompt"'),
        ("pick", "random", 'pick must be "all", "max-confidence" or "min-divergence": got "random"'),
    ],
)
def test_names_of_options_are_checked_in_python_too(field: str, value: str, message: str) -> None:
    """Set behind the back of the tests' type checker, which would refuse them first."""
    decoder = Klass()
    object.__setattr__(decoder, field, value)
    with pytest.raises(ValueError, match=message):
        decoder.__post_init__()
