"""dKV-Cache: freeze a slot one step after it was decided.

Source: Ma et al., dKV-Cache (arXiv 2505.15781), the variant with periodic refreshes, and its released code. Deviates:
with a shifted model (Dream) the row left of every slot asked about is recomputed, because it speaks for the slot; the
code has three settings of its own for that. Any method may choose the slots, the code knows the baselines only.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool
from torch import Tensor

from unmask.caches.base import CachePolicy, Memory
from unmask.core.state import DenoisingState
from unmask.core.window import Window


@dataclass(frozen=True, slots=True)
class Delayed(CachePolicy):
    """Recompute masked slots and those decided at the step before, and everything now and then (approximate).

    Everything is recomputed at the first two steps of a window and at every `every`-th. A slot decided at the step
    before needs no rule of its own: what is stored was computed for a mask, and the loop freezes no such slot.

    A sliding window counts as just opened at every step that moves it; `since="start"` saves work there too.
    """

    every: int = 8  # steps from one recomputation of everything to the next; 1 = always
    since: Literal["window", "start"] = (
        "window"  # what steps are counted from: the window's opening, the answer's start
    )

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1 step: got {self.every}")
        if self.since not in ("window", "start"):
            raise ValueError(f'since must be "window" or "start": got "{self.since}"')

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"]:
        age = window.age if self.since == "window" else state.step
        due = (age <= 1) | (age % self.every == 0)
        return ~state.masked & ~due[:, None]
