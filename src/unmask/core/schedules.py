"""Schedules: which slots are open at a step. Computed from the state alone, so decoding may resume from any step.

Shape letters: b batch rows, l canvas slots, k blocks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.registry import Registry

Memory = Any
Alignment = Literal["prompt", "absolute"]


class Schedule:
    """Where a step may act. Subclasses are frozen dataclasses; what they remember is a separate value."""

    grows: ClassVar[bool] = False  # does the visible canvas change size between steps? (caches ask)
    overlaps: ClassVar[bool] = False  # do windows share slots? (methods that spread steps over windows ask)

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


class Blocks(Schedule):
    """Schedules that cut the canvas into blocks of `block_length`; the last one may be short.

    Blocks begin where the prompt ends, or at every multiple of their length from slot 0 on ("absolute": the first block
    then shares its slots with the end of the prompt), as the model was trained.
    """

    __slots__ = ()
    block_length: int
    align: Alignment

    def blocks(self, state: DenoisingState) -> Int[Tensor, "b l"]:
        """Block index of every slot; the prompt lies in block -1 and before, or in blocks of its own."""
        first = state.prompt_length[:, None] if self.align == "prompt" else 0
        return (state.slots - first).expand_as(state.tokens).div(self.block_length, rounding_mode="floor")

    def _check(self) -> None:
        if self.block_length < 1:
            raise ValueError(f"block_length must be at least 1: got {self.block_length}")
        if self.align not in ("prompt", "absolute"):
            raise ValueError(f'align must be "prompt" or "absolute": got "{self.align}"')


@dataclass(frozen=True, slots=True)
class Sequential(Blocks):
    """Open one block after another, left to right, any order inside (semi-autoregressive).

    Blocks without a slot to fill are passed over. With `block_steps` a block is left after that many steps even if
    masks remain; what remains may be filled by the opening step of a later block and by no other, so an answer can end
    with masks (Fast-dLLM's dual cache of 2026 does this; see docs/compat.md).

    Source: Nie et al., LLaDA (arXiv 2502.09992), section 2.4.
    """

    block_length: int = 32  # slots
    block_steps: int | None = None  # compat: None = stay until the block is full
    align: Alignment = "prompt"  # where blocks are counted from

    def __post_init__(self) -> None:
        self._check()
        if self.block_steps is not None and self.block_steps < 1:
            raise ValueError(f"block_steps must be at least 1 or None: got {self.block_steps}")

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        blocks = self.blocks(state)
        if self.block_steps is not None:
            return self._limited(state, blocks)
        current = torch.where(state.masked, blocks, state.num_slots).amin(-1, keepdim=True)  # a row that is done: none
        opened = _next_step(state, blocks < current)
        inside = state.answer & (blocks == current)
        return Window(inside, state.exists, inside & state.masked, state.step - opened)

    def _limited(self, state: DenoisingState, blocks: Int[Tensor, "b l"]) -> Window:
        """Block k ends when it is full or has had `block_steps` steps, whichever comes first."""
        assert self.block_steps is not None, "only called with a limit"
        opened = torch.zeros_like(state.step)
        current, current_opened = torch.full_like(state.step, -1), opened
        for block in range(max(int(blocks.min()), 0), int(blocks.max()) + 1):
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


@dataclass(frozen=True, slots=True)
class Sliding(Schedule):
    """Open the next `length` slots behind everything that is decided from the left on; the window moves at each commit.

    Source: DC-Leap's verification window. Deviates: given text inside the answer is passed over.
    """

    overlaps: ClassVar[bool] = True
    length: int | None = 128  # L, slots; None = half of the row's answer

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise ValueError(f"length must be at least 1, or None for half of the answer: got {self.length}")

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        first = torch.where(state.masked, state.slots, state.num_slots).amin(-1, keepdim=True)
        length = (state.answer.sum(-1, keepdim=True) // 2).clamp_min(1) if self.length is None else self.length
        inside = state.answer & (state.slots >= first) & (state.slots < first + length)
        age = state.step - _next_step(state, state.slots < first)
        return Window(inside, state.exists, inside & state.masked, age)


@dataclass(frozen=True, slots=True)
class Pipelined(Blocks):
    """Open the next block before the last one is finished (D2F), so that several are decoded at once.

    A block is appended, at most one per step, once a share `add` of the block before it is decided; it has to commit
    something at every step once a share `force` of the block before it is decided. Slots of later blocks do not exist
    for the model yet. With `add=1` blocks follow one another, as in plain block diffusion. An end token, committed
    anywhere, stops the appending unless `end_stops` is off.

    Source: Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), section 3.3. Deviates: the last block may be
    short, where the released code drops the remainder of the length.
    """

    grows: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True
    block_length: int = 32  # slots
    add: float = 0.1  # tau_add, share of a block; the bound itself appends
    force: float = 0.95  # tau_act, share of a block; the bound itself forces
    align: Alignment = "prompt"  # where blocks are counted from
    end_stops: bool = True  # no further block once an end token has been committed

    def __post_init__(self) -> None:
        self._check()
        for name, share in (("add", self.add), ("force", self.force)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be a share of a block, 0 to 1, else decoding would stall: got {share}")

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        blocks = self.blocks(state)
        opened, forced = self._opened(state, blocks)
        current = torch.where(state.masked, blocks, state.num_slots).amin(-1, keepdim=True)
        inside = state.answer & opened & (blocks >= current)
        age = state.step - _next_step(state, state.answer & (blocks < current))
        return Window(inside, opened & state.exists, inside & state.masked & forced, age, group=blocks)

    def _opened(
        self, state: DenoisingState, blocks: Int[Tensor, "b l"]
    ) -> tuple[Bool[Tensor, "b l"], Bool[Tensor, "b l"]]:
        """Slots of the appended blocks, and of those that are obliged to commit, worked out from the commit steps.

        Block k + 1 is appended one step after block k, or when the share `add` of block k had been decided, whichever
        is later; never after its own first commit (a candidate canvas may have been ahead), and never after an end.
        """
        decided = state.answer & ~state.masked
        never = state.num_slots + state.step + 1
        ended = never  # the step at which an end token was committed
        if self.end_stops and state.end_ids:
            ends = torch.isin(state.tokens, torch.tensor(state.end_ids, device=state.tokens.device)) & decided
            ended = torch.where(ends, state.committed_at, never[:, None]).amin(-1)
        opened, forced = state.slots < state.prompt_length[:, None], torch.zeros_like(state.masked)
        appended = torch.full_like(state.step, -1)  # the step at which the block before was appended
        reached = torch.zeros_like(state.step)  # the step from which on its share `add` was decided
        share = torch.ones_like(state.step, dtype=torch.float64)  # how much of it is decided
        for block in range(max(int(blocks.min()), 0), int(blocks.max()) + 1):
            inside = state.answer & (blocks == block)
            there = inside.any(-1)
            when = torch.maximum(appended + 1, reached)
            when = torch.where(when > ended, never, when)
            begun = torch.where(inside & decided, state.committed_at, never[:, None]).amin(-1)
            appended = torch.where(there, torch.minimum(when, begun), appended)
            opened = opened | (blocks == block) & (appended <= state.step)[:, None]
            forced = forced | inside & (share >= self.force)[:, None]
            size, left = inside.sum(-1), (inside & state.masked).sum(-1)
            share = torch.where(there, 1.0 - left.double() / size.clamp_min(1), share)
            reached = torch.where(there, self._reached(state, inside & decided, size, never), reached)
        return opened, forced

    def _reached(
        self, state: DenoisingState, decided: Bool[Tensor, "b l"], size: Int[Tensor, " b"], never: Int[Tensor, " b"]
    ) -> Int[Tensor, " b"]:
        """The first step that began with the share `add` of a block decided."""
        wanted = self._enough(size)
        order = torch.where(decided, state.committed_at + 1, never[:, None]).sort(-1).values
        at = order.gather(1, (wanted - 1).clamp_min(0)[:, None])[:, 0]
        return torch.where(wanted > 0, at, 0)

    def _enough(self, size: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The smallest number of decided slots whose share of a block of `size` slots reaches `add`."""
        counts = torch.arange(int(size.max()) + 1, device=size.device)
        passes = 1.0 - (size[:, None] - counts).double() / size.clamp_min(1)[:, None] >= self.add
        return passes.int().argmax(-1)


SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    "unmask.schedules",
    {"whole": Whole, "sequential": Sequential, "sliding": Sliding, "pipelined": Pipelined},
    Schedule,
)
