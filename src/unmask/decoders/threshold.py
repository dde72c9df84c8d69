"""Methods that commit as many slots as the model is sure of: Fast-dLLM's threshold and factor rules.

Source: Wu et al., Fast-dLLM (arXiv 2505.22618), section 3.3, theorem 1. Deviates: `Factor` follows the paper;
the released code commits everything when the first rank that fails is the last one (`compat="fast-dllm"`).

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.quota import check_steps, lead
from unmask.decoders.selection import force, rank, top


@dataclass(frozen=True, slots=True)
class Threshold(Decoder):
    """Commit every open slot whose confidence reaches `threshold`, and always the most confident one."""

    threshold: float = 0.9  # tau; smallest confidence that commits, the bound itself passes
    steps: int | None = (
        None  # pace: never ahead of a plan of so many equal steps (Fast-dLLM's Dream code without cache)
    )
    compat: Literal["none", "fast-dllm-dream"] = (
        "none"  # a block's opening step commits its first slot and nothing else
    )

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        if self.steps is not None:
            among = self._considered(state, among, confidence)
        commit = force(confidence, among, among & (confidence >= self.threshold), window)
        if self.compat == "fast-dllm-dream":
            commit = lead(window, among, commit)
        return self.move(state, commit, prediction)

    def _considered(
        self, state: DenoisingState, among: Bool[Tensor, "b l"], confidence: Float[Tensor, "b l"]
    ) -> Bool[Tensor, "b l"]:
        """The best slots, as many as the plan would have committed by now but this row has not."""
        assert self.steps is not None, "only called with a plan"
        answer = state.answer.sum(-1)
        planned = (answer * (state.step + 1)).div(self.steps, rounding_mode="floor")
        done = answer - (state.masked & state.answer).sum(-1)
        return top(confidence, among, (planned - done).clamp_min(1))


@dataclass(frozen=True, slots=True)
class Factor(Decoder):
    """Commit the largest number n of best slots with (n + 1) * (1 - confidence of the n-th) < factor, at least one."""

    factor: float = 1.0  # f; bounds how far joint and product of marginals may lie apart; the bound itself fails
    compat: Literal["none", "fast-dllm"] = "none"  # released code: commit all when the last rank is the first to fail

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        place = rank(confidence, among)
        bound = 1.0 - self.factor / (place + 2.0).to(confidence.dtype)
        if self.compat == "none":
            commit = among & ((confidence > bound) | (place == 0))
            return self.move(state, force(confidence, among, commit, window), prediction)
        fails = among & (confidence < bound) & (place > 0)
        count = among.sum(-1)
        first_failing = torch.where(fails, place, state.num_slots).amin(-1)
        first_failing = torch.where(first_failing >= count - 1, count, first_failing)
        commit = among & (place < first_failing[:, None])
        return self.move(state, force(confidence, among, commit, window), prediction)
