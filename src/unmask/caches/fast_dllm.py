"""No cache, and the two block-wise caches of Fast-dLLM.

Source: Wu et al., Fast-dLLM (arXiv 2505.22618), section 3.2. Deviates: with a shifted model (Dream) the row left of the
window is recomputed too, because it speaks for the window's first slot; the released code commits that slot unseen
instead (decoders have a compat switch for it).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Bool, Int
from torch import Tensor

from unmask.caches.base import NO_TOKEN, CachePolicy, KVStore, Memory
from unmask.core.state import DenoisingState
from unmask.core.window import Window


class StaleStore(KVStore):
    """A store whose values stand in whatever token they were computed for."""

    def known(self, shown: Int[Tensor, "b l"]) -> Bool[Tensor, "b l"] | None:
        return self.computed_for != NO_TOKEN


@dataclass(frozen=True, slots=True)
class NoCache(CachePolicy):
    """Recompute every slot at every step (exact for every model)."""

    keeps: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Prefix(CachePolicy):
    """Freeze what lies left of the window since the window was opened (approximate for bidirectional models)."""

    refresh: int | None = None  # also recompute everything every so many steps of a window; 1 = always

    def __post_init__(self) -> None:
        _check_refresh(self.refresh)

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"]:
        return (state.slots < window.first[:, None]) & ~_due(window, self.refresh)


@dataclass(frozen=True, slots=True)
class Dual(CachePolicy):
    """Freeze what lies outside the window, on both sides, since the window was opened (approximate)."""

    refresh: int | None = None  # also recompute everything every so many steps of a window; 1 = always
    compat: Literal["none", "fast-dllm"] = "none"  # released code: freeze also what shows another token than was stored

    def __post_init__(self) -> None:
        _check_refresh(self.refresh)

    @property
    def store(self) -> type[KVStore]:
        return KVStore if self.compat == "none" else StaleStore

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"]:
        return ~window.open & ~_due(window, self.refresh)


def _due(window: Window, refresh: int | None) -> Bool[Tensor, "b 1"]:
    """Rows whose slots are all recomputed at this step."""
    due = window.age == 0 if refresh is None else window.age % refresh == 0
    return due[:, None]


def _check_refresh(refresh: int | None) -> None:
    if refresh is not None and refresh < 1:
        raise ValueError(f"refresh must be at least 1, or None for once per window: got {refresh}")
