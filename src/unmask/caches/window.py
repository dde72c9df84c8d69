"""A cache for windows that slide: recompute the window, freeze everything around it, refresh by progress.

Source: ours, for DC-Leap, whose authors combine it with another cache and give no settings. A window that moves at
every step is never old, so caches that refresh whenever a window opens save nothing there; this one counts slots.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from unmask.caches.base import CachePolicy, Memory
from unmask.core.state import DenoisingState
from unmask.core.window import Window


@dataclass(frozen=True, slots=True)
class Windowed(CachePolicy):
    """Freeze what lies outside the window until another `refresh` slots have been decided (approximate).

    Two kinds of slots outside are recomputed nevertheless, as with every cache: those the method asks about (DC-Leap's
    look-ahead), and those that show another token than the stored one, which are the slots decided at the step before
    and changed drafts. With DC-Leap that makes one stretch of slots, from where the previous window began to the end
    of the look-ahead.
    """

    refresh: int = 32  # R, slots; everything is recomputed when the number of decided slots has passed a multiple of it

    def __post_init__(self) -> None:
        if self.refresh < 1:
            raise ValueError(f"refresh must be at least 1 slot: got {self.refresh}")

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"]:
        decided = state.answer & ~state.masked
        now = decided.sum(-1)
        before = (decided & (state.committed_at < state.step[:, None] - 1)).sum(-1)
        passed = now // self.refresh > before // self.refresh
        due = passed | (self.refresh == 1)  # a step that only takes tokens back passes nothing
        return ~window.open & ~due[:, None]
