"""Fixed numbers of slots per step: the published timetables, and the rankings worked out by hand."""

from collections import Counter
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.core.schedules import Schedule, Sequential, Whole
from unmask.core.state import DenoisingState
from unmask.decoders import Decoder
from unmask.decoders.quota import (
    Entropy,
    LowConfidence,
    MaskgitPlus,
    Origin,
    Random,
    TopkMargin,
    perturbed,
    quota,
    steps_of_window,
    timetable,
)
from unmask.decoders.threshold import Dynamic

MASK = 9
QUOTA: list[Any] = [LowConfidence, Random, MaskgitPlus, TopkMargin, Entropy]


def counts(decoder: Decoder, length: int, schedule: Schedule | None = None) -> list[int]:
    taken = steps(ScriptedPredictor([{}]), decoder, length=length, schedule=schedule or Whole())
    return [int(step.move.commit.sum()) for step in taken]


def order(decoder: Decoder, script: list[Any], **options: Any) -> list[list[int]]:
    return [[slot for slot, _ in step] for step in trace(ScriptedPredictor(script, **options), decoder, length=4)]


# How many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", QUOTA)
@pytest.mark.parametrize(
    ("length", "planned", "expected"),
    [(10, 4, [3, 3, 2, 2]), (32, 5, [7, 7, 6, 6, 6]), (3, 5, [1, 1, 1]), (6, 1, [6]), (3, None, [1, 1, 1])],
)
def test_slots_are_spread_evenly_over_the_steps(
    method: Any, length: int, planned: int | None, expected: list[int]
) -> None:
    assert counts(method(steps=planned), length) == expected


@pytest.mark.parametrize(
    ("length", "planned", "expected"),
    [(10, 4, [2, 3, 2, 3]), (32, 5, [6, 6, 7, 6, 7]), (3, 5, [1, 1, 1]), (6, 1, [6]), (3, None, [1, 1, 1])],
)
def test_dllm_compat_rounds_half_to_even(length: int, planned: int | None, expected: list[int]) -> None:
    decoder = LowConfidence(planned, compat="dllm")
    assert counts(decoder, length) == expected and not decoder.idles
    assert counts(Dynamic(1.1, planned, compat="dllm"), length) == expected, "the quota of LLaDA2's rule, too"


@given(st.integers(1, 24), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_a_quota_adds_up_never_grows_and_never_is_0(length: int, planned: int) -> None:
    state, plan = DenoisingState.start([[0]], length, mask_id=MASK), []
    opened = Whole().window(state, None)
    while sum(plan) < length:
        plan.append(int(quota(planned, state, replace(opened, age=torch.tensor([len(plan)])))))
    assert sum(plan) == length and len(plan) == min(planned, length)
    assert plan == sorted(plan, reverse=True) and max(plan) - min(plan) <= 1 and min(plan) > 0


def test_a_window_gets_its_share_of_the_steps_by_length() -> None:
    """9 steps over 18 slots in blocks of 4: the bounds 2, 4, 6, 8, 9 leave 1 step for the last two slots."""
    assert counts(LowConfidence(steps=9), 18, Sequential(4)) == [2] * 9
    assert counts(LowConfidence(steps=10), 15, Sequential(4)) == [2, 1, 1, *[2, 2], *[2, 1, 1], *[2, 1]]


def test_every_block_has_at_least_one_step() -> None:
    assert counts(LowConfidence(steps=1), 6, Sequential(2)) == [2, 2, 2]


def test_steps_of_a_canvas_with_given_text_are_spread_over_its_holes() -> None:
    """Holes at slots 1, 2, 3 and 7; blocks of 4 from slot 1 on: 3 and 1 of them."""
    state = DenoisingState.from_canvas([[0, None, None, None, 5, 5, 5, None]], mask_id=MASK)
    taken = steps(ScriptedPredictor([{}]), LowConfidence(steps=4), state=state, schedule=Sequential(4))
    assert [int(step.move.commit.sum()) for step in taken] == [1, 1, 1, 1]
    taken = steps(ScriptedPredictor([{}]), LowConfidence(steps=2), state=state, schedule=Sequential(4))
    assert [int(step.move.commit.sum()) for step in taken] == [
        2,
        1,
        1,
    ]  # 1.5 of the 2 steps, rounded up; then at least 1


def test_what_a_plan_left_over_is_committed_at_the_step_behind_it() -> None:
    state = DenoisingState.start([[0]], 5, mask_id=MASK)
    late = replace(Whole().window(state, None), age=torch.tensor([7]))
    assert quota(2, state, late).tolist() == [5]


def test_rows_have_quotas_of_their_own() -> None:
    state = DenoisingState.start([[0], [0]], [10, 4], mask_id=MASK)
    window = Whole().window(state, None)
    assert steps_of_window(4, state, window).tolist() == [4, 4]
    assert quota(4, state, window).tolist() == [3, 1]


# Dream's timetable ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [MaskgitPlus, TopkMargin, Entropy])
@pytest.mark.parametrize(
    ("length", "planned", "expected"),
    [(8, 8, [0, 1, 1, 1, 1, 1, 1, 2]), (16, 8, [1, 2, 2, 2, 2, 2, 2, 3]), (10, 4, [2, 2, 2, 4])],
)
def test_dream_compat_rounds_down_and_commits_the_rest_at_last(
    method: Any, length: int, planned: int, expected: list[int]
) -> None:
    assert counts(method(steps=planned, compat="dream"), length) == expected


@pytest.mark.parametrize("method", [MaskgitPlus, TopkMargin, Entropy])
def test_dream_compat_takes_its_number_of_steps_though_there_are_fewer_slots(method: Any) -> None:
    """8 slots in 12 steps: 12 forwards, of which at least 4 commit nothing; ours are 8."""
    taken = counts(method(steps=12, compat="dream"), 8)
    assert len(taken) == 12 and sum(taken) == 8 and taken[0] == 0
    assert counts(method(steps=12), 8) == [1] * 8


def test_origin_takes_its_number_of_steps_though_there_are_fewer_slots() -> None:
    """A row may be done early by chance; of 20 rows one is not."""
    state = DenoisingState.start([[0]] * 20, 8, mask_id=MASK)
    assert max(int(step.before.step[0]) for step in steps(ScriptedPredictor([{}]), Origin(steps=12), state=state)) == 11


@pytest.mark.parametrize(("planned", "expected"), [(8, [1, 1, 1, 1, 1, 1, 2]), (4, [2, 2, 4]), (1, [8])])
def test_dc_leap_compat_starts_the_timetable_at_its_second_entry(planned: int, expected: list[int]) -> None:
    assert counts(Entropy(steps=planned, compat="dc-leap"), 8) == expected


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_a_timetable_is_that_of_the_time_grid(masked: int, planned: int) -> None:
    times = [1.0 + (1e-3 - 1.0) * number / planned for number in range(planned + 1)]
    for age in range(planned):
        count = int(timetable(torch.tensor([planned]), torch.tensor([age]), torch.tensor([masked])))
        exact = masked * (1 - times[age + 1] / times[age])
        if age == planned - 1:
            assert count == masked
        elif abs(exact - round(exact)) > 1e-4:  # float32 decides what is closer than that
            assert count == int(exact)


def test_only_the_compatible_methods_may_idle() -> None:
    assert not any(method().idles for method in QUOTA)
    assert MaskgitPlus(compat="dream").idles and Entropy(compat="fast-dllm").idles and Origin().idles


def test_fast_dllm_compat_opens_a_block_with_its_first_slot_alone() -> None:
    script = [{slot: (1, 0.2 + 0.1 * slot) for slot in range(1, 9)}]
    decoder = MaskgitPlus(steps=4, compat="fast-dllm")
    taken = trace(ScriptedPredictor(script), decoder, length=8, schedule=Sequential(4))
    assert [[slot for slot, _ in step] for step in taken] == [[1], [2, 3, 4], [5], [6, 7, 8]]


# Which ---------------------------------------------------------------------------------------------------------------

DISTRIBUTIONS = {  # three tokens and the mask
    1: [0.50, 0.49, 0.01, 0.0],  # the most confident but for slot 4; lowest margin .01; entropy .742
    2: [0.48, 0.26, 0.26, 0.0],  # margin .22; entropy 1.053
    3: [0.45, 0.45, 0.10, 0.0],  # margin 0; entropy .949
    4: [0.90, 0.05, 0.05, 0.0],  # first in every ranking
}


@pytest.mark.parametrize(
    ("method", "expected"),
    [(LowConfidence, [4, 1, 2, 3]), (MaskgitPlus, [4, 1, 2, 3]), (TopkMargin, [4, 2, 1, 3]), (Entropy, [4, 1, 3, 2])],
)
def test_each_ranking_has_its_own_order(method: Any, expected: list[int]) -> None:
    assert order(method(), [DISTRIBUTIONS], vocab_size=4) == [[slot] for slot in expected]


@pytest.mark.parametrize("method", [LowConfidence, MaskgitPlus, TopkMargin, Entropy])
def test_equal_scores_are_committed_from_left_to_right(method: Any) -> None:
    script = [{slot: (1, 0.6) for slot in (1, 2, 3, 4)}]
    assert order(method(steps=2), script) == [[1, 2], [3, 4]]


def test_low_confidence_looks_again_at_every_step() -> None:
    script = [
        {1: (1, 0.6), 2: (2, 0.9), 3: (3, 0.7), 4: (4, 0.8)},
        {1: (5, 0.9), 3: (6, 0.2), 4: (7, 0.5)},
        {3: (8, 0.5), 4: (7, 0.6)},
        {3: (1, 0.5)},
    ]
    assert trace(ScriptedPredictor(script), LowConfidence(), length=4) == [[(2, 2)], [(1, 5)], [(4, 7)], [(3, 1)]]


@pytest.mark.parametrize("seed", range(3))
def test_with_two_possible_tokens_all_rankings_agree(seed: int) -> None:
    table = torch.randn(13, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2

    def two_tokens(tokens: Tensor) -> Tensor:
        logits = torch.full((*tokens.shape, 3), float("-inf"), dtype=torch.float64)
        logits[..., :2] = table + 0.1 * (tokens != 2).sum()  # moves with what is committed
        logits[..., 0] -= 0.3 * (tokens != 2).sum()
        return logits

    predictor = FunctionPredictor(two_tokens, vocab_size=3)
    traces = [trace(predictor, method(steps=6), length=12) for method in (MaskgitPlus, TopkMargin, Entropy)]
    assert traces[0] == traces[1] == traces[2]
    assert len({slot for step in traces[0] for slot, _ in step}) == 12


# Random orders -------------------------------------------------------------------------------------------------------

CHI_SQUARE_3 = 21.2  # passed by chance once in 10 000 with 3 degrees of freedom


def first_slots(decoder: Decoder, script: list[Any], rows: int) -> Tensor:
    """Which of four slots each of many rows commits first, as counts."""
    state = DenoisingState.start([[0]] * rows, 4, mask_id=MASK)
    first = steps(ScriptedPredictor(script), decoder, state=state)[0]
    return first.move.commit.sum(0)[1:]


def chi_square(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def test_random_order_does_not_look_at_the_scores() -> None:
    script = [{1: (1, 0.99), 2: (1, 0.2), 3: (1, 0.5), 4: (1, 0.9)}]
    found = first_slots(Random(), script, 2_000)
    assert chi_square(found, torch.full((4,), 500.0)) < CHI_SQUARE_3


def test_random_order_is_a_new_one_at_every_step() -> None:
    """Four numbers drawn once would commit the slot behind the first in a fixed order."""
    state = DenoisingState.start([[0]] * 600, 3, mask_id=MASK)
    taken = steps(ScriptedPredictor([{}]), Random(), state=state)
    firsts, seconds = (step.move.commit[:, 1:].int().argmax(-1).tolist() for step in taken[:2])
    pairs = Counter(zip(firsts, seconds, strict=True))
    assert len(pairs) == 6 and min(pairs.values()) > 60  # 100 each


def test_order_temperature_draws_slots_from_the_softmax_of_their_scores() -> None:
    confidences = [0.9, 0.3, 0.6, 0.5]
    script = [{slot: (1, confidence) for slot, confidence in enumerate(confidences, start=1)}]
    found = first_slots(MaskgitPlus(order_temperature=0.25), script, 3_000)
    assert chi_square(found, 3_000 * (torch.tensor(confidences) / 0.25).softmax(-1)) < CHI_SQUARE_3


def test_order_temperature_0_is_the_plain_order_and_a_small_one_nearly_so() -> None:
    assert order(TopkMargin(order_temperature=1e-6), [DISTRIBUTIONS], vocab_size=4) == [[4], [2], [1], [3]]
    state = DenoisingState.start([[0]], 3, mask_id=MASK)
    scores = torch.rand(1, 4)
    assert perturbed(scores, state, 0.0) is scores


def test_origin_takes_its_number_of_steps_and_leaves_no_mask() -> None:
    taken = steps(ScriptedPredictor([{}]), Origin(steps=5), length=40)
    assert len(taken) == 5 and taken[-1].after.done.all()


def test_origin_commits_every_slot_with_the_same_chance() -> None:
    """4 steps: at the first a slot stays with t_1 / t_0 = 1 - 0.999 / 4, at the third with t_3 / t_2."""
    state = DenoisingState.start([[0]] * 10, 500, mask_id=MASK)
    taken = steps(ScriptedPredictor([{slot: (1, 0.999) for slot in range(100)}]), Origin(steps=4), state=state)
    times = [1 - 0.999 * number / 4 for number in range(5)]
    for number in range(3):
        masked = int(taken[number].before.masked.sum())
        chance = 1 - times[number + 1] / times[number]
        spread = sqrt(masked * chance * (1 - chance))
        assert abs(int(taken[number].move.commit.sum()) - masked * chance) < 4 * spread
