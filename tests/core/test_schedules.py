"""Windows: worked out by hand, and against a plain simulation of blocks that open one after another."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.schedules import SCHEDULES, Pipelined, Schedule, Sequential, Sliding, Whole
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


def window(state: DenoisingState, schedule: Schedule) -> Window:
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


# Sliding -----------------------------------------------------------------------------------------------------------


def test_a_sliding_window_begins_at_the_leftmost_masked_slot() -> None:
    state, seen = answer_of(6), []
    for commits in ((1, 2), (4,), (3,), (5, 6)):
        at = window(state, Sliding(3))
        seen.append((slots(at.open), slots(at.must), int(at.age)))
        assert torch.equal(at.visible, state.exists)
        state = step(state, *commits)
    assert seen == [
        ([1, 2, 3], [1, 2, 3], 0),
        ([3, 4, 5], [3, 4, 5], 0),
        ([3, 4, 5], [3, 5], 1),  # slot 3 is still masked, so the window has stayed
        ([5, 6], [5, 6], 0),  # past slot 4, which was decided before; the answer's end cuts the window short
    ]
    assert not window(state, Sliding(3)).open.any()


def test_sliding_windows_of_rows_move_on_their_own() -> None:
    state = step(step(fresh([1, None, None, None, None], [1, 1, 1, None, None]), 1, 2), row=1)
    seen = window(state, Sliding(2))
    assert (slots(seen.open), slots(seen.open, 1)) == ([3, 4], [3, 4])
    assert seen.age.tolist() == [1, 2]  # the first row has had a step without a commit, the second two
    assert seen.first.tolist() == [3, 3]


def test_a_sliding_window_is_measured_in_slots_and_given_ones_in_it_are_closed() -> None:
    state = fresh([1, None, 1, None, 1, 1, None, None])
    assert slots(window(state, Sliding(3)).open) == [1, 3]
    state = step(state, 1)
    seen = window(state, Sliding(3))
    assert slots(seen.open) == [3] and int(seen.age) == 0
    assert slots(window(step(state, 3), Sliding(3)).open) == [6, 7]


def test_a_sliding_window_without_a_length_is_half_of_each_rows_answer() -> None:
    state = fresh([1, *[None] * 7], [1, 1, None, 1, None], [1, 1, None])
    for first in (1, 2):
        seen = window(state, Sliding(None))
        assert [slots(seen.open, row) for row in range(3)] == [[first, first + 1, first + 2], [2], [2]]
        state = step(state, first)


def test_a_revocation_takes_a_sliding_window_back() -> None:
    state = step(step(answer_of(5), 1, 2), revoke=(1,))
    seen = window(state, Sliding(3))
    assert slots(seen.open) == [1, 2, 3] and slots(seen.must) == [1, 3] and int(seen.age) == 2


@given(st.lists(rows_with_a_hole, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_sliding_windows_equal_a_plain_simulation(rows: list[list[int | None]], length: int, seed: int) -> None:
    """Random commits inside the window (sometimes none), until every row is full."""
    chance, state, schedule = random.Random(seed), fresh(*rows), Sliding(length)
    ages, firsts = [-1] * len(rows), [-1] * len(rows)
    while not state.done.all():
        seen = window(state, schedule)
        commit = torch.zeros_like(state.masked)
        for row, canvas in enumerate(rows):
            masked = slots(state.masked, row)
            if not masked:
                assert not seen.open[row].any()
                continue
            first = masked[0]
            inside = range(first, min(first + length, len(canvas)))
            assert slots(seen.open, row) == [slot for slot in inside if canvas[slot] is None]
            assert slots(seen.must, row) == [slot for slot in inside if slot in masked]
            ages[row], firsts[row] = (ages[row] + 1 if first == firsts[row] else 0), first
            assert int(seen.age[row]) == ages[row]
            for slot in slots(seen.must, row):
                commit[row, slot] = chance.random() < 0.5
        state = state.apply(Move(commit, torch.full_like(state.tokens, 5)))
    assert not window(state, schedule).open.any()


@pytest.mark.parametrize("length", [0, -3])
def test_an_impossible_sliding_window_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"length must be at least 1, or None for half of the answer: got {length}"):
        Sliding(length)


def test_the_public_name_of_sliding() -> None:
    assert SCHEDULES.make("sliding(length=None)") == Sliding(None)
    assert SCHEDULES.make("sliding") == Sliding(128)


# Pipelined -----------------------------------------------------------------------------------------------------------

END = 7


def ending(*rows: list[int | None]) -> DenoisingState:
    return DenoisingState.from_canvas(rows, mask_id=MASK, end_ids=(END, 8))


def commit_end(state: DenoisingState, slot: int) -> DenoisingState:
    where = torch.zeros_like(state.masked)
    where[0, slot] = True
    return state.apply(Move(where, torch.full_like(state.tokens, END)))


def pipelined(state: DenoisingState, schedule: Pipelined, row: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Open, visible and obliged slots."""
    seen = schedule.window(state, None)
    return slots(seen.open, row), slots(seen.visible, row), slots(seen.must, row)


def test_a_block_is_appended_by_the_step_that_finds_the_share_decided_and_the_bound_itself_appends() -> None:
    schedule, state = Pipelined(4, add=0.5, force=0.75), answer_of(8)
    assert pipelined(state, schedule) == ([1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4])
    state = step(state, 2)
    assert pipelined(state, schedule) == ([1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3, 4])
    state = step(state, 1)  # 2 of 4: the next block is there, and need not commit yet
    assert pipelined(state, schedule) == ([*range(1, 9)], [*range(9)], [3, 4])
    state = step(state, 4, 6)  # 3 of 4: from now on it has to
    assert pipelined(state, schedule) == ([*range(1, 9)], [*range(9)], [3, 5, 7, 8])
    state = step(state, 3)  # the first block is full and leaves the window
    assert pipelined(state, schedule) == ([5, 6, 7, 8], [*range(9)], [5, 7, 8])
    assert pipelined(step(state, 5, 7, 8), schedule)[2] == []


def test_just_below_a_bound_nothing_is_appended_or_forced() -> None:
    state = step(answer_of(8), 1, 2)
    assert pipelined(state, Pipelined(4, add=0.51))[1] == [0, 1, 2, 3, 4]
    state = step(state, 3)
    assert pipelined(state, Pipelined(4, add=0.5, force=0.76))[2] == [4]
    assert pipelined(state, Pipelined(4, add=0.5, force=0.75))[2] == [4, 5, 6, 7, 8]


def test_at_most_one_block_is_appended_per_step() -> None:
    """With `add=0` a block calls for the next one at once, and still they come one by one."""
    schedule, state = Pipelined(2, add=0.0, force=1.0), answer_of(8)
    for count in (2, 4, 6, 8, 8):
        assert pipelined(state, schedule)[1] == [*range(1 + count)]
        state = step(state)


def test_a_block_full_at_once_waits_a_step_for_the_block_after_the_next() -> None:
    schedule, state = Pipelined(2, add=0.5), step(answer_of(6), 1, 2)
    assert pipelined(state, schedule)[0] == [3, 4]
    assert pipelined(step(state, 3, 4), schedule)[0] == [5, 6]


def test_a_complete_block_behind_an_incomplete_one_stays_in_the_window() -> None:
    schedule = Pipelined(2, add=0.5, force=0.5)
    state = step(step(answer_of(6), 2), 3, 4)
    assert pipelined(state, schedule) == ([1, 2, 3, 4, 5, 6], [*range(7)], [1, 5, 6])
    assert pipelined(step(state, 1), schedule)[0] == [5, 6]


def test_blocks_that_follow_one_another_are_those_of_sequential() -> None:
    """`add=1`, whatever `force` is: only the blocks that are not there yet tell the two apart."""
    state = fresh([1, None, None, None, None, None, None, None], [1, 1, 1, None, None, None])
    for commits in ((1, 3), (2,), (4, 6), (5,), (7,)):
        one, other = window(state, Sequential(3)), Pipelined(3, add=1.0, force=0.2).window(state, None)
        assert torch.equal(one.open, other.open) and torch.equal(one.must, other.must)
        live = one.open.any(-1)
        assert torch.equal(one.age[live], other.age[live])
        last = torch.where(one.open, state.slots, -1).amax(-1, keepdim=True)
        assert torch.equal(other.visible[live], ((state.slots <= last) & state.exists)[live])
        state = step(state, *commits)


def test_an_end_token_anywhere_stops_the_appending() -> None:
    """The step that commits it may still have appended; what is open is finished, and the rest stays masked."""
    schedule, state = Pipelined(2, add=0.5, force=0.5), ending([1] + [None] * 6)
    state = commit_end(state, 2)
    assert pipelined(state, schedule)[:2] == ([1, 2], [0, 1, 2])
    state = step(state, 1)
    assert pipelined(state, schedule)[0] == []
    assert slots(state.masked) == [3, 4, 5, 6]
    later = commit_end(step(ending([1] + [None] * 6), 1), 4)  # block 1 was there, and alone would call for block 2
    assert pipelined(later, schedule)[:2] == ([1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_any_end_token_counts_and_the_rule_can_be_switched_off() -> None:
    state = ending([8, None, None, None, None])  # one in the prompt does not
    assert pipelined(step(state, 1), Pipelined(2, add=0.5))[0] == [1, 2, 3, 4]
    state = commit_end(state, 1)
    assert pipelined(state, Pipelined(2, add=0.5))[0] == [1, 2]
    assert pipelined(state, Pipelined(2, add=0.5, end_stops=False))[0] == [1, 2, 3, 4]


def test_an_end_token_does_not_keep_holes_of_an_infilled_text_from_opening() -> None:
    schedule, state = Pipelined(2, add=0.5), ending([1, None, None, 1, None, None])
    assert pipelined(commit_end(state, 1), schedule)[0] == [1, 2, 4]


def test_given_text_inside_the_answer_counts_for_nothing() -> None:
    """Blocks of 2 behind one prompt slot: [1 2] [3 4] [5 6] [7 8], with 1, 3, 4 and 6 given."""
    schedule, state = Pipelined(2, add=1.0, force=1.0), fresh([1, None, 1, 1, 1, None, 1, None, None])
    assert pipelined(state, schedule) == ([1], [0, 1, 2, 3, 4], [1])  # given blocks come with the block before
    state = step(state, 1)
    assert pipelined(state, schedule) == ([5], [0, 1, 2, 3, 4, 5, 6], [5])
    state = step(state, 5)
    assert pipelined(state, schedule) == ([7, 8], [*range(9)], [7, 8])


def test_the_last_block_may_be_short_and_its_share_is_its_own() -> None:
    schedule, state = Pipelined(4, add=0.5, force=0.5), answer_of(6)
    assert pipelined(step(state, 1, 2), schedule)[0] == [1, 2, 3, 4, 5, 6]
    state = answer_of(3)
    assert pipelined(state, schedule) == ([1, 2, 3], [0, 1, 2, 3], [1, 2, 3])


def test_absolute_blocks_share_the_first_one_with_the_end_of_the_prompt() -> None:
    """Blocks [0 1 2 3] [4 5 6 7] [8 9], the prompt is slots 0 to 5; its share of a block is no share of the answer."""
    schedule = Pipelined(4, add=1.0, force=1.0, align="absolute")
    state = fresh([1] * 6 + [None] * 4, [1] * 4 + [None] * 3)
    assert pipelined(state, schedule) == ([6, 7], [*range(8)], [6, 7])
    assert pipelined(state, schedule, 1) == ([4, 5, 6], [*range(7)], [4, 5, 6])
    state = step(state, 6)
    assert pipelined(state, schedule) == ([6, 7], [*range(8)], [7])
    assert pipelined(step(state, 7), schedule) == ([8, 9], [*range(10)], [8, 9])
    assert pipelined(state, Pipelined(4, add=0.5, align="absolute"))[0] == [6, 7, 8, 9]


def test_pipelined_rows_stand_in_blocks_of_their_own() -> None:
    schedule = Pipelined(2, add=0.5, force=1.0)
    state = fresh([1, None, None, None, None], [1, 1, 1, None, None, None])
    state = step(state, 3, row=1)
    assert pipelined(state, schedule) == ([1, 2], [0, 1, 2], [1, 2])
    assert pipelined(state, schedule, 1) == ([3, 4, 5], [0, 1, 2, 3, 4, 5], [4])


def test_the_age_counts_from_the_step_that_finished_the_block_before() -> None:
    schedule, state, ages = Pipelined(2, add=0.5), answer_of(4), []
    for commits in ((1,), (3,), (2,), (4,)):
        ages.append(int(schedule.window(state, None).age))
        state = step(state, *commits)
    assert ages == [0, 1, 2, 0]


def test_only_the_distance_between_steps_counts() -> None:
    """A row that joins late, or whose first passes did something else, has the windows of one that starts at 0."""
    schedule, state = Pipelined(2, add=0.5, force=0.5), answer_of(6)
    late = replace(state, step=state.step + 5)
    for commits in ((2,), (3, 4), (1,), (6,), (5,)):
        assert pipelined(state, schedule) == pipelined(late, schedule)
        assert int(schedule.window(late, None).age) - int(schedule.window(state, None).age) in (0, 5)
        state, late = step(state, *commits), step(late, *commits)
    assert pipelined(late, schedule)[0] == []


def test_a_block_with_a_commit_is_there_whatever_the_block_before_says() -> None:
    """A candidate canvas that was ahead by one token opened it, and won."""
    state = step(answer_of(6), 2, 3)
    assert pipelined(state, Pipelined(2, add=1.0))[1] == [0, 1, 2, 3, 4]


def joined(blocks: Iterable[list[int]]) -> list[int]:
    return [slot for block in blocks for slot in block]


class PlainPipeline:
    """The published loop over one row, with its own book of blocks."""

    def __init__(self, canvas: list[int | None], schedule: Pipelined) -> None:
        self.schedule, size = schedule, schedule.block_length
        self.infill = None not in canvas or any(token is not None for token in canvas[canvas.index(None) :])
        origin = canvas.index(None) if schedule.align == "prompt" else 0
        blocks: dict[int, list[int]] = {}
        for slot, token in enumerate(canvas):
            if token is None:
                blocks.setdefault((slot - origin) // size, []).append(slot)
        self.blocks = list(blocks.values())
        self.left = set(joined(self.blocks))
        self.there, self.forced, self.ended = 0, {0}, False

    def progress(self, block: int) -> float:
        size = len(self.blocks[block])
        return 1.0 - len(self.left & set(self.blocks[block])) / size

    def open(self) -> list[list[int]]:
        """Begin a step: append, oblige, and name the masked slots of every block that is there."""
        more = self.there < len(self.blocks) and not self.ended
        if more and (not self.there or self.progress(self.there - 1) >= self.schedule.add):
            self.there += 1
        for block in range(self.there):
            if self.progress(block) >= self.schedule.force:
                self.forced.add(block + 1)
        return [[slot for slot in block if slot in self.left] for block in self.blocks[: self.there]]


@given(
    st.lists(rows_with_a_hole, min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1, 0.34, 0.5, 1.0]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from(["prompt", "absolute"]),
    st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_pipelined_windows_equal_a_plain_simulation(
    rows: list[list[int | None]], size: int, add: float, force: float, align: Any, seed: int
) -> None:
    """Random commits, some of them end tokens, in rows of any shape, until no row has an open masked slot."""
    chance, schedule = random.Random(seed), Pipelined(size, add, force, align)
    state, plain = ending(*rows), [PlainPipeline(row, schedule) for row in rows]
    while True:
        seen = schedule.window(state, None)
        commit, tokens = torch.zeros_like(state.masked), torch.full_like(state.tokens, 5)
        live = False
        for row, book in enumerate(plain):
            masked = book.open()
            first = next((number for number, block in enumerate(masked) if block), len(masked))
            if first == len(masked):  # full; nothing more is asked of this row, so its book is closed
                assert not (seen.open & state.masked)[row].any()
                continue
            live = True
            inside = sorted(joined(book.blocks[first : book.there]))
            duties = {number for number, block in enumerate(masked) if block and number in book.forced}
            assert slots(seen.open, row) == inside
            assert slots(seen.must, row) == sorted(joined(masked[number] for number in duties))
            assert not seen.visible[row, joined(book.blocks[book.there :])].any()
            assert seen.visible[row, joined(book.blocks[: book.there])].all()
            for number, block in enumerate(masked):
                chosen = [slot for slot in block if chance.random() < 0.3]
                if not chosen and number in duties:
                    chosen = [chance.choice(block)]
                commit[row, chosen] = True
                for slot in chosen:
                    if chance.random() < 0.05:
                        tokens[row, slot], book.ended = END, not book.infill
                book.left -= set(chosen)
        if not live:
            return
        state = state.apply(Move(commit, tokens))


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


@pytest.mark.parametrize("name", ["add", "force"])
@pytest.mark.parametrize("share", [-0.1, 1.01])
def test_a_share_that_is_never_reached_is_refused(name: str, share: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be a share of a block, 0 to 1, .*: got {share}"):
        Pipelined(**{name: share})  # type: ignore[arg-type]


def test_the_public_names() -> None:
    assert SCHEDULES.make("pipelined(block_length=4, add=1)") == Pipelined(4, add=1.0)
    assert SCHEDULES.make("sequential(block_length=5)") == Sequential(5)
    assert SCHEDULES.make("whole") == Whole()


def test_the_first_open_slot_of_a_row_without_any_is_the_canvas_length() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    some = none.clone()
    some[0, 1:] = True
    assert Window(some, none, none, torch.zeros(2, dtype=torch.long)).first.tolist() == [1, 3]
