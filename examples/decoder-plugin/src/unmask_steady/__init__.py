"""Commit a token once the model has stopped changing its mind about it.

Source: the tutorial of unmask (docs/write-a-decoder.md); no paper. Deviates: nowhere.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders import Decoder
from unmask.decoders.selection import best_only


@dataclass(frozen=True, slots=True)
class Watched:
    """What one step leaves to the next."""

    candidate: Int[Tensor, "b l"]  # token proposed at the last step, -1 where nobody asked
    calm: Int[Tensor, "b l"]  # comparisons in a row that found the same candidate


@dataclass(frozen=True, slots=True)
class Steady(Decoder):
    """Commit what is sure at once, and what is fairly sure when its candidate has stayed the same for some steps.

    A step in which nothing passes commits the most confident slot.
    """

    threshold: float = 0.9  # smallest confidence that commits at once, probability; the bound itself passes
    patience: int = 2  # comparisons in a row that must find no change, steps
    floor: float = 0.5  # smallest confidence of a steady candidate, probability; the bound itself passes

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1 comparison: got {self.patience}")

    def begin(self, state: DenoisingState) -> Watched:
        return Watched(torch.full_like(state.tokens, -1), torch.zeros_like(state.tokens))

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Watched
    ) -> tuple[Move, Watched]:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        candidate = prediction.tokens[:, : state.num_slots]

        same = (candidate == memory.candidate) & (candidate >= 0)
        calm = torch.where(same, memory.calm + 1, 0)

        sure = confidence >= self.threshold
        steady = (calm >= self.patience) & (confidence >= self.floor)
        passing = among & (sure | steady)
        nothing = ~passing.any(-1, keepdim=True)
        commit = passing | best_only(confidence, among) & nothing
        return self.move(state, commit, prediction), Watched(candidate, calm)
