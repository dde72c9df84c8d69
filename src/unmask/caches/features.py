"""dLLM-Cache: keep what every layer adds to a row, and redo only the rows that are due or have moved most.

Source: Liu et al., dLLM-Cache (arXiv 2506.06295), and its released code. As released, the first layer redoes every row
at every step, so that fresh tokens enter the network, and every further layer chooses for itself which answer rows it
redoes between two refreshes, whatever the method asks about. So this is the one cache under which the logits of an
asked slot may be stale. Deviates: what is kept belongs to a request and a row instead of the process, so that requests
run side by side and rows may join later; attention masks are honoured; under guidance the pass without the prompt keeps
its own, with no period of its own; cosines are in float32 at least. A shifted model (Dream) needs nothing special: the
row that speaks for a slot is a row of the canvas.

Shape letters: b batch rows, l canvas slots, r rows of the pass, n some of them, s keys, c hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from unmask.caches.base import CachePolicy, KVStore, Memory
from unmask.core import rows as tree
from unmask.core.canvas import Canvas, ForwardPlan, pack
from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.models.backbone import Block, Rotary


@dataclass(frozen=True, slots=True)
class Features(CachePolicy):
    """Redo prompt rows and answer rows each with their own period, and in between the answer rows whose values changed
    most (dLLM-Cache; approximate).

    The answer begins at the first slot to be filled; given text behind it counts as answer. Rows computed are the mean
    over the layers. Not among them: the values of all answer rows, which every layer works out to see who has moved.
    """

    fixed_canvas: ClassVar[bool] = True

    prompt_every: int = 50  # Kp, steps from one refresh of the prompt's rows to the next; 1 = every step
    answer_every: int = 7  # Kr, the same for the answer's rows
    share: float = 0.25  # rho, share of the answer's rows redone at the other steps, rounded down, 0..1

    def __post_init__(self) -> None:
        for name, period in (("prompt_every", self.prompt_every), ("answer_every", self.answer_every)):
            if period < 1:
                raise ValueError(f"{name} must be at least 1 step: got {period}")
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share must be a share of the answer's rows, 0 to 1: got {self.share}")

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> None:
        return None  # every row takes part in the pass; what is redone for it, each layer decides

    @property
    def store(self) -> type["FeatureStore"]:
        return FeatureStore

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
        assert isinstance(store, FeatureStore), "the store was opened by another cache"
        store.make_room(layer, block, x)
        some = Some.of(self._redone(block, layer, x, work, store), work)
        store.count(layer, some)
        keys, values, (attended, fed) = store.keys[layer], store.values[layer], store.added[layer]
        if bool(some.real.any()):
            fresh, turn = some.among(x), tuple(some.among(part[:, 0])[:, None] for part in rotary)
            q, k, v = block.project(fresh, turn)  # type: ignore[arg-type]
            some.put(keys.transpose(1, 2), k.transpose(1, 2))
            some.put(values.transpose(1, 2), v.transpose(1, 2))
            mixed = block.attend(q, keys, values, None if mask is None else some.among(mask))
            some.put(attended, mixed)
            some.put(fed, block.feed(fresh + mixed))
        return x + _at(attended, work.rows) + _at(fed, work.rows)

    def _redone(
        self, block: Block, layer: int, x: Float[Tensor, "b r c"], work: ForwardPlan, store: "FeatureStore"
    ) -> Bool[Tensor, "b r"]:
        """Rows of the pass that this layer redoes."""
        real = torch.arange(work.rows.shape[1], device=x.device) < work.num_rows[:, None]
        if layer == 0:
            return real
        answer = work.rows >= store.prompt_length[:, None]
        prompt_due, answer_due = (
            (store.passes % period == 0)[:, None] for period in (self.prompt_every, self.answer_every)
        )
        redone = real & torch.where(answer, answer_due, prompt_due)
        between = real & answer & ~answer_due
        if self.share == 0.0 or not bool(between.any()):
            return redone
        likeness = _likeness(block, layer, x, Some.of(between, work), store)
        budget = (self.share * between.sum(-1).double()).floor().long()
        order = torch.sort(likeness, dim=-1, stable=True).indices
        places = torch.arange(order.shape[1], device=x.device).expand_as(order)
        return redone | between & (torch.empty_like(order).scatter(1, order, places) < budget[:, None])


@dataclass(frozen=True, slots=True)
class Some:
    """Some rows of a pass, packed."""

    places: Int[Tensor, "b n"]  # where they stand among the rows of the pass, padded with any of these
    slots: Int[Tensor, "b n"]  # where they stand on the canvas
    real: Bool[Tensor, "b n"]  # False on padding

    @classmethod
    def of(cls, flags: Bool[Tensor, "b r"], work: ForwardPlan) -> "Some":
        places, count = pack(flags)
        return cls(
            places, work.rows.gather(1, places), torch.arange(places.shape[1], device=count.device) < count[:, None]
        )

    def among(self, rows: Shaped[Tensor, "b r k"]) -> Shaped[Tensor, "b n k"]:
        """These rows out of all rows of the pass."""
        return _at(rows, self.places)

    def put(self, kept: Tensor, fresh: Tensor) -> None:
        """Write these rows, (b, n, ...), to their slots of what is kept, (b, l, ...); padding is left out."""
        kept[self.real.nonzero()[:, 0], self.slots[self.real]] = fresh[self.real]


class FeatureStore(KVStore):
    """Per layer and slot: keys, values, and what attention and feed added; per row: the forward passes it has had."""

    def __init__(self, num_rows: int, num_slots: int, keeps: bool, prompt_length: Int[Tensor, " b"]) -> None:
        super().__init__(num_rows, num_slots, keeps, prompt_length)
        self.added: list[tuple[Tensor, Tensor]] = []  # per layer: by attention and by feed, (b, l, c) each
        self.passes = torch.zeros_like(prompt_length)
        self.redone = torch.zeros_like(prompt_length)  # rows redone in the pass under way, summed over its layers

    def make_room(self, layer: int, block: Block, like: Float[Tensor, "b r c"]) -> None:
        """For a layer that is run for the first time."""
        if layer == len(self.added):
            rows, slots = self.computed_for.shape
            size = (rows, block.num_key_heads, slots, block.head_size)
            self.keys.append(like.new_zeros(size))
            self.values.append(like.new_zeros(size))
            self.added.append(
                (like.new_zeros(rows, slots, like.shape[-1]), like.new_zeros(rows, slots, like.shape[-1]))
            )

    def count(self, layer: int, some: Some) -> None:
        """Note how many rows a layer redoes."""
        self.redone = some.real.sum(-1) + (self.redone if layer else 0)

    def computed(self, work: ForwardPlan) -> Int[Tensor, " b"]:
        return -(-self.redone // len(self.added))

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        """A pass is over. No slot counts as computed for its token: most layers may not have seen it yet."""
        self.passes = self.passes + 1

    def take_rows(self, rows: Int[Tensor, " n"]) -> "FeatureStore":
        taken = super().take_rows(rows)
        assert isinstance(taken, FeatureStore)
        taken.passes, taken.redone = self.passes[rows], self.redone[rows]
        taken.added = list(tree.take(tuple(self.added), rows))
        return taken

    def join_rows(self, other: KVStore) -> "FeatureStore":
        joined = super().join_rows(other)
        assert isinstance(joined, FeatureStore) and isinstance(other, FeatureStore)
        joined.passes = torch.cat((self.passes, other.passes))
        joined.redone = torch.cat((self.redone, other.redone))
        joined.added = list(tree.join(self._added_as(other), other._added_as(self)))
        return joined

    def _added_as(self, other: "FeatureStore") -> tuple[tuple[Tensor, Tensor], ...]:
        """What was added, zeros if this store has not run yet and the other one has."""
        if self.added:
            return tuple(self.added)
        size = self.computed_for.shape
        return tuple((a.new_zeros(*size, a.shape[-1]), f.new_zeros(*size, f.shape[-1])) for a, f in other.added)


def _likeness(
    block: Block, layer: int, x: Float[Tensor, "b r c"], some: Some, store: FeatureStore
) -> Float[Tensor, "b r"]:
    """Cosine of new and kept values of some rows, infinite elsewhere; the new ones are kept."""
    fresh, kept = block.values(some.among(x)).transpose(1, 2), store.values[layer].transpose(1, 2)
    before = _at(kept.flatten(2), some.slots)
    wide = torch.promote_types(x.dtype, torch.float32)
    cosine = functional.cosine_similarity(fresh.flatten(2).to(wide), before.to(wide), dim=-1)
    some.put(kept, fresh)
    spread = cosine.new_full(x.shape[:2], float("inf"))
    spread[some.real.nonzero()[:, 0], some.places[some.real]] = cosine[some.real]
    return spread


def _at(rows: Shaped[Tensor, "b r k"], places: Int[Tensor, "b n"]) -> Shaped[Tensor, "b n k"]:
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))
