"""Schedules: which slots are open at a step. Computed from the state alone, so decoding may resume from any step.

Shape letters: b batch rows, l canvas slots, k blocks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.registry import Registry

Memory = Any


class Schedule:
    """Where a step may act. Subclasses are frozen dataclasses; what they remember is a separate value."""

    grows: ClassVar[bool] = False  # does the visible canvas change size between steps? (caches ask)

    def begin(self, state: DenoisingState) -> Memory:
        """First memory; None when the state says everything."""
        return None

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        """The window of this step. A row whose window holds no masked slot is finished as it stands."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Whole(Schedule):
    """Open the whole answer at every step: pure diffusion, any order."""

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        return Window(state.answer, state.exists, state.answer & state.masked, state.step)


@dataclass(frozen=True, slots=True)
class Sequential(Schedule):
    """Open one block after another, left to right, any order inside (semi-autoregressive).

    Blocks are aligned to the end of the prompt; the last one may be short; blocks without a slot to fill are passed
    over. With `block_steps` a block is left after that many steps even if masks remain; what remains may be filled by
    the opening step of a later block and by no other, so an answer can end with masks (Fast-dLLM's dual cache of 2026
    does this; see docs/compat.md).

    Source: Nie et al., LLaDA (arXiv 2502.09992), section 2.4.
    """

    block_length: int = 32  # slots
    block_steps: int | None = None  # compat: None = stay until the block is full

    def __post_init__(self) -> None:
        if self.block_length < 1:
            raise ValueError(f"block_length must be at least 1: got {self.block_length}")
        if self.block_steps is not None and self.block_steps < 1:
            raise ValueError(f"block_steps must be at least 1 or None: got {self.block_steps}")

    def blocks(self, state: DenoisingState) -> Int[Tensor, "b l"]:
        """Block index of every slot; negative for the prompt."""
        return (state.slots - state.prompt_length[:, None]).div(self.block_length, rounding_mode="floor")

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        blocks = self.blocks(state)
        if self.block_steps is not None:
            return self._limited(state, blocks)
        current = torch.where(state.masked, blocks, state.num_slots).amin(-1, keepdim=True)
        opened = _next_step(state, blocks < current)
        inside = state.answer & (blocks == current)
        return Window(inside, state.exists, inside & state.masked, state.step - opened)

    def _limited(self, state: DenoisingState, blocks: Int[Tensor, "b l"]) -> Window:
        """Block k ends when it is full or has had `block_steps` steps, whichever comes first."""
        assert self.block_steps is not None, "only called with a limit"
        opened = torch.zeros_like(state.step)
        current, current_opened = torch.full_like(state.step, -1), opened
        for block in range(int(blocks.max()) + 1):
            inside = state.answer & (blocks == block)
            late = (state.masked | (state.committed_at >= (opened + self.block_steps)[:, None])) & inside
            last = torch.where(inside, state.committed_at, -1).amax(-1)
            ended = torch.where(late.any(-1), opened + self.block_steps, torch.maximum(last + 1, opened))
            now = (opened <= state.step) & (state.step < ended) & (current < 0)
            current, current_opened = torch.where(now, block, current), torch.where(now, opened, current_opened)
            opened = ended
        age = state.step - current_opened
        inside = state.answer & (blocks == current[:, None])
        leftover = state.masked & (blocks < current[:, None]) & (age == 0)[:, None]
        inside = (inside | leftover) & (current >= 0)[:, None]
        return Window(inside, state.exists, inside & state.masked, age)


def _next_step(state: DenoisingState, before: Tensor) -> Int[Tensor, " b"]:
    """The step after the last commit among the slots `before`; 0 where there was none."""
    return torch.where(before, state.committed_at, -1).amax(-1) + 1


SCHEDULES: Registry[Schedule] = Registry(
    "schedule", "unmask.schedules", {"whole": Whole, "sequential": Sequential}, Schedule
)
