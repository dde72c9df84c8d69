"""The threshold and factor rules, worked out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.core.sampling import Sampling
from unmask.core.schedules import Sequential
from unmask.decoders import DECODERS
from unmask.decoders.threshold import Factor, Threshold
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
    "spec", ["threshold(steps=0)", "low-confidence(steps=0)", "random(steps=-3)", "origin(steps=0)"]
)
def test_a_number_of_steps_is_at_least_1(spec: str) -> None:
    with pytest.raises(RequestError, match="steps must be at least 1, or None for one step per token: got"):
        DECODERS.make(spec)
