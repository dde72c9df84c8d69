"""WINO: commit widely, verify with shadow slots, and take back what they no longer believe.

Source: Hong et al., WINO (arXiv 2507.18578), and the code released with it. A shadow is an extra mask at the place of a
slot that sees everything but this slot; what it says about the committed token is the slot's verification.

Deviates: every row of a batch stands in a block of its own; what the released code counts in variables is read off the
state, so decoding may resume anywhere; shadows are left out where nothing can be taken back, which changes no answer.
Above temperature 0 the released code takes every token back that has not `verify` of the probability, so it soon gives
nothing but the mode; here a token is then compared with the best one (`relative`). For shifted models (Dream) there is
no released code: a copy of the left neighbour asks about a slot, and the shadow is a key that it sees.

Shape letters: b batch rows, l canvas slots, n shadows, m speakers.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.canvas import Canvas, plain_view
from unmask.core.extras import KEY_ONLY, attach, masks, speakers
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.selection import force, top


@dataclass(frozen=True, slots=True)
class Wino(Decoder):
    """Commit what exceeds a low bound; take back what a shadow slot, asked later, puts below a high one.

    A step that commits one slot takes nothing back, and no step takes back as many slots as the step before committed:
    a window of B slots is therefore full after at most B steps.
    """

    revokes: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True

    draft: float = 0.6  # tau_1, confidence above which a candidate is committed; the bound itself fails
    verify: float = 0.9  # tau_2, shadow's probability below which a token is taken back; the bound itself stays
    share: float = 0.7  # commits per step, as a share of the window's masked slots, rounded down ...
    floor: int = 5  # ... but not fewer slots than this, if so many exceed `draft` ...
    ceiling: int = 20  # ... and not more than this
    shadows_see_each_other: bool = True  # False: each shadow sees itself and the answer only
    shadows: Literal["verified", "all"] = "verified"  # "all": every slot of the window has one and is asked, every step
    relative: bool | None = None  # compare with `verify` times the shadow's best probability; None = only when sampling

    def __post_init__(self) -> None:
        for name, bound in (("draft", self.draft), ("verify", self.verify)):
            if bound != bound:
                raise ValueError(f"{name} must be a number: got {bound}")
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share must be a share of the window's masked slots, 0 to 1: got {self.share}")
        if not 1 <= self.floor <= self.ceiling:
            raise ValueError(
                f"floor must be at least 1 and at most ceiling: got floor={self.floor}, ceiling={self.ceiling}"
            )
        if self.shadows not in ("verified", "all"):
            raise ValueError(f'shadows must be "verified" or "all": got "{self.shadows}"')

    def view(self, state: DenoisingState, window: Window, memory: Memory) -> Canvas:
        asked = window.open if self.shadows == "all" else self.suspects(state, window)
        if not bool(asked.any()):
            return plain_view(state)
        whole = window.open & asked.any(-1, keepdim=True)
        return shadowed(state, whole if self.shadows_see_each_other else asked, asked, self.shadows_see_each_other)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        commit = top(confidence, among & (confidence > self.draft), self.cap((state.masked & window.open).sum(-1)))
        commit = force(confidence, among, commit, window)
        move = self.move(state, commit, prediction)
        if prediction.targets is None:
            return move
        belief = prediction.echo(prediction.confidence_in(state.tokens), 0.0)
        refuted = self.suspects(state, window) & (belief < self._bound(prediction))
        several = commit.sum(-1, keepdim=True) > 1
        return replace(move, revoke=top(-belief, refuted & several, allowance(state, window)))

    def cap(self, masked: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Most slots that a step commits when so many are masked: 128, 28, 20, 10 and 4 give 20, 19, 14, 7 and 5."""
        return (masked.double() * self.share).floor().long().clamp(self.floor, self.ceiling)

    def suspects(self, state: DenoisingState, window: Window) -> Bool[Tensor, "b l"]:
        """Slots that this step may take back: what the window has committed, or none where the rules allow none."""
        possible = (allowance(state, window) > 0) & ((state.masked & window.open).sum(-1) > 1)
        return window.open & ~state.masked & possible[:, None] & (self.verify > 0.0)

    def _bound(self, prediction: Prediction) -> float | Float[Tensor, "b l"]:
        """What a shadow must give a committed token."""
        relative = prediction.sampling.temperature > 0.0 if self.relative is None else self.relative
        if not relative:
            return self.verify
        return self.verify * prediction.echo(prediction.likeliest(1)[1][..., 0], 1.0)


def allowance(state: DenoisingState, window: Window) -> Int[Tensor, " b"]:
    """Most slots a step may take back: one fewer than the step before committed in this window."""
    fresh = window.open & ~state.masked & (state.committed_at == state.step[:, None] - 1)
    return (fresh.sum(-1) - 1).clamp_min(0)


def shadowed(state: DenoisingState, about: Bool[Tensor, "b l"], asked: Bool[Tensor, "b l"], mutual: bool) -> Canvas:
    """The canvas with a shadow for every slot of `about`, and a question about every slot of `asked`.

    Args:
        mutual: shadows see one another; otherwise a question concerns the answer and the slot's own shadow only.
    """
    shadows = masks(state, about)
    num_shadows = shadows.count
    targets = torch.where(asked.gather(1, shadows.positions), shadows.targets, KEY_ONLY)
    shadows = replace(shadows, targets=targets)
    if state.shift == 0:
        among = torch.full((state.num_rows, num_shadows, num_shadows), mutual, device=about.device)
        return attach(state.tokens, shadows, among)
    voices = speakers(state, asked)
    own = shadows.positions[:, None] == voices.targets[..., None]
    itself = own & (voices.positions == voices.targets)[..., None]  # slot 0 is asked by a mask in its own place
    size = num_shadows + voices.count
    among = torch.zeros(state.num_rows, size, size, dtype=torch.bool, device=about.device)
    among[:, :num_shadows, :num_shadows] = mutual
    among[:, num_shadows:, :num_shadows] = (own | mutual) & ~itself
    return attach(state.tokens, shadows.join(voices), among)
