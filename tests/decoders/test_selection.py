"""Selections, against sorting in plain Python."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.decoders.selection import best_only, first_only, rank, top

scores = st.sampled_from([float("-inf"), -1.0, 0.0, 0.25, 0.25, 0.5, 1.0])  # few values, so that ties are common


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    width = draw(st.integers(1, 7))
    lines = draw(st.lists(st.lists(scores, min_size=width, max_size=width), min_size=1, max_size=3))
    among = [draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in lines]
    return torch.tensor(lines), torch.tensor(among)


def best_first(score: Tensor, among: Tensor, row: int) -> list[int]:
    """Allowed slots by falling score, equal ones from left to right."""
    allowed = among[row].nonzero()[:, 0].tolist()
    return sorted(allowed, key=lambda slot: (-float(score[row, slot]), slot))


@given(tables())
@settings(max_examples=60, deadline=None)
def test_rank_counts_the_allowed_slots_from_the_best_and_the_others_behind(table: tuple[Tensor, Tensor]) -> None:
    score, among = table
    places = rank(score, among)
    for row in range(len(score)):
        order = best_first(score, among, row)
        assert [int(places[row, slot]) for slot in order] == list(range(len(order)))
        others = {int(places[row, slot]) for slot in (~among[row]).nonzero()[:, 0].tolist()}
        assert others == set(range(len(order), score.shape[1]))


@given(tables(), st.data())
@settings(max_examples=60, deadline=None)
def test_top_takes_the_best_slots_of_each_row(table: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    score, among = table
    counts = data.draw(st.lists(st.integers(0, 8), min_size=len(score), max_size=len(score)))
    chosen = top(score, among, torch.tensor(counts))
    for row, count in enumerate(counts):
        assert set(chosen[row].nonzero()[:, 0].tolist()) == set(best_first(score, among, row)[:count])


@given(tables())
@settings(max_examples=40, deadline=None)
def test_best_only_and_first_only_take_one_slot_or_none(table: tuple[Tensor, Tensor]) -> None:
    score, among = table
    best, first = best_only(score, among), first_only(among)
    for row in range(len(score)):
        assert best[row].nonzero()[:, 0].tolist() == best_first(score, among, row)[:1]
        assert first[row].nonzero()[:, 0].tolist() == among[row].nonzero()[:1, 0].tolist()


def test_a_slot_of_infinitely_low_score_is_taken_before_a_forbidden_one() -> None:
    score = torch.tensor([[1.0, float("-inf"), 0.5]])
    assert best_only(score, torch.tensor([[False, True, False]])).tolist() == [[False, True, False]]
