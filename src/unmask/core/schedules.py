"""Schedules: which slots are open at a step. Computed from the state alone, so decoding may resume from any step.

Shape letters: b batch rows, l canvas slots, k blocks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.state import DenoisingState
from unmask.core.stopping import first_end, is_any
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

    With `polish` a full block stays open until a step leaves it as it is, for methods that edit; blocks that begin
    behind the end of the answer do not.

    Source: Nie et al., LLaDA (arXiv 2502.09992), section 2.4.
    """

    block_length: int = 32  # slots
    block_steps: int | None = None  # compat: None = stay until the block is full
    align: Alignment = "prompt"  # where blocks are counted from
    polish: bool = False  # True: a block that is full has steps until one changes nothing, one at least

    def __post_init__(self) -> None:
        self._check()
        if self.block_steps is not None and self.block_steps < 1:
            raise ValueError(f"block_steps must be at least 1 or None: got {self.block_steps}")
        if self.block_steps is not None and self.polish:
            raise ValueError("block_steps ends a block at a step, polish at none: leave one of them out")

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        blocks = self.blocks(state)
        if self.block_steps is not None:
            return self._limited(state, blocks)
        if self.polish:
            return self._polished(state, blocks)
        current = torch.where(state.masked, blocks, state.num_slots).amin(-1, keepdim=True)  # a row that is done: none
        opened = _next_step(state, blocks < current)
        inside = state.answer & (blocks == current)
        return Window(inside, state.exists, inside & state.masked, state.step - opened, blocks=blocks)

    def _polished(self, state: DenoisingState, blocks: Int[Tensor, "b l"]) -> Window:
        """A block is left at the second step behind the last change in it: the first of them changed nothing."""
        end = first_end(state, state.end_ids)[:, None]
        final = torch.where(state.slots == end, blocks, -1).amax(-1, keepdim=True)
        polishes = (final < 0) | (blocks <= final) | state.infills[:, None]
        decided = state.committed_at >= 0
        fresh = decided & polishes & (state.committed_at == state.step[:, None] - 1)
        current = torch.where(state.masked | fresh, blocks, state.num_slots).amin(-1, keepdim=True)
        left = torch.where(decided & (blocks < current), state.committed_at + polishes.long(), -1).amax(-1) + 1
        inside = state.answer & (blocks == current)
        age = (state.step - left).clamp_min(0)
        return Window(inside, state.exists, inside & state.masked, age, blocks=blocks, polished=True)

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
        return Window(inside, state.exists, inside & state.masked, age, blocks=blocks)


def _next_step(state: DenoisingState, before: Tensor) -> Int[Tensor, " b"]:
    """The step after the last commit among the slots `before`; 0 where there was none."""
    return torch.where(before, state.committed_at, -1).amax(-1) + 1


@dataclass(frozen=True, slots=True)
class Sliding(Schedule):
    """Open the next `length` slots behind everything that is decided from the left on.

    The window moves whenever its first slot is decided, and counts as just opened then. Caches that recompute
    everything when a window opens (`prefix`, `dual`, `delayed`) are right here too but save nothing with a method that
    always decides the first slot; `window` is the cache for this schedule.

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
    anywhere, stops the appending unless `end_stops` is off or there is given text behind the first hole (infilling).

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
        number = _numbers(state.answer, blocks)
        size, left = (_totals(number, flags) for flags in (state.answer, state.answer & state.masked))
        forced = (1.0 - left / size.clamp_min(1.0) >= self.force).gather(1, (number - 1).clamp_min(0))
        waiting = state.answer & (number > self._last(state, number, size))
        there = blocks < torch.where(waiting, blocks, state.num_slots).amin(-1, keepdim=True)
        current = torch.where(state.masked, blocks, state.num_slots).amin(-1, keepdim=True)
        inside = state.answer & there & (blocks >= current)
        age = state.step - _next_step(state, state.answer & (blocks < current))
        must = inside & state.masked & forced
        return Window(inside, there & state.exists, must, age, group=blocks, blocks=blocks)

    def _last(
        self, state: DenoisingState, number: Int[Tensor, "b l"], size: Float[Tensor, "b k"]
    ) -> Int[Tensor, "b 1"]:
        """Number of the last block that has been appended, worked out from the commit steps.

        A block with a commit is there, and so are all before it. The one behind has no commit, so it is the only one
        that may have been appended since: when enough of the last block had been decided, and no end token yet.
        """
        decided = state.answer & ~state.masked
        begun = torch.where(decided, number, 0).amax(-1, keepdim=True)
        until = self._ended(state, decided)[:, None]  # a step appends before it commits
        if self.add == 0.0:
            return torch.maximum(begun, until + 1)  # every step has appended one
        count = (decided & (number == begun) & (state.committed_at < until)).sum(-1, keepdim=True)
        of = size.gather(1, begun)
        return begun + (1.0 - (of - count) / of.clamp_min(1.0) >= self.add)

    def _ended(self, state: DenoisingState, decided: Bool[Tensor, "b l"]) -> Int[Tensor, " b"]:
        """The step that committed the first end token; the present one where none has."""
        if not self.end_stops or not state.end_ids:
            return state.step
        ends = is_any(state.tokens, state.end_ids) & decided & ~state.infills[:, None]
        return torch.where(ends, state.committed_at, state.step[:, None]).amin(-1)


@dataclass(frozen=True, slots=True)
class NextToken(Blocks):
    """Open the first undecided slot and show the model what stands left of it: autoregressive decoding.

    The schedule of causal models, and the only one they can follow. Every slot is a block of its own, and the open one
    does not exist for the model: its left neighbour speaks for it. With the cache `finished-blocks` a step computes
    that one row, once the rows of the prompt are stored.
    """

    grows: ClassVar[bool] = True
    block_length: ClassVar[int] = 1  # type: ignore[misc]
    align: ClassVar[Alignment] = "absolute"  # type: ignore[misc]

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        first = torch.where(state.masked, state.slots, state.num_slots).amin(-1, keepdim=True)
        inside = state.slots == first
        visible = state.exists & (state.slots < first)
        return Window(inside, visible, inside, torch.zeros_like(state.step), blocks=self.blocks(state))


def _numbers(answer: Bool[Tensor, "b l"], blocks: Int[Tensor, "b l"]) -> Int[Tensor, "b l"]:
    """Number of every answer slot's block among the blocks that have any, from 1 on; given slots: of the one before."""
    highest = torch.where(answer, blocks, -1).cummax(-1).values
    return (highest > functional.pad(highest, (1, 0), value=-1)[:, :-1]).cumsum(-1)


def _totals(number: Int[Tensor, "b l"], flags: Bool[Tensor, "b l"]) -> Float[Tensor, "b k"]:
    """How many of the flagged slots each block has, by its number; nothing at 0."""
    totals = torch.zeros(len(number), number.shape[1] + 1, dtype=torch.float64, device=number.device)
    return totals.scatter_add(1, number, flags.double())


SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    "unmask.schedules",
    {"whole": Whole, "sequential": Sequential, "sliding": Sliding, "pipelined": Pipelined, "next-token": NextToken},
    Schedule,
)
