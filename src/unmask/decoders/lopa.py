"""LoPA: try several tokens ahead, each on a canvas of its own, and keep the canvas the model is surest about.

Source: LoPA, lookahead parallel decoding (code: zhijie-group/LoPA, scale_dream_d2f). There it runs on D2F, that is,
with `inner=threshold(strict=True)` on the schedule `pipelined` and with the cache `finished-blocks`; here the inner
method, the schedule and the cache are free, block-causal or not.

Deviates: `width` canvases are tried beside the plain one; the released code means to try one fewer than its
`branching_factor` and tries just as many. All candidate canvases of all rows make one batch, so a step is one forward
pass; `rows_computed` counts all of them.

Shape letters: b batch rows, l canvas slots, c candidate canvases of all rows, w proposals, s canvas plus extra slots.
"""

from dataclasses import dataclass, replace
from math import inf

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core import rows as tree
from unmask.core.canvas import Canvas
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.compound import Compound, decision_of
from unmask.decoders.selection import Score, check_score, rank, score_of, top

NOTHING = -1  # in place of a slot: no proposal, or the canvas as it is
SETTLED = 1.0  # score of a canvas without masked slots, and of the plain canvas as a proposal


@dataclass(frozen=True, slots=True)
class Ahead:
    """What one step leaves to the next."""

    inner: Memory
    slots: Int[Tensor, "b w"]  # proposals, the surest first, NOTHING behind the last
    tokens: Int[Tensor, "b w"]
    scores: Float[Tensor, "b w"]  # when they were proposed
    chances: Float[Tensor, "b w"]  # probability of the tokens then


@dataclass(frozen=True, slots=True)
class Lopa(Compound):
    """Let another method go on from the best of several canvases, which differ by one token tried ahead.

    A step leaves its surest slots that the inner method did not commit as proposals. The next one shows the canvas as
    it is and one copy per proposal, keeps the canvas with the best score, commits the token that makes it different,
    and whatever the inner method commits on it.
    """

    inner: Decoder  # the method that commits; it may not take tokens back
    width: int = 3  # k, canvases beside the plain one, at most; 0 = the inner method alone
    share: float = 1.0  # q, which part of a canvas's masked open slots is averaged, the least sure; at least one slot
    alpha: float = 0.0  # weight of a proposal's own score, 0 to 1; the rest is the score of its canvas
    score: Score = "entropy"  # how sure a slot is; a canvas without masked slots has 1, which beats every entropy

    def __post_init__(self) -> None:
        check_score("score", self.score)
        if self.width < 0:
            raise ValueError(f"width must be a number of canvases, or 0 for none: got {self.width}")
        for name, part in (("share", self.share), ("alpha", self.alpha)):
            if not 0.0 <= part <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1: got {part}")

    @property
    def parts(self) -> tuple[Decoder]:
        return (self.inner,)

    @property
    def branches(self) -> int:
        return 1 + self.width

    @property
    def overreaches(self) -> bool:  # type: ignore[override]
        return self.branches > 1 or self.inner.overreaches  # a token tried ahead may fill the window it came from

    def quarrel(self) -> str:
        if not self.inner.revokes:
            return ""
        return (
            f"Lopa cannot hold {type(self.inner).__name__}: that takes tokens back, and its bound on how many knows "
            'nothing of tokens tried ahead. Use a method that does not, such as "threshold".'
        )

    def begin(self, state: DenoisingState) -> Ahead:
        nothing = torch.full((state.num_rows, self.width), NOTHING, device=state.tokens.device)
        zeros = torch.zeros_like(nothing, dtype=torch.float32)
        return Ahead(self.inner.begin(state), nothing, nothing, zeros, zeros)

    def fork(self, state: DenoisingState, memory: Ahead) -> tuple[DenoisingState, Int[Tensor, " c"]]:
        owner, number = candidates(memory)
        tried = state.slots == _of_candidate(memory.slots, owner, number, NOTHING)[:, None]
        plain = state.take(owner)
        token = _of_candidate(memory.tokens, owner, number, NOTHING)
        variant = replace(
            plain,
            tokens=torch.where(tried, token[:, None], plain.tokens),
            masked=plain.masked & ~tried,
            committed_at=torch.where(tried, plain.step[:, None] - 1, plain.committed_at),
        )
        return variant, owner

    def view(self, state: DenoisingState, window: Window, memory: Ahead) -> Canvas:
        return self.inner.view(state, window, tree.take(memory.inner, candidates(memory)[0]))

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        scored = functional.pad(state.masked & window.open, (0, canvas.extra))
        return self.inner.asks(state, window, canvas) | scored

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Ahead
    ) -> tuple[Move, Ahead]:
        owner, number = candidates(memory)
        merit = self.merit(state, window, prediction, _of_candidate(memory.scores, owner, number, SETTLED))
        won = best_of_each(merit, owner, number, self.width)
        state, window, prediction = tree.take((state, window, prediction), won)
        move, inner = decision_of(self.inner, state, window, prediction, memory.inner)
        ahead = self.propose(state, window, prediction, move.commit, inner)
        tried = state.slots == _of_candidate(memory.slots, owner[won], number[won], NOTHING)[:, None]
        tokens = torch.where(tried, state.tokens, move.tokens)
        chance = _of_candidate(memory.chances, owner[won], number[won], 0.0)[:, None]
        told = torch.where(tried, chance, 0.0)
        return Move(move.commit | tried, tokens, move.revoke, branch=number[won], chances=told), ahead

    def merit(
        self, state: DenoisingState, window: Window, prediction: Prediction, proposed: Float[Tensor, " c"]
    ) -> Float[Tensor, " c"]:
        """Score of every candidate canvas: how sure its least sure slots are, and how sure its proposal was."""
        left = state.masked & window.open
        count = (left.sum(-1).double() * self.share).floor().long().clamp_min(1)
        sure = score_of(self.score, prediction, state.num_slots)
        lowest = torch.where(top(-sure, left, count), sure, 0.0).sum(-1) / count
        lowest = torch.where(left.any(-1), lowest, SETTLED)
        return self.alpha * proposed.to(lowest.dtype) + (1.0 - self.alpha) * lowest

    def propose(
        self, state: DenoisingState, window: Window, prediction: Prediction, commit: Bool[Tensor, "b l"], inner: Memory
    ) -> Ahead:
        """The surest slots that stay masked, with their candidates."""
        among = self.eligible(state, window, prediction) & ~commit
        sure = score_of(self.score, prediction, state.num_slots)
        slots = rank(sure, among).argsort(-1)[:, : self.width]
        slots = functional.pad(slots, (0, self.width - slots.shape[1]))  # a canvas may have fewer slots
        exists = torch.arange(self.width, device=slots.device) < among.sum(-1, keepdim=True)
        tokens = prediction.tokens.gather(1, slots)
        chances = prediction.confidence.gather(1, slots).float()
        return Ahead(inner, torch.where(exists, slots, NOTHING), tokens, sure.gather(1, slots).float(), chances)


def candidates(memory: Ahead) -> tuple[Int[Tensor, " c"], Int[Tensor, " c"]]:
    """The row of every candidate canvas, and its number there, 0 = the row as it is."""
    rows = torch.arange(memory.slots.shape[0], device=memory.slots.device)
    owner = rows.repeat_interleave(1 + (memory.slots != NOTHING).sum(-1))
    return owner, torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)


def best_of_each(
    merit: Float[Tensor, " c"], owner: Int[Tensor, " c"], number: Int[Tensor, " c"], width: int
) -> Int[Tensor, " b"]:
    """Every row's best candidate; of equals the surest proposal, and the row as it is only when nothing is as good."""
    rows = int(owner[-1]) + 1
    order = (number - 1) % (width + 1)  # the plain canvas comes last
    table = merit.new_full((rows, width + 1), -inf)
    table[owner, order] = merit
    first = torch.searchsorted(owner, torch.arange(rows, device=owner.device))
    return first + (table.argmax(-1) + 1) % (width + 1)


def _of_candidate(values: Tensor, owner: Int[Tensor, " c"], number: Int[Tensor, " c"], plain: int | float) -> Tensor:
    """A value per proposal, (b, w), for every candidate canvas; another one for the rows as they are."""
    return functional.pad(values, (1, 0), value=plain)[owner, number]
