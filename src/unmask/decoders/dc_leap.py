"""DC-Leap: commit a run from the left, and show the model its own surest guesses about what lies further right.

Source: DC-Leap (code: ffh-wyls/DC-Leap), alg. 1: dynamic contiguous verification and draft-guided decoding. Deviates:
where code and paper differ, the code is followed (the first slot is always committed; `far` says how far to look
ahead). Batches, temperatures, guidance, given text inside the answer and stopping at its end are ours, the code has
none of them. A temperature draws the candidates; `commit` and `draft` are compared with their probability under the
model's own distribution.

Note: on a block-causal model a slot does not see drafts in later blocks, and a run says so in a warning. What is left
there is the rule of the run: `draft=1` switches the drafts off, and then any schedule will do. Where several blocks are
open at once (`pipelined`, D2F), each has a run of its own.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas, plain_view
from unmask.core.prediction import Prediction
from unmask.core.schedules import Schedule, Sliding
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder
from unmask.decoders.selection import force

Drafts = Int[Tensor, "b l"]  # draft of every slot; the mask token = none


@dataclass(frozen=True, slots=True)
class DcLeap(Decoder):
    """Commit the run of confident slots from the left; guesses right of the window are shown as drafts.

    Of the window's masked slots those left of the first one that is not above `commit` are committed, and always the
    first. Right of the window lies the look-ahead, as many masked slots as the window has. There a guess above `draft`
    becomes the slot's draft: later steps show it in place of the mask, until a newer guess replaces it, or the window
    reaches the slot and shows a mask again. So no draft becomes output unless the model says it once more without
    seeing it. Where the window reaches the end of the answer, nothing is left to look ahead to.

    The window is the schedule's: `sliding(length=128)`, or `sliding(length=None)` for the paper's half of the answer.
    """

    schedule: ClassVar[type[Schedule] | None] = Sliding
    commit: float = 0.7  # tau_c, a probability; the bound itself ends the run
    draft: float = 0.98  # tau_d, a probability; the bound itself is no draft, so 1 = no drafts
    far: bool = False  # look ahead to the end of the answer (alg. 1) and not as far as the window is wide (the code)

    def __post_init__(self) -> None:
        for name, bound in (("commit", self.commit), ("draft", self.draft)):
            if not 0.0 <= bound <= 1.0:
                raise ValueError(f"{name} must be a probability, 0 to 1: got {bound}")

    @property
    def drafts(self) -> bool:  # type: ignore[override]
        return self.draft < 1.0

    @property
    def confined(self) -> bool:
        return self.drafts

    def begin(self, state: DenoisingState) -> Drafts:
        return torch.full_like(state.tokens, state.mask_id)

    def view(self, state: DenoisingState, window: Window, memory: Drafts) -> Canvas:
        shown = torch.where(self.ahead(state, window), memory, state.tokens)
        return replace(plain_view(state), tokens=shown)

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        asked = state.masked & window.open | self.ahead(state, window)
        return functional.pad(asked, (0, canvas.extra))

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Drafts
    ) -> tuple[Move, Drafts]:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        ends = state.masked & window.open & ~(among & (confidence > self.commit))  # decided slots end no run
        run = among & (ends_so_far(ends, window) == 0)
        leftmost = -state.slots.expand_as(state.tokens).to(confidence.dtype)
        move = self.move(state, force(leftmost, among, run, window), prediction)
        sure = self.ahead(state, window) & (confidence > self.draft)
        return move, torch.where(sure, prediction.tokens[:, : state.num_slots], memory)

    def ahead(self, state: DenoisingState, window: Window) -> Bool[Tensor, "b l"]:
        """Slots of the look-ahead: behind the window, as many as the window has; none without drafts."""
        if not self.drafts:
            return torch.zeros_like(state.masked)
        last = torch.where(window.open, state.slots, -1).amax(-1, keepdim=True)
        right = state.masked & (state.slots > last)
        return right if self.far else right & (right.cumsum(-1) <= window.open.sum(-1, keepdim=True))


def ends_so_far(ends: Bool[Tensor, "b l"], window: Window) -> Int[Tensor, "b l"]:
    """How many slots, from the first of its group to this one, end a run."""
    so_far = ends.cumsum(-1)
    if window.group is None:
        return so_far
    starts = functional.pad(window.group.diff(dim=-1) != 0, (1, 0))
    before = torch.where(starts, so_far - ends.long(), 0).cummax(-1).values
    return so_far - before
