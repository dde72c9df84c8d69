"""Windows: worked out by hand, and against a plain simulation of blocks that open one after another."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.schedules import SCHEDULES, Sequential, Whole
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window

MASK = 9

rows_with_a_hole = st.lists(st.sampled_from([None, None, 1]), min_size=1, max_size=10).filter(lambda row: None in row)


def fresh(*rows: list[int | None]) -> DenoisingState:
    return DenoisingState.from_canvas(rows, mask_id=MASK)


def answer_of(length: int, prompt: int = 1) -> DenoisingState:
    return fresh([1] * prompt + [None] * length)


def slots(flags: torch.Tensor, row: int = 0) -> list[int]:
    return flags[row].nonzero()[:, 0].tolist()


def step(state: DenoisingState, *commits: int, revoke: tuple[int, ...] = (), row: int = 0) -> DenoisingState:
    """One step of one row; the other rows idle."""
    commit, taken = torch.zeros_like(state.masked), torch.zeros_like(state.masked)
    commit[row, list(commits)], taken[row, list(revoke)] = True, True
    return state.apply(Move(commit, torch.full_like(state.tokens, 5), taken))


def window(state: DenoisingState, schedule: Sequential | Whole) -> Window:
    return schedule.window(state, schedule.begin(state))


# Whole -------------------------------------------------------------------------------------------------------------


def test_whole_opens_every_answer_slot_at_every_step() -> None:
    state = fresh([1, None, 2, None, None], [1, 1, None])
    for age in range(2):
        seen = window(state, Whole())
        assert (slots(seen.open), slots(seen.open, 1)) == ([1, 3, 4], [2])
        assert seen.age.tolist() == [age, age]
        assert torch.equal(seen.visible, state.exists)
        assert torch.equal(seen.must, state.masked)
        state = step(state, (3, 1)[age])
    assert slots(window(state, Whole()).must) == [4]


# Sequential --------------------------------------------------------------------------------------------------------


def test_blocks_are_counted_from_the_end_of_each_prompt() -> None:
    state = fresh([1, None, None, None, None], [1, 1, 1, None, None])
    assert Sequential(3).blocks(state).tolist() == [[-1, 0, 0, 0, 1], [-1, -1, -1, 0, 0]]


def test_a_block_stays_open_until_it_is_full() -> None:
    state, seen = answer_of(5), []
    for commits in ((2,), (1, 3), (5, 4)):
        at = window(state, Sequential(3))
        seen.append((slots(at.open), slots(at.must), int(at.age)))
        state = step(state, *commits)
    assert seen == [([1, 2, 3], [1, 2, 3], 0), ([1, 2, 3], [1, 3], 1), ([4, 5], [4, 5], 0)]  # the last block is short
    assert not window(state, Sequential(3)).open.any()


def test_rows_stand_in_blocks_of_their_own() -> None:
    state = fresh([1, None, None, None, None], [1, None, None, None, None])
    state = step(step(state, 1, 2), 3)
    seen = window(state, Sequential(2))
    assert (slots(seen.open), slots(seen.open, 1)) == ([3, 4], [1, 2])
    assert seen.age.tolist() == [1, 2]
    assert seen.first.tolist() == [3, 1]


def test_blocks_without_a_hole_are_passed_over() -> None:
    state = fresh([1, None, None, 1, 1, None, 1, None])
    state = step(state, 1, 2)
    seen = window(state, Sequential(2))
    assert slots(seen.open) == [5]  # the block of slots 3 and 4 is given text, and so is slot 6
    assert int(seen.age) == 0
    seen = window(step(state, 5), Sequential(2))
    assert slots(seen.open) == [7] and int(seen.age) == 0


def test_padding_is_never_open_or_visible() -> None:
    seen = window(fresh([1, None], [1, None, None, None]), Sequential(4))
    assert slots(seen.open) == [1] and slots(seen.visible) == [0, 1]


def test_a_step_that_commits_nothing_ages_the_window() -> None:
    assert int(window(step(answer_of(4)), Sequential(2)).age) == 1


def test_a_revocation_inside_the_block_keeps_it_open_and_ageing() -> None:
    state = step(step(answer_of(4), 1), revoke=(1,))
    seen = window(state, Sequential(2))
    assert slots(seen.must) == [1, 2] and int(seen.age) == 2


def test_a_revocation_in_an_earlier_block_opens_that_block_again() -> None:
    state = step(step(step(answer_of(4), 1, 2), 3), revoke=(2,))
    again = window(state, Sequential(2))
    assert slots(again.open) == [1, 2] and slots(again.must) == [2]
    after = window(step(state, 2), Sequential(2))  # the later block counts as just opened: its surroundings changed
    assert slots(after.open) == [3, 4] and int(after.age) == 0


@given(st.lists(rows_with_a_hole, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_windows_equal_a_plain_simulation(rows: list[list[int | None]], block_length: int, seed: int) -> None:
    """Random commits inside the window (sometimes none), until every row is full."""
    chance, state, schedule = random.Random(seed), fresh(*rows), Sequential(block_length)
    ages, blocks = [-1] * len(rows), [-1] * len(rows)
    while not state.done.all():
        seen = window(state, schedule)
        commit = torch.zeros_like(state.masked)
        for row, canvas in enumerate(rows):
            start = canvas.index(None)
            masked = slots(state.masked, row)
            if not masked:
                assert not seen.open[row].any()
                continue
            block = (masked[0] - start) // block_length
            ages[row], blocks[row] = (ages[row] + 1 if block == blocks[row] else 0), block
            inside = range(start + block * block_length, min(start + (block + 1) * block_length, len(canvas)))
            assert slots(seen.open, row) == [slot for slot in inside if canvas[slot] is None]
            assert slots(seen.must, row) == [slot for slot in inside if slot in masked]
            assert int(seen.age[row]) == ages[row]
            for slot in slots(seen.must, row):
                commit[row, slot] = chance.random() < 0.5
        assert torch.equal(seen.visible, state.exists)
        state = state.apply(Move(commit, torch.full_like(state.tokens, 5)))
    assert not window(state, schedule).open.any()


def test_the_window_is_computed_from_the_state_alone() -> None:
    schedule, first, second = Sequential(2), answer_of(4), answer_of(4)
    alone = window(step(first, 1, 2), schedule)
    window(second, schedule)
    again = window(step(first, 1, 2), schedule)
    assert torch.equal(alone.open, again.open) and torch.equal(alone.age, again.age)


# Blocks with a number of steps ----------------------------------------------------------------------------------------


def limited(state: DenoisingState, limit: int = 2, block_length: int = 3) -> tuple[list[int], list[int], int]:
    seen = window(state, Sequential(block_length, block_steps=limit))
    return slots(seen.open), slots(seen.must), int(seen.age)


def test_a_limited_block_is_left_with_its_masks_and_they_are_open_once_more() -> None:
    state = answer_of(6)
    assert limited(state) == ([1, 2, 3], [1, 2, 3], 0)
    state = step(state, 1)
    assert limited(state) == ([1, 2, 3], [2, 3], 1)
    state = step(state, 2)
    assert limited(state) == ([3, 4, 5, 6], [3, 4, 5, 6], 0)  # slot 3 was left over, and this is the opening step
    state = step(state, 4)
    assert limited(state) == ([4, 5, 6], [5, 6], 1)
    state = step(state, 5)
    assert limited(state)[0] == []  # slots 3 and 6 stay masked
    assert slots(state.masked) == [3, 6]


def test_a_leftover_slot_may_be_filled_by_the_opening_step() -> None:
    state = step(step(step(answer_of(6), 1), 2), 3, 4)
    assert limited(state) == ([4, 5, 6], [5, 6], 1)
    assert slots(step(state, 5, 6).masked) == []


def test_a_limited_block_that_is_full_makes_way_at_once() -> None:
    state = step(answer_of(6), 1, 2, 3)
    assert limited(state) == ([4, 5, 6], [4, 5, 6], 0)


def test_idle_steps_use_up_the_limit() -> None:
    assert limited(step(step(answer_of(6)))) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], 0)


@given(rows_with_a_hole, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_limited_windows_equal_a_plain_simulation(row: list[int | None], length: int, limit: int, seed: int) -> None:
    chance, state = random.Random(seed), fresh(row)
    start = row.index(None)
    blocks: dict[int, list[int]] = {}
    for slot, token in enumerate(row):
        if token is None:
            blocks.setdefault((slot - start) // length, []).append(slot)
    for inside in blocks.values():
        for age in range(limit):
            masked = slots(state.masked)
            leftover = [slot for slot in masked if slot < inside[0]] if age == 0 else []
            assert limited(state, limit, length) == (
                leftover + inside,
                [slot for slot in leftover + inside if slot in masked],
                age,
            )
            state = step(state, *(slot for slot in leftover + inside if slot in masked and chance.random() < 0.4))
            if not set(inside) & set(slots(state.masked)):
                break
    assert limited(state, limit, length)[0] == []


# Options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_length": 0}, "block_length must be at least 1: got 0"),
        ({"block_steps": 0}, "block_steps must be at least 1 or None: got 0"),
    ],
)
def test_impossible_blocks_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sequential(**options)


def test_the_public_names() -> None:
    assert SCHEDULES.make("sequential(block_length=5)") == Sequential(5)
    assert SCHEDULES.make("whole") == Whole()


def test_the_first_open_slot_of_a_row_without_any_is_the_canvas_length() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    some = none.clone()
    some[0, 1:] = True
    assert Window(some, none, none, torch.zeros(2, dtype=torch.long)).first.tolist() == [1, 3]
