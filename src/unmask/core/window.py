"""Where a step may act.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.state import DenoisingState


@dataclass(frozen=True)
class Window:
    """The slots a schedule opens at one step."""

    open: Bool[Tensor, "b l"]  # answer slots a move may touch, masked or committed
    visible: Bool[Tensor, "b l"]  # slots that exist for the model; open ones do, except on causal models
    must: Bool[Tensor, "b l"]  # slots of which at least one has to be committed
    age: Int[Tensor, " b"]  # steps since this window was opened, 0 = just opened
    group: Int[Tensor, "b l"] | None = None  # `must` holds for each group on its own; None = one group
    blocks: Int[Tensor, "b l"] | None = None  # block of every slot, where the schedule cuts blocks (caches ask)

    polished: bool = False  # full, it stays open until a step leaves it as it is (methods that edit)

    def unfinished(self, state: DenoisingState) -> Bool[Tensor, " b"]:
        """Rows in which this window needs another step."""
        pending = state.masked
        if self.polished:
            pending = pending | (state.committed_at >= 0) & (state.committed_at == state.step[:, None] - 1)
        return (self.open & pending).any(-1)

    @cached_property
    def first(self) -> Int[Tensor, " b"]:
        """Leftmost open slot (the canvas length in a row without any)."""
        found = self.open.to(torch.int8).argmax(-1)
        return torch.where(self.open.any(-1), found, self.open.shape[-1])
