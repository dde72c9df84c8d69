"""A canvas changes through `apply` and `fill` alone, and rows come and go without touching each other."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.state import NEVER, DenoisingState, Move
from unmask.errors import RequestError

MASK = 9
FIELDS = ("tokens", "masked", "given", "exists", "committed_at", "prompt_length", "step", "seed")

rows_with_a_hole = st.lists(st.one_of(st.none(), st.integers(0, MASK)), min_size=1, max_size=7).filter(
    lambda row: None in row
)
canvases = st.lists(rows_with_a_hole, min_size=1, max_size=4)


def fresh(rows: list[list[int | None]], **options: Any) -> DenoisingState:
    return DenoisingState.from_canvas(rows, mask_id=MASK, **options)


def assert_equal(one: DenoisingState, other: DenoisingState) -> None:
    assert one.mask_id == other.mask_id
    for name in FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def flags(state: DenoisingState, *places: tuple[int, int]) -> torch.Tensor:
    where = torch.zeros_like(state.masked)
    for row, slot in places:
        where[row, slot] = True
    return where


def commit(state: DenoisingState, *places: tuple[int, int], token: int = 5) -> Move:
    return Move(flags(state, *places), torch.full_like(state.tokens, token))


# Laying out --------------------------------------------------------------------------------------------------------


@given(canvases)
@settings(max_examples=60, deadline=None)
def test_a_canvas_is_laid_out_slot_by_slot(rows: list[list[int | None]]) -> None:
    state = fresh(rows)
    assert (state.num_rows, state.num_slots) == (len(rows), max(map(len, rows)))
    for row, canvas in enumerate(rows):
        assert state.prompt_length[row] == canvas.index(None)
        for slot in range(state.num_slots):
            inside = slot < len(canvas)
            token = canvas[slot] if inside else None
            assert state.exists[row, slot] == inside
            assert state.masked[row, slot] == state.answer[row, slot] == (inside and token is None)
            assert state.given[row, slot] == (token is not None)
            assert state.tokens[row, slot] == (MASK if token is None else token)
    assert (state.committed_at == NEVER).all() and (state.step == 0).all() and not state.done.any()


def test_start_puts_the_answer_behind_each_prompt() -> None:
    ragged = DenoisingState.start([[1, 2], [3]], [1, 3], mask_id=MASK)
    assert_equal(ragged, fresh([[1, 2, None], [3, None, None, None]]))
    assert_equal(DenoisingState.start([[1, 2], [3]], 2, mask_id=MASK), fresh([[1, 2, None, None], [3, None, None]]))


def test_one_seed_numbers_the_rows_and_a_list_is_taken_as_it_is() -> None:
    rows: list[list[int | None]] = [[1, None], [1, None], [1, None]]
    assert fresh(rows, seeds=5).seed.tolist() == [5, 6, 7]
    assert fresh(rows, seeds=[8, 0, 8]).seed.tolist() == [8, 0, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 4), "got no prompts; give at least one"),
        (([[1], []], 4), "prompt 1 is empty; give at least one token"),
        (([[1], [2]], [3, 0]), "length must be at least 1: got length=0 for prompt 1"),
        (([[1]], -2), "length must be at least 1: got length=-2 for prompt 0"),
        (([[1], [2]], [3]), "need one length per prompt: got 1 lengths for 2 prompts"),
    ],
)
def test_impossible_starts_say_what_was_wrong(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DenoisingState.start(*arguments, mask_id=MASK)


def test_a_canvas_without_a_hole_is_refused() -> None:
    with pytest.raises(RequestError, match="canvas 1 has no slot to fill; put None where a token is wanted"):
        fresh([[1, None], [1, 2]])


def test_seeds_must_match_the_rows() -> None:
    with pytest.raises(RequestError, match="need one seed per prompt: got 3 seeds for 2 prompts"):
        DenoisingState.start([[1], [2]], 4, mask_id=MASK, seeds=[1, 2, 3])


@pytest.mark.parametrize("seeds", [-1, [0, -3], 2**63 - 1])
def test_seeds_are_64_bit_counts(seeds: Any) -> None:
    with pytest.raises(RequestError, match="seeds must be from 0 to 9223372036854775807: got"):
        DenoisingState.start([[1], [2]], 4, mask_id=MASK, seeds=seeds)


# Moves -------------------------------------------------------------------------------------------------------------


@given(canvases, st.data())
@settings(max_examples=40, deadline=None)
def test_random_moves_keep_the_books(rows: list[list[int | None]], data: st.DataObject) -> None:
    """Four random moves beside a plain record of every slot: (token, masked, step of its commit)."""
    state = first = fresh(rows)
    record = {
        (row, slot): (int(state.tokens[row, slot]), bool(state.masked[row, slot]), NEVER)
        for row in range(state.num_rows)
        for slot in range(state.num_slots)
    }
    for step in range(4):
        masked = [place for place, (_, is_masked, _) in record.items() if is_masked]
        decided = [place for place, (_, _, when) in record.items() if when != NEVER]
        commits = data.draw(st.sets(st.sampled_from(masked)) if masked else st.just(set()))
        revokes = data.draw(st.sets(st.sampled_from(decided)) if decided else st.just(set()))
        token = data.draw(st.integers(0, MASK))  # the mask token may be committed like any other
        revoke = flags(state, *revokes) if revokes or data.draw(st.booleans()) else None
        state = state.apply(Move(flags(state, *commits), torch.full_like(state.tokens, token), revoke))
        record |= {place: (token, False, step) for place in commits}
        record |= {place: (MASK, True, NEVER) for place in revokes}
        for (row, slot), expected in record.items():
            got = state.tokens[row, slot], state.masked[row, slot], state.committed_at[row, slot]
            assert tuple(map(int, got)) == tuple(map(int, expected))
        assert state.done.tolist() == [
            not any(is_masked for (owner, _), (_, is_masked, _) in record.items() if owner == row)
            for row in range(len(rows))
        ]
        for name in ("given", "exists", "prompt_length", "seed"):
            assert torch.equal(getattr(state, name), getattr(first, name))
        assert (state.step == step + 1).all()


def test_apply_leaves_the_state_before_it_alone() -> None:
    state, copy = fresh([[1, None, None]]), fresh([[1, None, None]])
    state.apply(commit(state, (0, 1)))
    assert_equal(state, copy)


STANDING: list[list[int | None]] = [[1, None, None, 4], [1, None]]  # (1, 2) and (1, 3) are padding


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (0, 3), (1, 2)], ids=["given", "committed", "infill", "padding"])
def test_only_masked_slots_can_be_committed(place: tuple[int, int]) -> None:
    state = fresh(STANDING)
    state = state.apply(commit(state, (0, 1)))
    with pytest.raises(AssertionError, match="a decoder committed a slot that was not masked"):
        state.apply(commit(state, place))


@pytest.mark.parametrize("place", [(0, 0), (0, 2), (0, 3), (1, 3)], ids=["given", "masked", "infill", "padding"])
def test_only_committed_slots_can_be_revoked(place: tuple[int, int]) -> None:
    state = fresh(STANDING)
    state = state.apply(commit(state, (0, 1)))
    with pytest.raises(AssertionError, match="a decoder revoked a slot it may not touch"):
        state.apply(Move(flags(state), state.tokens, flags(state, place)))


def test_a_slot_cannot_be_committed_and_revoked_at_once() -> None:
    state = fresh(STANDING)
    with pytest.raises(AssertionError, match="revoked"):
        state.apply(Move(flags(state, (0, 2)), state.tokens, flags(state, (0, 2))))


def test_a_move_changes_the_rows_with_a_commit_or_a_revocation() -> None:
    state = fresh([[1, None], [1, None], [1, None]])
    assert commit(state, (1, 1)).changes.tolist() == [False, True, False]
    both = Move(flags(state, (1, 1)), state.tokens, flags(state, (2, 1)))
    assert both.changes.tolist() == [False, True, True]


def test_a_committed_mask_token_is_no_mask() -> None:
    state = fresh([[1, None, None]])
    state = state.apply(commit(state, (0, 1), token=MASK))
    assert state.tokens.tolist() == [[1, MASK, MASK]]
    assert state.masked.tolist() == [[False, False, True]]


def test_fill_settles_slots_at_the_step_just_taken_and_takes_no_step_itself() -> None:
    state = fresh([[1, None, None, None], [1, None, None]])
    state = state.apply(commit(state, (0, 1), (1, 1))).apply(commit(state, (0, 2)))
    filled = state.fill(flags(state, (0, 3), (1, 2)), torch.tensor([7, 8]))
    assert filled.tokens.tolist() == [[1, 5, 5, 7], [1, 5, 8, MASK]]
    assert filled.done.all()
    assert filled.committed_at.tolist() == [[NEVER, 0, 1, 1], [NEVER, 0, 1, NEVER]]
    assert torch.equal(filled.step, state.step)


def test_fill_before_the_first_step_counts_as_the_first_step() -> None:
    state = fresh([[1, None]])
    assert state.fill(state.masked, torch.tensor([7])).committed_at.tolist() == [[NEVER, 0]]


# Rows that come and go ---------------------------------------------------------------------------------------------


@given(canvases, st.data())
@settings(max_examples=40, deadline=None)
def test_take_is_the_state_of_those_rows(rows: list[list[int | None]], data: st.DataObject) -> None:
    chosen = data.draw(st.permutations(range(len(rows))).map(lambda order: order[: max(1, len(rows) - 1)]))
    wide = max(map(len, rows))
    picked = fresh([rows[row] for row in chosen], seeds=chosen)
    assert_equal(fresh(rows).take(torch.tensor(chosen)), picked.widen(wide))


@given(canvases, canvases)
@settings(max_examples=40, deadline=None)
def test_joining_is_starting_together(first: list[list[int | None]], second: list[list[int | None]]) -> None:
    joined = fresh(first, seeds=0).join(fresh(second, seeds=len(first)))
    assert_equal(joined, fresh(first + second))


def idled(state: DenoisingState) -> DenoisingState:
    return state.apply(Move(torch.zeros_like(state.masked), state.tokens))


def test_rows_keep_their_own_step_when_they_join() -> None:
    old = fresh([[1, None, None]])
    old = old.apply(commit(old, (0, 1))).apply(commit(old, (0, 2)))
    joined = old.join(fresh([[1, 2, 3, None]]))
    assert joined.step.tolist() == [2, 0]
    joined = joined.apply(commit(joined, (1, 3)))
    assert joined.step.tolist() == [3, 1]
    assert joined.committed_at.tolist() == [[NEVER, 0, 1, NEVER], [NEVER, NEVER, NEVER, 0]]
    assert_equal(joined.take(torch.tensor([0])), idled(old.widen(4)))


def test_slots_added_by_widen_do_not_exist() -> None:
    wide = fresh([[1, None]]).widen(4)
    assert wide.exists.tolist() == [[True, True, False, False]]
    assert wide.masked.tolist() == wide.answer.tolist() == [[False, True, False, False]]
    assert wide.tokens.tolist() == [[1, MASK, MASK, MASK]]
    assert not wide.given[:, 2:].any() and (wide.committed_at == NEVER).all()


def test_a_canvas_cannot_be_made_narrower() -> None:
    with pytest.raises(AssertionError, match="narrower"):
        fresh([[1, None]]).widen(1)
