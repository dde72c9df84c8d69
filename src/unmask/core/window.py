"""Where a step may act.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """The slots a schedule opens at one step."""

    open: Bool[Tensor, "b l"]  # answer slots a move may touch, masked or committed
    visible: Bool[Tensor, "b l"]  # slots that exist for the model at this step
    must: Bool[Tensor, "b l"]  # slots of which at least one has to be committed
    age: Int[Tensor, " b"]  # steps since this window was opened, 0 = just opened
    group: Int[Tensor, "b l"] | None = None  # `must` holds for each group on its own; None = one group
    blocks: Int[Tensor, "b l"] | None = None  # block of every slot, where the schedule cuts blocks (caches ask)

    @cached_property
    def first(self) -> Int[Tensor, " b"]:
        """Leftmost open slot (the canvas length in a row without any)."""
        found = self.open.to(torch.int8).argmax(-1)
        return torch.where(self.open.any(-1), found, self.open.shape[-1])
