"""The threshold and factor rules, worked out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import FunctionPredictor, ScriptedPredictor, drifting, steps, trace
from unmask.core.sampling import Sampling
from unmask.core.schedules import Sequential
from unmask.decoders import DECODERS
from unmask.decoders.quota import Entropy, LowConfidence
from unmask.decoders.threshold import Dynamic, EntropyThreshold, Factor, Threshold
from unmask.errors import RequestError


def first_commits(decoder: Any, *confidences: float, vocab_size: int = 12) -> list[int]:
    """Slots committed by the first step, counted from the answer's first one, which has the first confidence."""
    script = {slot: (slot % 3, confidence) for slot, confidence in enumerate(confidences, start=1)}
    predictor = ScriptedPredictor([script], vocab_size=vocab_size)
    return [slot - 1 for slot, _ in trace(predictor, decoder, length=len(confidences))[0]]


# Threshold -----------------------------------------------------------------------------------------------------------


def test_the_bound_itself_passes() -> None:
    assert first_commits(Threshold(0.9), 0.95, 0.90, 0.89, 0.20) == [0, 1]


def test_a_float32_confidence_on_the_bound_passes_too() -> None:
    def on_the_bound(tokens: Tensor) -> Tensor:
        return (
            torch.tensor([0.9, 0.1, 0.0]).log().expand(*tokens.shape, 3)
        )  # 0.9 in float32, as the default computes it

    predictor = FunctionPredictor(on_the_bound, vocab_size=3)
    step = steps(predictor, Threshold(0.9), length=3, sampling=Sampling())[0]
    assert step.prediction.confidence.dtype == torch.float32
    assert float(step.prediction.confidence[0, 1]) == float(torch.tensor(0.9)), "the test wants the bound itself"
    assert step.move.commit.sum() == 3


def test_the_best_is_committed_when_none_passes() -> None:
    assert first_commits(Threshold(0.9), 0.5, 0.4) == [0]
    assert first_commits(Threshold(0.9), 0.4, 0.3, 0.5, 0.5) == [2]  # the lower slot of two equals


def test_a_threshold_run_step_by_step() -> None:
    script = [
        {1: (1, 0.95), 2: (2, 0.7), 3: (3, 0.9), 4: (4, 0.6)},
        {2: (5, 0.8), 4: (4, 0.85)},
        {2: (6, 0.99)},
    ]
    assert trace(ScriptedPredictor(script), Threshold(0.9), length=4) == [[(1, 1), (3, 3)], [(4, 4)], [(2, 6)]]


def test_only_the_open_block_counts() -> None:
    script = [{1: (1, 0.5), 2: (1, 0.4), 3: (1, 0.99), 4: (1, 0.99)}]
    assert trace(ScriptedPredictor(script), Threshold(0.9), length=4, schedule=Sequential(2)) == [
        [(1, 1)],
        [(2, 1)],
        [(3, 1), (4, 1)],
    ]


def test_a_pace_considers_the_planned_number_of_best_slots_and_carries_what_it_rejects() -> None:
    """8 slots in 4 steps: 2 are considered; one of them is rejected, so the next step considers 3, and so on."""
    sure, unsure = (1, 0.95), (1, 0.5)
    script = [
        {1: sure, 2: unsure},  # the two best; slot 2 is below the bound
        {2: sure, 3: sure, 4: sure, 5: sure, 6: sure, 7: sure, 8: sure},  # 4 - 1 = 3 of seven that pass
        {5: unsure, 6: sure},  # 6 - 4 = 2
        {5: unsure, 7: unsure, 8: unsure},  # 8 - 5 = 3, none passes: the best
        {7: sure, 8: sure},  # behind the plan: all that is left
    ]
    predictor = ScriptedPredictor(script, vocab_size=30)
    slots = [[slot for slot, _ in step] for step in trace(predictor, Threshold(0.9, steps=4), length=8)]
    assert slots == [[1], [2, 3, 4], [6], [5], [7, 8]]


def test_a_step_ahead_of_its_plan_still_commits_the_best() -> None:
    """2 slots in 4 steps: after one commit at step 0 nothing is planned before step 3."""
    assert trace(ScriptedPredictor([{}]), Threshold(0.9, steps=4), length=2) == [[(1, 0)], [(2, 0)]]


def test_dream_compat_opens_a_block_with_its_first_slot_alone() -> None:
    script = [{1: (1, 0.3), 2: (1, 0.99), 3: (1, 0.99), 4: (1, 0.99)}]
    decoder = Threshold(0.9, compat="fast-dllm-dream")
    slots = [
        [slot for slot, _ in step]
        for step in trace(ScriptedPredictor(script), decoder, length=4, schedule=Sequential(2))
    ]
    assert slots == [[1], [2], [3], [4]]


def test_a_strict_bound_fails_itself() -> None:
    even = {slot: [0.5, 0.5, 0.0, 0.0] for slot in (1, 2)} | {3: [0.6, 0.4, 0.0, 0.0]}
    predictor = ScriptedPredictor([even], vocab_size=4)
    assert [len(step) for step in trace(predictor, Threshold(0.5), length=3)] == [3]
    assert trace(predictor, Threshold(0.5, strict=True), length=3) == [[(3, 0)], [(1, 0)], [(2, 0)]]


UNSURE = {  # nobody reaches 0.6: the most confident is slot 1, the widest margin has slot 2, the lowest entropy slot 3
    1: [0.52, 0.47, 0.01, 0.0, 0.0],
    2: [0.40, 0.20, 0.20, 0.20, 0.0],
    3: [0.50, 0.50, 0.00, 0.0, 0.0],
}


@pytest.mark.parametrize(("rank", "best"), [("confidence", 1), ("margin", 2), ("entropy", 3)])
def test_the_rank_says_which_slot_is_committed_when_none_passes(rank: Any, best: int) -> None:
    predictor = ScriptedPredictor([UNSURE], vocab_size=5)
    assert [slot for slot, _ in trace(predictor, Threshold(0.6, rank=rank), length=3)[0]] == [best]


def test_the_rank_does_not_touch_what_passes() -> None:
    predictor = ScriptedPredictor([UNSURE], vocab_size=5)
    assert [slot for slot, _ in trace(predictor, Threshold(0.51, rank="margin"), length=3)[0]] == [1]


# Entropy threshold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "nats"), [(0.8, 0.5004), (0.9, 0.3251), (0.95, 0.1985)])
def test_an_entropy_bound_is_in_nats(first: float, nats: float) -> None:
    script = [{1: [1.0, 0.0, 0.0], 2: [first, 1.0 - first, 0.0]}]
    predictor = ScriptedPredictor(script, vocab_size=3)
    assert len(trace(predictor, EntropyThreshold(nats + 1e-4), length=2)) == 1
    assert trace(predictor, EntropyThreshold(nats - 1e-4), length=2) == [[(1, 0)], [(2, 0)]]


def test_the_entropy_bound_itself_passes_unless_it_is_strict() -> None:
    predictor = ScriptedPredictor([{1: [0.5, 0.5, 0.0], 2: [0.5, 0.5, 0.0]}], vocab_size=3)
    bound = float(steps(predictor, EntropyThreshold(), length=2)[0].prediction.entropy[0, 1])
    assert [len(step) for step in trace(predictor, EntropyThreshold(bound), length=2)] == [2]
    assert [len(step) for step in trace(predictor, EntropyThreshold(bound, strict=True), length=2)] == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_a_negative_entropy_bound_is_one_slot_per_step_and_none_is_one_step(seed: int) -> None:
    options = {"length": 12, "schedule": Sequential(6)}
    one_by_one = trace(drifting(seed), Entropy(), **options)
    assert trace(drifting(seed), EntropyThreshold(-1e-9), **options) == one_by_one
    at_once = trace(drifting(seed), EntropyThreshold(float("inf")), **options)
    assert [len(step) for step in at_once] == [6, 6]


# Dynamic -------------------------------------------------------------------------------------------------------------


def test_what_is_sure_is_committed_but_never_less_than_the_quota() -> None:
    """8 slots in 4 steps: one sure slot is topped up to 2, three are taken, none gives the two best."""
    script = [
        {1: (1, 0.95), 4: (1, 0.6), 2: (1, 0.5)},
        {2: (1, 0.95), 3: (1, 0.95), 8: (1, 0.95), 5: (1, 0.8)},
        {6: (1, 0.6), 7: (1, 0.5)},
        {5: (1, 0.2)},
    ]
    slots = [[slot for slot, _ in step] for step in trace(ScriptedPredictor(script), Dynamic(0.85, 4), length=8)]
    assert slots == [[1, 4], [2, 3, 8], [6, 7], [5]]


def test_the_dynamic_bound_itself_fails() -> None:
    predictor = ScriptedPredictor([{slot: [0.5, 0.5, 0.0, 0.0] for slot in (1, 2, 3)}], vocab_size=4)
    assert [len(step) for step in trace(predictor, Dynamic(0.5), length=3)] == [1, 1, 1]
    assert [len(step) for step in trace(predictor, Dynamic(0.499), length=3)] == [3]


@pytest.mark.parametrize("seed", range(3))
def test_a_dynamic_bound_above_1_is_the_static_rule(seed: int) -> None:
    for planned in (None, 5):
        options = {"length": 12, "schedule": Sequential(7)}
        static = trace(drifting(seed), LowConfidence(planned), **options)
        assert trace(drifting(seed), Dynamic(1.1, planned), **options) == static


@pytest.mark.parametrize("seed", range(3))
def test_a_dynamic_rule_keeps_its_number_of_steps_and_with_one_slot_each_is_a_strict_threshold(seed: int) -> None:
    options = {"length": 12, "schedule": Sequential(6)}
    assert len(trace(drifting(seed), Dynamic(0.9, 4), **options)) <= 4
    assert trace(drifting(seed), Dynamic(0.6), **options) == trace(
        drifting(seed), Threshold(0.6, strict=True), **options
    )


# Factor --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidences", "paper", "released"),
    [
        ([0.99, 0.95, 0.90, 0.60], 3, 4),
        ([0.99, 0.95, 0.60, 0.55], 2, 2),
        ([0.4], 1, 1),
        ([0.4, 0.39], 1, 2),
        ([0.99, 0.98, 0.97], 3, 3),
    ],
)
def test_factor_vectors(confidences: list[float], paper: int, released: int) -> None:
    assert first_commits(Factor(1.0), *confidences) == list(range(paper))
    assert first_commits(Factor(1.0, compat="fast-dllm"), *confidences) == list(range(released))


def test_factor_ranks_by_confidence_and_not_by_slot() -> None:
    assert first_commits(Factor(1.0), 0.60, 0.90, 0.99, 0.95) == [1, 2, 3]


def test_the_factor_bound_itself_fails() -> None:
    """Two slots at 0.5: (2 + 1) * (1 - 0.5) is the factor 1.5."""
    assert first_commits(Factor(1.5), 0.5, 0.5, vocab_size=4) == [0]
    assert first_commits(Factor(1.5 + 1e-9), 0.5, 0.5, vocab_size=4) == [0, 1]


def test_the_factor_bound_is_as_precise_as_the_confidence() -> None:
    """The bound of rank 2 is 2/3; in float32 it is 1e-8 below that, and a confidence in between used to pass."""
    assert first_commits(Factor(1.0), 2 / 3 - 5e-9, 2 / 3 - 5e-9) == [0]
    assert first_commits(Factor(1.0), 2 / 3 + 5e-9, 2 / 3 + 5e-9) == [0, 1]


@pytest.mark.parametrize(("factor", "expected"), [(1e-9, [0]), (100.0, [0, 1, 2])])
def test_extreme_factors_commit_one_or_all(factor: float, expected: list[int]) -> None:
    assert first_commits(Factor(factor), 0.999, 0.5, 0.3) == expected


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["threshold(steps=0)", "low-confidence(steps=0)", "random(steps=-3)", "origin(steps=0)", "dynamic(steps=0)"]
)
def test_a_number_of_steps_is_at_least_1(spec: str) -> None:
    with pytest.raises(RequestError, match="steps must be at least 1, or None for one step per token: got"):
        DECODERS.make(spec)


def test_a_rank_is_the_name_of_a_score() -> None:
    """Set behind the back of the tests' type checker, which would refuse it first."""
    decoder = Threshold()
    object.__setattr__(decoder, "rank", "luck")
    with pytest.raises(ValueError, match='rank must be "confidence", "margin" or "entropy": got "luck"'):
        decoder.__post_init__()
