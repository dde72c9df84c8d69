"""LEAP: commit early what the model keeps believing when it sees plausible futures of the other slots.

Source: LEAP, look-ahead early-convergence detection: idea, rule and bounds are published; code and the section that
defines the layout were not at hand. Each forward pass holds, behind the answer, the candidates that the step before
left for every masked slot of the window, and a replica of every masked slot: a second question about it, in whose
context candidates stand in the place of the other slots' masks (`superpose` lays them out). A slot is committed early
if both questions get the same answer.

Ours, for lack of a source: candidates see the answer and nothing else (`mode`); a replica sees a slot's candidates or
its mask, never both (`see_masks`); every masked slot has a replica as soon as another slot has a candidate
(`replicas`); a slot that no candidate reaches is not confirmed (`require_perturbation`); the confidence of the plain
context counts (`confidence`); commits of the base rule need no confirmation (`agree_all`), and neither does the one it
is obliged to; the layout for shifted models. docs/log.md has the figures. Several candidates of a slot weigh in
attention as they fall; a weight per key would need attention biases in canvas, caches and kernels, and
`max_candidates=1` is the cheap way to give each slot the weight of one token.

Deviates: the base rule lets `accept` itself pass (Fast-dLLM's threshold). Early commits are off above temperature 0:
the token is a draw there, two equal answers would prove little, and the base rule alone decides.

Shape letters: b batch rows, l canvas slots, c candidates of a slot, e extra slots, s canvas plus extra slots.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas, pack
from unmask.core.extras import KEY_ONLY, Extras, attach, replicas
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.compound import Compound, decision_of
from unmask.decoders.selection import force, top
from unmask.decoders.threshold import Threshold

LOOSEST = 0.01  # smallest `candidate`: a slot has fewer than 1 / candidate of them


@dataclass(frozen=True, slots=True)
class LookAhead:
    """What the step before thought possible, of slots that are still masked."""

    tokens: Int[Tensor, "b l c"]  # most likely first
    chances: Float[Tensor, "b l c"]  # probability of each; 0 = no candidate
    base: Memory


@dataclass(frozen=True, slots=True)
class Leap(Compound):
    """Commit what a base rule commits, and early what it does not yet: slots whose token survives a look ahead.

    A masked slot of which the last step gave some tokens more than `candidate` has these as its candidates. A slot is
    committed early if its confidence exceeds `early` and the model gives the same token again when it sees candidates
    in place of the other slots' masks. Candidates are used for one step, and extra slots are always recomputed, so
    every cache that takes extra slots goes with it. The base rule may be any method that only commits.
    """

    reshapes: ClassVar[bool] = True

    accept: float = 0.9  # phi, confidence that commits without a look ahead; not read if there is an `inner` rule
    early: float = 0.7  # tau, confidence above which an agreeing slot is committed; the bound itself fails
    candidate: float = 0.2  # eta, probability above which a token is a candidate; the bound itself fails, 1 = none
    inner: Decoder | None = None  # base rule; None = threshold(threshold=accept)
    mode: Literal["isolated", "mutual"] = "isolated"  # "mutual": candidates see the other slots' candidates, too
    see_masks: bool = False  # replicas also see the masks of slots that have candidates
    replicas: Literal["all", "candidates"] = "all"  # "candidates": only slots that have candidates are asked again
    require_perturbation: bool = True  # False: a slot that no other slot's candidate reaches counts as confirmed
    confidence: Literal["original", "lowest"] = "original"  # "lowest": `early` bounds both confidences
    agree_all: bool = False  # the base rule's commits have to agree, too, unless nothing else is left to commit
    ahead: bool = False  # also ask as many slots right of the window, so that the next one opens with candidates
    max_candidates: int | None = None  # candidates per slot, the most likely; None = all above `candidate`
    max_extra: int | None = None  # extra slots per row, at least half of them for candidates; None = any number

    def __post_init__(self) -> None:
        for name, bound in (("accept", self.accept), ("early", self.early)):
            if bound != bound:
                raise ValueError(f"{name} must be a number: got {bound}")
        if not self.candidate >= LOOSEST:
            raise ValueError(f"candidate must be at least {LOOSEST}, or too many tokens are: got {self.candidate}")
        if self.max_candidates is not None and self.max_candidates < 1:
            raise ValueError(f"max_candidates must be at least 1, or None for all: got {self.max_candidates}")
        if self.max_extra is not None and self.max_extra < 2:
            raise ValueError(f"max_extra must be at least 2, or None for any number: got {self.max_extra}")

    @property
    def rule(self) -> Decoder:
        """The base rule."""
        return self.inner or Threshold(self.accept)

    @property
    def parts(self) -> tuple[Decoder, ...]:
        return (self.rule,)

    @property
    def shows_plainly(self) -> bool:
        return False

    def quarrel(self) -> str:
        unfit = {"takes tokens back": self.rule.revokes, "adds slots of its own": self.rule.reshapes}
        what = next((what for what, holds in unfit.items() if holds), "")
        rule = type(self.rule).__name__
        way_out = 'Use a rule that only commits, such as "threshold", or "either" to have both.'
        return what and f"Leap cannot hold {rule}: it {what}. {way_out}"

    @property
    def width(self) -> int:
        """Most candidates that a slot can have: no more tokens than this can exceed `candidate` together."""
        most = max(ceil(1.0 / self.candidate) - 1, 0)
        return most if self.max_candidates is None else min(most, self.max_candidates)

    def begin(self, state: DenoisingState) -> LookAhead:
        return self._nothing(state, self.rule.begin(state))

    def view(self, state: DenoisingState, window: Window, memory: LookAhead) -> Canvas:
        canvas = self.rule.view(state, window, memory.base)
        undecided = state.masked & window.open
        kept = self._candidates(undecided, memory)
        about = undecided & _reached(kept.any(-1))
        if self.replicas == "candidates":
            about = about & kept.any(-1)
        if self.max_extra is not None and self.width:
            about = top(memory.chances[..., 0], about, self.max_extra - kept.sum((1, 2)))
        if not bool(about.any()):
            return canvas
        kept = kept & about.any(-1)[:, None, None]
        assert canvas.attends is None, "the base rule decides what is shown, not who sees whom"
        shown = replace(state, tokens=canvas.tokens)
        mutual = self.mode == "mutual"
        return superpose(shown, undecided, memory.tokens, kept, about, mutual=mutual, see_masks=self.see_masks)

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        num_slots = state.num_slots
        plain = Canvas(canvas.tokens[:, :num_slots], canvas.positions[:, :num_slots])
        asked = self.rule.asks(state, window, plain) | state.masked & window.open
        if self.ahead:
            last = torch.where(window.open, state.slots, -1).amax(-1, keepdim=True)
            size = window.open.sum(-1, keepdim=True)
            next_ones = (state.slots > last) & (state.slots <= last + size)
            asked = asked | state.masked & window.visible & next_ones
        return asked if canvas.targets is None else torch.cat((asked, canvas.targets >= 0), dim=1)

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: LookAhead
    ) -> tuple[Move, LookAhead]:
        plain = prediction.without_extras()
        move, base = decision_of(self.rule, state, window, plain, memory.base)
        if prediction.sampling.temperature > 0.0:
            return move, self._nothing(state, base)
        among = self.eligible(state, window, plain)
        again = torch.full_like(state.tokens, -1)
        if prediction.targets is not None:
            again = prediction.echo(prediction.tokens, -1)
        commit, doubted = move.commit, (again >= 0) & (again != plain.tokens)
        early = among & ~commit & ((again == plain.tokens) | self._taken_on_trust(state, window, memory))
        early = early & (self._trust(prediction, plain) > self.early)
        if self.agree_all:
            commit = force(plain.confidence, commit, commit & ~doubted | early, window)
        move = replace(move, commit=commit | early, tokens=torch.where(early, plain.tokens, move.tokens))
        return move, self._look_ahead(state.masked & ~move.commit, plain, state, base)

    def _taken_on_trust(self, state: DenoisingState, window: Window, memory: LookAhead) -> bool | Bool[Tensor, "b l"]:
        """Slots confirmed without being asked again."""
        if self.require_perturbation:
            return False
        return ~_reached(self._candidates(state.masked & window.open, memory).any(-1))

    def _trust(self, prediction: Prediction, plain: Prediction) -> Float[Tensor, "b l"]:
        """The confidence that `early` bounds."""
        if self.confidence == "original" or prediction.targets is None:
            return plain.confidence
        return torch.minimum(plain.confidence, prediction.echo(prediction.confidence, 1.0))

    def _candidates(self, undecided: Bool[Tensor, "b l"], memory: LookAhead) -> Bool[Tensor, "b l c"]:
        """Which of the remembered tokens are used: those of undecided slots, the likeliest if there is a cap."""
        kept = (memory.chances > 0.0) & undecided[..., None]
        if self.max_extra is None or not self.width:
            return kept
        room = (self.max_extra - undecided.sum(-1)).clamp_min(self.max_extra // 2)
        return top(memory.chances.flatten(1), kept.flatten(1), room).view_as(kept)

    def _look_ahead(
        self, left: Bool[Tensor, "b l"], plain: Prediction, state: DenoisingState, base: Memory
    ) -> LookAhead:
        """The likely tokens of the slots that were asked and are left."""
        if not self.width:
            return self._nothing(state, base)
        tokens, chances = plain.likeliest(self.width)
        missing = self.width - tokens.shape[-1]  # a vocabulary smaller than that
        tokens, chances = functional.pad(tokens, (0, missing)), functional.pad(chances, (0, missing))
        kept = (chances > self.candidate) & left[..., None] & (tokens != state.mask_id)
        return LookAhead(tokens, chances * kept, base)

    def _nothing(self, state: DenoisingState, base: Memory) -> LookAhead:
        size = (*state.tokens.shape, self.width)
        return LookAhead(state.tokens.new_zeros(size), torch.zeros(size, device=state.tokens.device), base)


def superpose(
    state: DenoisingState,
    undecided: Bool[Tensor, "b l"],
    tokens: Int[Tensor, "b l c"],
    kept: Bool[Tensor, "b l c"],
    about: Bool[Tensor, "b l"],
    *,
    mutual: bool = False,
    see_masks: bool = False,
) -> Canvas:
    """The canvas with candidates and replicas behind it; answer slots see neither.

    A candidate sees the answer slots at other positions. A replica sees the decided slots, the masks of undecided ones
    without candidates, and the candidates of the others; never a candidate of the slot it is about.

    Args:
        state: what the answer slots show.
        undecided: the slots that may have candidates.
        tokens, kept: what could stand in each slot; only kept ones are laid out.
        about: slots that are asked about again.
        mutual: candidates see what a replica of their slot sees.
        see_masks: replicas (and mutual candidates) also see the masks of slots with candidates.
    """
    num_slots, width = state.num_slots, tokens.shape[-1]
    replaced = undecided & kept.any(-1) & (not see_masks)
    seen = (~replaced)[:, None].expand(-1, num_slots, -1)
    asked = replicas(state, about, seen)
    places, count = pack(kept.flatten(1))
    slots = places.div(width, rounding_mode="floor")
    elsewhere = state.slots[:, None] != slots[..., None]
    options = Extras(
        tokens=tokens.flatten(1).gather(1, places),
        positions=slots,
        exists=torch.arange(places.shape[1], device=slots.device)[None] < count[:, None],
        targets=torch.full_like(slots, KEY_ONLY),
        sees=elsewhere & ~replaced[:, None] if mutual else elsewhere,
    )
    subject = torch.cat((slots, asked.targets), dim=1)  # the slot that each extra slot must not be told about
    among = functional.pad(subject[..., None] != slots[:, None], (0, asked.count))
    if not mutual:
        among[:, : options.count] = False
    return attach(state.tokens, options.join(asked), among)


def _reached(holds: Bool[Tensor, "b l"]) -> Bool[Tensor, "b l"]:
    """Slots beside which another slot has a candidate."""
    return holds.sum(-1, keepdim=True) > holds.long()
