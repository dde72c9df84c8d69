"""States, memories and stores are trees of tensors whose rows leave and join."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from unmask.core import rows


@dataclass(frozen=True)
class Leaf:
    scores: Tensor
    name: str = "leaf"


@dataclass(frozen=True)
class Nest:
    leaf: Leaf
    pair: tuple[Tensor, None]
    options: str = "none"


class Seats:
    """Something with its own idea of rows, like a store of keys and values."""

    def __init__(self, seats: list[int]) -> None:
        self.seats = seats

    def take_rows(self, chosen: Tensor) -> "Seats":
        return Seats([self.seats[row] for row in chosen.tolist()])

    def join_rows(self, other: "Seats") -> "Seats":
        return Seats(self.seats + other.seats)


def nest(*numbers: int) -> Nest:
    tensor = torch.tensor(numbers)
    return Nest(Leaf(tensor * 1.0), (torch.stack((tensor, -tensor), dim=1), None), "settings")


def test_take_reaches_every_tensor_of_a_nest_and_keeps_the_order_asked_for() -> None:
    taken = rows.take(nest(1, 2, 3), torch.tensor([2, 0]))
    assert taken.leaf.scores.tolist() == [3.0, 1.0]
    assert taken.pair[0].tolist() == [[3, -3], [1, -1]]


def test_what_is_no_tensor_is_left_alone() -> None:
    taken = rows.take(nest(1, 2), torch.tensor([1]))
    assert (taken.leaf.name, taken.pair[1], taken.options) == ("leaf", None, "settings")
    assert rows.take(None, torch.tensor([0])) is None


def test_join_appends_every_tensor_of_a_nest() -> None:
    joined = rows.join(nest(1, 2), nest(3))
    assert joined.leaf.scores.tolist() == [1.0, 2.0, 3.0]
    assert joined.pair[0].tolist() == [[1, -1], [2, -2], [3, -3]]
    assert (joined.leaf.name, joined.pair[1]) == ("leaf", None)


def test_an_object_may_know_better_how_its_rows_are_taken_and_joined() -> None:
    seats = rows.join((Seats([1, 2]), torch.tensor([1, 2])), (Seats([3]), torch.tensor([3])))
    assert seats[0].seats == [1, 2, 3]
    assert rows.take(seats, torch.tensor([2, 1]))[0].seats == [3, 2]


class Named(NamedTuple):
    calm: Tensor
    count: Tensor


def test_a_named_tuple_is_a_tuple_too() -> None:
    memory = Named(torch.tensor([1, 2]), torch.tensor([3, 4]))
    taken = rows.take(memory, torch.tensor([1]))
    assert isinstance(taken, Named) and taken.count.tolist() == [4]
    assert rows.join(memory, taken).calm.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [(torch.zeros(1), None), ((torch.zeros(1),), None), ((torch.zeros(1),), (torch.zeros(1), torch.zeros(1)))],
)
def test_trees_of_different_forms_cannot_be_joined(first: object, second: object) -> None:
    with pytest.raises((AssertionError, ValueError)):
        rows.join(first, second)


def test_lists_and_dictionaries_are_refused_because_their_rows_would_stay() -> None:
    with pytest.raises(AssertionError, match="made of tensors, dataclasses and tuples"):
        rows.take((torch.tensor([1]), {"n": torch.tensor([1])}), torch.tensor([0]))


def test_the_narrower_memory_is_filled_up_with_zeros_when_rows_join() -> None:
    joined = rows.join(torch.ones(1, 2, 2), torch.ones(2, 3, 2))
    assert joined.sum((1, 2)).tolist() == [4.0, 6.0, 6.0]
    assert joined[0, 2].tolist() == [0.0, 0.0]
