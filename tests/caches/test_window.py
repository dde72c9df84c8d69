"""The cache for sliding windows: which slots are frozen, what that costs, and where it is exact."""

import pytest
import torch
from cached_runs import InOrder, rows, run, uncached

import contract
from unmask.caches import CACHES
from unmask.caches.window import Windowed
from unmask.core.schedules import Sequential, Sliding
from unmask.core.state import DenoisingState, Move
from unmask.decoders import Decoder
from unmask.decoders.dc_leap import DcLeap
from unmask.decoders.threshold import Threshold

# Which slots are frozen ----------------------------------------------------------------------------------------------


def after(*leaps: int, length: int = 12) -> DenoisingState:
    """A row of one given slot and an answer whose leftmost slots were decided, so many at each step."""
    state, place = DenoisingState.start([[1]], length, mask_id=9), 1
    for leap in leaps:
        commit = torch.zeros_like(state.masked)
        commit[0, place : place + leap] = True
        state, place = state.apply(Move(commit, torch.full_like(state.tokens, 5))), place + leap
    return state


def frozen(policy: Windowed, state: DenoisingState) -> list[int]:
    flags = policy.frozen(state, Sliding(3).window(state, None), None)
    return flags[0].nonzero()[:, 0].tolist()


def test_everything_outside_the_window_is_frozen() -> None:
    assert frozen(Windowed(), after(2)) == [0, 1, 2, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("leaps", "due"),
    [
        ((3,), False),
        ((3, 1), True),  # the fourth slot
        ((3, 1, 1), False),
        ((3, 3), True),  # past the fourth
        ((3, 3, 1), False),
        ((3, 3, 2), True),
        ((9,), True),
    ],
)
def test_everything_is_due_when_the_decided_slots_pass_a_multiple(leaps: tuple[int, ...], due: bool) -> None:
    assert (frozen(Windowed(4), after(*leaps)) == []) is due


def test_rows_are_due_on_their_own() -> None:
    state = after(3, 1).join(after(2, 1))
    flags = Windowed(4).frozen(state, Sliding(3).window(state, None), None)
    assert flags.any(-1).tolist() == [False, True]


def test_a_refresh_of_1_is_always_due_also_behind_a_step_that_only_took_back() -> None:
    state = after(2)
    taken = torch.zeros_like(state.masked)
    taken[0, 2] = True
    state = state.apply(Move(torch.zeros_like(taken), state.tokens, taken))
    assert frozen(Windowed(1), state) == []
    assert frozen(Windowed(2), state) != []


def test_a_refresh_is_at_least_1() -> None:
    with pytest.raises(ValueError, match="refresh must be at least 1 slot: got 0"):
        Windowed(refresh=0)


def test_the_public_name() -> None:
    assert CACHES.make("window(refresh=16)") == Windowed(16)
    assert not Windowed.exact and not Windowed.fixed_canvas


# What it costs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_are_the_window_and_what_was_decided_last(family: str) -> None:
    """13 slots, a window of 3. Dream's row for the first open slot is the one decided last, which is among them."""
    assert rows(run(family, InOrder(), Sliding(3), Windowed(4))) == [13, 4, 4, 4, 13, 4, 3, 2]


@pytest.mark.parametrize(("family", "speaker"), [("llada", 0), ("dream", 1)])
def test_a_shifted_model_needs_the_row_left_of_the_window(family: str, speaker: int) -> None:
    """From right to left: the window stays for three steps, then moves past all three; the last one has 2 slots."""
    inside, moved = 3 + speaker, 1 + 3 + speaker  # a move: the slot decided last was computed as a mask
    expected = [13, inside, inside, moved, inside, inside, 1 + 2 + speaker, 2 + speaker]
    assert rows(run(family, InOrder(backwards=True), Sliding(3), Windowed(32))) == expected


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("window", [2, 4])
def test_dc_leap_computes_from_the_previous_window_to_the_end_of_the_look_ahead(family: str, window: int) -> None:
    leaps = 0
    for row, length in enumerate(contract.LENGTHS):
        state = contract.first_state(family, (row,))
        start, before, decided = len(contract.PROMPTS[row]), None, 0
        for step in contract.steps(family, state, DcLeap(0.7, 0.2), Sliding(window), Windowed(6)):
            position, end = start + decided, start + length
            if before is None or decided // 6 > before // 6:
                expected = set(range(end))
            else:
                expected = set(range(start + before, min(position + 2 * window, end)))
                leaps += 1
            work = step.prediction.work
            assert set(work.rows[0, : int(work.num_rows)].tolist()) == expected
            assert int(step.rows_computed) == len(expected)
            before, decided = decided, decided + int(step.move.commit.sum())
    assert leaps > 3, "the cache is not used at all"


def test_on_blocks_it_freezes_what_lies_around_the_block_also_when_it_opens() -> None:
    taken = run("llada", InOrder(), Sequential(4), Windowed(32))
    assert rows(taken) == [13, 4, 4, 4, 1 + 4, 4, 4, 4]


# Where it is exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_steps_that_compute_everything_are_exact_and_the_others_are_not(family: str) -> None:
    state = contract.first_state(family, (1,))
    exact, stale = [], []
    for step in contract.steps(family, state, DcLeap(0.9, 0.2), Sliding(3), Windowed(4)):
        ours, wanted = step.prediction.logits, uncached(step, contract.model(family).predictor)
        finite = wanted.isfinite()
        difference = float((ours[finite] - wanted[finite]).abs().max())
        (exact if int(step.rows_computed) == state.num_slots else stale).append(difference)
    assert len(exact) >= 3 and max(exact) < 1e-10
    assert max(stale) > 1e-3, "the cache is not used at all"


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("decoder", [DcLeap(0.5, 0.3), Threshold(0.6)], ids=["dc-leap", "threshold"])
def test_a_cache_that_recomputes_everything_always_is_no_cache(family: str, decoder: Decoder) -> None:
    contract.assert_refreshed_cache_equals_none(family, decoder, Sliding(4), Windowed())


@pytest.mark.parametrize("spec", ["prefix", "dual", "delayed"])
def test_caches_that_refresh_when_a_window_opens_save_nothing_on_a_window_that_moves(spec: str) -> None:
    taken = list(contract.steps("llada", contract.first_state("llada", (0,)), DcLeap(), Sliding(3), CACHES.make(spec)))
    assert {int(step.rows_computed) for step in taken} == {taken[0].before.num_slots}
