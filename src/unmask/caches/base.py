"""What a cache policy is, and the store of keys and values it decides about.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots, r computed rows, g key heads, d head size.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.models.backbone import Block, Rotary

Memory = Any

NO_TOKEN = -1  # in `KVStore.computed_for`: nothing stored for this slot


class KVStore:
    """Keys (already rotated) and values per layer and slot, and the token each was computed for.

    One store belongs to one request batch; rows leave through `take_rows`. Values of extra slots are used within their
    step and never kept.

    Args:
        num_rows, num_slots: b and l.
        keeps: False makes a store that passes keys and values through and remembers nothing.
        prompt_length: where each row's answer begins (block-causal models count their blocks from there).
    """

    def __init__(self, num_rows: int, num_slots: int, keeps: bool, prompt_length: Int[Tensor, " b"]) -> None:
        self.keeps = keeps
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.prompt_length = prompt_length
        self.computed_for = torch.full((num_rows, num_slots), NO_TOKEN, device=prompt_length.device)

    def exchange(
        self, layer: int, k: Float[Tensor, "b g r d"], v: Float[Tensor, "b g r d"], work: ForwardPlan
    ) -> tuple[Float[Tensor, "b g s d"], Float[Tensor, "b g s d"]]:
        """Hand in the fresh rows of a layer, get keys and values of every slot."""
        num_slots = self.computed_for.shape[1]
        if not self.keeps:
            if work.everything:
                return k, v
            size = (k.shape[0], k.shape[1], work.visible.shape[1], k.shape[3])
            where = work.rows[:, None, :, None].expand_as(k)
            return k.new_zeros(size).scatter_(2, where, k), v.new_zeros(size).scatter_(2, where, v)
        if work.everything:
            if layer == len(self.keys):
                self.keys.append(k[:, :, :num_slots])
                self.values.append(v[:, :, :num_slots])
            self.keys[layer], self.values[layer] = k[:, :, :num_slots], v[:, :, :num_slots]
            return k, v
        if layer == len(self.keys):
            size = (k.shape[0], k.shape[1], num_slots, k.shape[3])
            self.keys.append(k.new_zeros(size))
            self.values.append(v.new_zeros(size))
        extra = work.visible.shape[1] - num_slots
        where = work.rows[:, None, :, None].expand_as(k)
        if not extra:
            return self.keys[layer].scatter_(2, where, k), self.values[layer].scatter_(2, where, v)
        keys = functional.pad(self.keys[layer], (0, 0, 0, extra)).scatter_(2, where, k)
        values = functional.pad(self.values[layer], (0, 0, 0, extra)).scatter_(2, where, v)
        self.keys[layer], self.values[layer] = keys[:, :, :num_slots], values[:, :, :num_slots]
        return keys, values

    def known(self, shown: Int[Tensor, "b l"]) -> Bool[Tensor, "b l"] | None:
        """Slots with values stored for the token they show now; None when nothing is kept."""
        return self.computed_for == shown if self.keeps else None

    def computed(self, work: ForwardPlan) -> Int[Tensor, " b"]:
        """Hidden states that the forward pass just done has computed, per row (the mean over layers, rounded up)."""
        return work.num_rows

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        """Remember for which token every computed slot was computed."""
        if self.keeps:
            num_slots = self.computed_for.shape[1]
            wide = functional.pad(self.computed_for, (0, canvas.extra), value=NO_TOKEN)
            shown = torch.where(work.visible, canvas.tokens, NO_TOKEN)
            self.computed_for = wide.scatter(1, work.rows, shown.gather(1, work.rows))[:, :num_slots]

    def take_rows(self, rows: Int[Tensor, " n"]) -> "KVStore":
        """The same store for some of its rows."""
        taken = self._like(len(rows), self.computed_for.shape[1], self.prompt_length[rows])
        taken.keys, taken.values = [k[rows] for k in self.keys], [v[rows] for v in self.values]
        taken.computed_for = self.computed_for[rows]
        return taken

    def join_rows(self, other: "KVStore") -> "KVStore":
        """Both stores in one; the shorter one gets slots with nothing stored, so it is joined at any time."""
        assert self.keeps == other.keeps, "stores of different caches cannot be joined"
        num_slots = max(self.computed_for.shape[1], other.computed_for.shape[1])
        parts = (self._widened(num_slots), other._widened(num_slots))
        prompt_length = torch.cat([p.prompt_length for p in parts])
        joined = self._like(len(prompt_length), num_slots, prompt_length)
        joined.computed_for = torch.cat([p.computed_for for p in parts])
        filled = next((p for p in parts if p.keys), None)
        for layer in range(len(filled.keys) if filled else 0):
            joined.keys.append(torch.cat([p._layer(p.keys, layer, filled) for p in parts]))
            joined.values.append(torch.cat([p._layer(p.values, layer, filled) for p in parts]))
        return joined

    def _like(self, num_rows: int, num_slots: int, prompt_length: Int[Tensor, " b"]) -> "KVStore":
        return type(self)(num_rows, num_slots, self.keeps, prompt_length)

    def _layer(self, tensors: list[Tensor], layer: int, like: "KVStore | None") -> Tensor:
        if tensors:
            return tensors[layer]
        assert like is not None, "one of the two stores holds something"
        return like.keys[layer].new_zeros((len(self.computed_for), *like.keys[layer].shape[1:]))

    def _widened(self, num_slots: int) -> "KVStore":
        extra = num_slots - self.computed_for.shape[1]
        wide = self._like(len(self.computed_for), num_slots, self.prompt_length)
        wide.computed_for = functional.pad(self.computed_for, (0, extra), value=NO_TOKEN)
        wide.keys = [functional.pad(k, (0, 0, 0, extra)) for k in self.keys]
        wide.values = [functional.pad(v, (0, 0, 0, extra)) for v in self.values]
        return wide


class CachePolicy:
    """Which slots stay frozen at a step; subclasses are frozen dataclasses without state."""

    keeps: ClassVar[bool] = True  # does the store have to remember anything?
    fixed_canvas: ClassVar[bool] = False  # needs the same slots at every step
    exact: ClassVar[bool] = False  # equals no cache, token for token, on block-causal models
    blockwise: ClassVar[bool] = False  # needs a schedule that cuts the canvas into blocks

    def begin(self, state: DenoisingState) -> Memory:
        """First memory of these rows."""
        return None

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"] | None:
        """Slots whose stored keys and values stand in at this step; None = compute everything."""
        raise NotImplementedError

    @property
    def store(self) -> type[KVStore]:
        """The store it needs; caches that keep more than keys and values bring a subclass."""
        return KVStore

    def open_store(self, state: DenoisingState) -> KVStore:
        """A fresh store for these rows."""
        return self.store(state.num_rows, state.num_slots, self.keeps, state.prompt_length)

    def run_block(
        self,
        block: Block,
        layer: int,
        x: Float[Tensor, "b r c"],
        rotary: Rotary,
        mask: Bool[Tensor, "b r s"] | None,
        work: ForwardPlan,
        store: KVStore,
    ) -> Float[Tensor, "b r c"]:
        """One layer over the computed rows: the seam for caches that store more than keys and values."""
        q, k, v = block.project(x, rotary)
        keys, values = store.exchange(layer, k, v, work)
        x = x + block.attend(q, keys, values, mask)
        return x + block.feed(x)
