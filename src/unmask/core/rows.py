"""Let batch rows leave and join: one walk over any nest of tensors, dataclasses and tuples.

States, memories and stores are trees whose tensors all have the batch as their first dimension, so the same two
functions serve them all. Where a tensor has a second dimension it is slots, and `join` fills the narrower one up with
zeros. What is neither tensor nor tree (a number, a name) is left alone; lists and dictionaries are refused.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

Tree = TypeVar("Tree")


def take(tree: Tree, rows: Int[Tensor, " n"]) -> Tree:
    """The same tree with the given batch rows only, in the given order."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)  # type: ignore[return-value]
    if hasattr(tree, "take_rows"):
        return tree.take_rows(rows)  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {f.name: take(getattr(tree, f.name), rows) for f in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **changed)
    if isinstance(tree, tuple):
        return _like(tree, (take(part, rows) for part in tree))  # type: ignore[return-value]
    assert not isinstance(tree, (list, dict)), "a memory is made of tensors, dataclasses and tuples"
    return tree


def join(first: Tree, second: Tree) -> Tree:
    """Rows of `second` behind those of `first`."""
    if isinstance(first, Tensor):
        assert isinstance(second, Tensor), "join needs two trees of the same form"
        return torch.cat(_equally_wide(first, second))  # type: ignore[return-value]
    if hasattr(first, "join_rows"):
        return first.join_rows(second)  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        changed = {f.name: join(getattr(first, f.name), getattr(second, f.name)) for f in dataclasses.fields(first)}
        return dataclasses.replace(first, **changed)
    if isinstance(first, tuple):
        assert isinstance(second, tuple), "join needs two trees of the same form"
        return _like(first, (join(a, b) for a, b in zip(first, second, strict=True)))  # type: ignore[return-value]
    return first


def _equally_wide(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    if first.ndim < 2 or first.shape[1] == second.shape[1]:
        return first, second
    width = max(first.shape[1], second.shape[1])
    pads = ([*[0, 0] * (one.ndim - 2), 0, width - one.shape[1]] for one in (first, second))
    wide, other = (functional.pad(one, pad) for one, pad in zip((first, second), pads, strict=True))
    return wide, other


def _like(tree: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of the same class; a named tuple takes its fields one by one."""
    return tree._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
