"""dKV-Cache: which slots are frozen, what that costs, and where it is exact."""

import pytest
import torch
from cached_runs import InOrder, rows, run, uncached

import contract
from unmask.caches import CACHES
from unmask.caches.delayed import Delayed
from unmask.core.schedules import Schedule, Sequential, Sliding, Whole
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.dc_leap import DcLeap
from unmask.decoders.quota import LowConfidence

# Which slots are frozen ----------------------------------------------------------------------------------------------


def frozen(policy: Delayed, ages: tuple[int, int], revoke: int | None = None) -> list[list[int]]:
    """Two rows of 6 slots after 4 steps: in the first slots 2 and 4 have been decided, in the second nothing."""
    state = DenoisingState.start([[1], [1]], 5, mask_id=9)
    for commit in (None, 2, 4, None):
        flags = torch.zeros_like(state.masked)
        if commit is not None:
            flags[0, commit] = True
        state = state.apply(Move(flags, torch.full_like(state.tokens, 5)))
    if revoke is not None:
        taken = torch.zeros_like(state.masked)
        taken[0, revoke] = True
        state = state.apply(Move(torch.zeros_like(taken), state.tokens, taken))
    window = Window(state.answer, state.exists, state.masked, torch.tensor(ages))
    return [row.nonzero()[:, 0].tolist() for row in policy.frozen(state, window, None)]


DECIDED = [0, 2, 4]


@pytest.mark.parametrize(
    ("every", "ages", "expected"),
    [
        (8, (0, 1), [[], []]),  # the first two steps of a window
        (8, (2, 7), [DECIDED, [0]]),
        (8, (8, 9), [[], [0]]),
        (8, (16, 0), [[], []]),
        (3, (6, 5), [[], [0]]),
        (1, (5, 3), [[], []]),
    ],
)
def test_decided_slots_are_frozen_between_two_refreshes(
    every: int, ages: tuple[int, int], expected: list[list[int]]
) -> None:
    assert frozen(Delayed(every), ages) == expected


def test_a_slot_that_was_taken_back_is_recomputed() -> None:
    assert frozen(Delayed(), (3, 3), revoke=2) == [[0, 4], [0]]


def test_steps_may_be_counted_from_the_start_of_the_answer() -> None:
    assert frozen(Delayed(3, since="start"), (0, 1)) == [DECIDED, [0]]  # the rows have had 4 steps
    assert frozen(Delayed(4, since="start"), (1, 5)) == [[], []]


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="every must be at least 1 step: got 0"):
        Delayed(every=0)
    policy = Delayed()
    object.__setattr__(policy, "since", "block")  # behind the back of the tests' type checker, which would refuse it
    with pytest.raises(ValueError, match='since must be "window" or "start": got "block"'):
        policy.__post_init__()


def test_the_public_name() -> None:
    assert CACHES.make("delayed(every=4)") == Delayed(4)
    assert not Delayed.exact and not Delayed.fixed_canvas


# What it costs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_are_the_masked_slots_and_the_one_decided_last(family: str) -> None:
    """13 slots. Left of the leftmost masked slot is the one decided last, so Dream's row is among them anyway."""
    taken = run(family, InOrder(), Whole(), Delayed(every=4))
    assert rows(taken) == [13, 13, 6 + 1, 5 + 1, 13, 3 + 1, 2 + 1, 1 + 1]


@pytest.mark.parametrize(("family", "speaker"), [("llada", 0), ("dream", 1)])
def test_a_shifted_model_needs_the_row_left_of_the_masked_slots(family: str, speaker: int) -> None:
    taken = run(family, InOrder(backwards=True), Whole(), Delayed(every=4))
    assert rows(taken) == [13, 13, *(n + 1 + speaker for n in (6, 5)), 13, *(n + 1 + speaker for n in (3, 2, 1))]


def test_slots_of_later_blocks_are_recomputed_and_a_new_block_starts_the_count_again() -> None:
    taken = run("llada", InOrder(), Sequential(4), Delayed(every=8))
    assert rows(taken) == [13, 13, 6 + 1, 5 + 1, 13, 13, 2 + 1, 1 + 1]


def test_a_slot_decided_by_the_step_before_is_recomputed_once_and_then_frozen() -> None:
    taken = run("llada", InOrder(), Whole(), Delayed(every=8))
    computed = [set(step.prediction.work.rows[0].tolist()) for step in taken]
    for number in range(2, len(taken)):
        decided = int(taken[number - 1].move.commit[0].nonzero())
        assert decided in computed[number]
        assert all(decided not in later for later in computed[number + 1 :])


def test_on_a_sliding_window_it_saves_work_only_when_it_counts_from_the_start() -> None:
    """Every leap opens a new window."""
    leap = DcLeap(commit=1.0, draft=1.0)
    assert rows(run("llada", leap, Sliding(3), Delayed())) == [13] * 8
    assert rows(run("llada", leap, Sliding(3), Delayed(since="start"))) == [13, 13, 7, 6, 5, 4, 3, 2]


# Where it is exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_steps_that_compute_everything_are_exact_and_the_others_are_not(family: str) -> None:
    state = contract.first_state(family, (0,))
    exact, stale = [], []
    for step in contract.steps(family, state, LowConfidence(), Sequential(10), Delayed(every=5)):
        ours, wanted = step.prediction.logits, uncached(step, contract.model(family).predictor)
        finite = wanted.isfinite()
        difference = float((ours[finite] - wanted[finite]).abs().max())
        age = int(step.window.age)
        (exact if age in (0, 1, 5) else stale).append(difference)
        assert (int(step.rows_computed) == state.num_slots) == (age in (0, 1, 5))
    assert len(exact) == 6 and max(exact) < 1e-10
    assert max(stale) > 1e-3, "the cache is not used at all"


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("schedule", [Whole(), Sequential(8), Sliding(4)], ids=["whole", "sequential", "sliding"])
def test_a_cache_that_recomputes_everything_always_is_no_cache(family: str, schedule: Schedule) -> None:
    decoder = DcLeap(0.5, 0.3) if isinstance(schedule, Sliding) else LowConfidence()
    contract.assert_refreshed_cache_equals_none(family, decoder, schedule, Delayed())
