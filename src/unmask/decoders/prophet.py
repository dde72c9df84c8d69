"""Prophet: once the answer is certain, commit everything that is left and be done.

Source: Li et al., Prophet (arXiv 2508.19982), and the code released with it. How sure a slot is, is said by the largest
logit minus the second largest, free of noise.

Deviates: by default the slots looked at are the masked ones up to the first end token, where the released code has five
fixed places behind a forced text (`region`; forced text is given text here); and what is planned need not be known
(`steps`). Batches, other inner methods, caches and stopping are ours.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import is_any
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.compound import Compound, decision_of
from unmask.decoders.quota import check_steps

EARLY, MIDDLE = 0.33, 0.67  # progress at which the first and the second phase end


@dataclass(frozen=True, slots=True)
class Prophet(Compound):
    """Decode with another method, and commit all masked slots at once when the model has made up its mind.

    Sure means: over the region of the answer that counts, the mean lead of the best logit over the second reaches the
    bound of the phase. Early in an answer more is demanded than late. The open window does not limit what is committed.
    """

    inner: Decoder  # the method in charge until then
    early: float = 7.5  # theta up to a progress of 0.33, a difference of logits; the bound itself passes
    middle: float = 5.0  # theta up to 0.67
    late: float = 2.5  # theta from there on
    region: tuple[int, int] | None = None  # (first, number) of the answer slots; None = masked ones up to the first end
    average: Literal["mean", "min"] = "mean"  # over the region; "min": every slot of it has to reach the bound
    steps: int | None = None  # forward passes planned; None = progress is the share of the answer that is decided

    def __post_init__(self) -> None:
        check_steps(self.steps)
        for name, bound in (("early", self.early), ("middle", self.middle), ("late", self.late)):
            if bound != bound:
                raise ValueError(f"{name} must be a number: got {bound}")
        if self.average not in ("mean", "min"):
            raise ValueError(f'average must be "mean" or "min": got "{self.average}"')
        if self.region is not None:
            integers = len(self.region) == 2 and all(type(number) is int for number in self.region)
            if not integers or self.region[0] < 0 or self.region[1] < 1:
                raise ValueError(f"region must be (first answer slot from 0, at least 1 slot): got {self.region}")

    @property
    def parts(self) -> tuple[Decoder]:
        return (self.inner,)

    @property
    def overreaches(self) -> bool:  # type: ignore[override]
        return True

    def begin(self, state: DenoisingState) -> Memory:
        return self.inner.begin(state)

    def view(self, state: DenoisingState, window: Window, memory: Memory) -> Canvas:
        return self.inner.view(state, window, memory)

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        asked = state.masked | (self._places(state) if self.region else False)
        return self.inner.asks(state, window, canvas) | functional.pad(asked & window.visible, (0, canvas.extra))

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory
    ) -> tuple[Move, Memory]:
        move, memory = decision_of(self.inner, state, window, prediction, memory)
        # an end token that is held back may go, too: nothing left of it stays masked
        sure = (self.certainty(state, window, prediction) >= self.bound(state))[:, None]
        commit = torch.where(sure, state.masked & window.visible, move.commit)
        tokens = torch.where(sure, prediction.tokens[:, : state.num_slots], move.tokens)
        revoke = None if move.revoke is None else move.revoke & ~sure
        return Move(commit, torch.where(commit, tokens, state.tokens), revoke), memory

    def bound(self, state: DenoisingState) -> Float[Tensor, " b"]:
        """The bound of every row's phase.

        Without planned steps a slot counts as a step: a method of one slot per step gives the same phases either way.
        """
        if self.steps is None:
            slots = state.answer.sum(-1).clamp_min(1)
            progress = (slots - (state.masked & state.answer).sum(-1) + 1).double() / slots
        else:
            progress = (state.step + 1).double() / self.steps
        bounds = torch.tensor([self.early, self.middle, self.late], dtype=torch.float64, device=progress.device)
        return bounds[(progress >= EARLY).long() + (progress >= MIDDLE).long()]

    def certainty(self, state: DenoisingState, window: Window, prediction: Prediction) -> Float[Tensor, " b"]:
        """Mean or smallest lead of the best logit over the region; if that is empty nan, which reaches no bound."""
        region = self._places(state) if self.region else self._until_end(state, prediction)
        region = region & window.visible
        gap = prediction.gap[:, : state.num_slots]
        if self.average == "min":
            lowest = torch.where(region, gap, inf).amin(-1)
        else:
            lowest = torch.where(region, gap, 0.0).sum(-1) / region.sum(-1)
        return torch.where(region.any(-1), lowest, torch.nan)

    def _places(self, state: DenoisingState) -> Bool[Tensor, "b l"]:
        """The fixed region, whether masked or decided, counted from the first slot behind the prompt."""
        assert self.region is not None, "only called with a region"
        first, number = self.region
        place = state.slots - state.prompt_length[:, None] - first
        return state.exists & (place >= 0) & (place < number)

    @staticmethod
    def _until_end(state: DenoisingState, prediction: Prediction) -> Bool[Tensor, "b l"]:
        """Masked slots up to the first end token, decided or expected."""
        expected = torch.where(state.masked, prediction.tokens[:, : state.num_slots], state.tokens)
        ends = (is_any(expected, state.end_ids) & state.answer).long()
        return state.masked & (ends.cumsum(-1) - ends == 0)
