"""Methods that commit as many slots as the model is sure of: thresholds on confidence or entropy, and the factor rule.

Sources: Wu et al., Fast-dLLM (arXiv 2505.22618), section 3.3, theorem 1; Chen et al., dParallel (arXiv 2509.26488), the
entropy threshold of its decoding; Cheng et al., SDAR (arXiv 2510.06303), `low_confidence_dynamic`, which LLaDA2 uses
too. Deviates: `Factor` follows the paper; the released code commits everything when the first rank that fails is the
last one (`compat="fast-dllm"`). `Dynamic` never writes a committed slot, whatever the number of steps.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.quota import Quota, Rounding, check_rounding, check_steps, lead
from unmask.decoders.selection import Score, check_score, force, rank, reaches, score_of, top


@dataclass(frozen=True, slots=True)
class Threshold(Decoder):
    """Commit every open slot whose confidence reaches `threshold`, and the best one where none does."""

    threshold: float = 0.9  # tau; smallest confidence that commits, the bound itself passes
    strict: bool = False  # True: the bound itself fails (D2F)
    rank: Score = "confidence"  # what makes a slot the best one (D2F's sampling_strategy)
    steps: int | None = (
        None  # pace: never ahead of a plan of so many equal steps (Fast-dLLM's Dream code without cache)
    )
    compat: Literal["none", "fast-dllm-dream"] = (
        "none"  # a block's opening step commits its first slot and nothing else
    )

    def __post_init__(self) -> None:
        check_steps(self.steps)
        check_score("rank", self.rank)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        best = score_of(self.rank, prediction, state.num_slots)
        ready = among if self.steps is None else self._considered(state, among, best)
        sure = ready & reaches(prediction.confidence[:, : state.num_slots], self.threshold, self.strict)
        commit = force(best, among, sure, window)
        if self.compat == "fast-dllm-dream":
            commit = lead(window, among, commit)
        return self.move(state, commit, prediction)

    def _considered(
        self, state: DenoisingState, among: Bool[Tensor, "b l"], score: Float[Tensor, "b l"]
    ) -> Bool[Tensor, "b l"]:
        """The best slots, as many as the plan would have committed by now but this row has not."""
        assert self.steps is not None, "only called with a plan"
        answer = state.answer.sum(-1)
        planned = (answer * (state.step + 1)).div(self.steps, rounding_mode="floor")
        done = answer - (state.masked & state.answer).sum(-1)
        return top(score, among, (planned - done).clamp_min(1))


@dataclass(frozen=True, slots=True)
class EntropyThreshold(Decoder):
    """Commit every open slot whose entropy is at most `threshold`, and the one of lowest entropy where none is."""

    threshold: float = 0.5  # h, nats; largest entropy that commits, the bound itself passes
    strict: bool = False  # True: the bound itself fails (dParallel's Dream code)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        score = score_of("entropy", prediction, state.num_slots)
        sure = among & reaches(score, -self.threshold, self.strict)
        return self.move(state, force(score, among, sure, window), prediction)


@dataclass(frozen=True, slots=True)
class Dynamic(Quota):
    """Commit every slot whose confidence exceeds `threshold`, but never fewer than the step's quota of best ones."""

    threshold: float = 0.85  # tau, confidence; the bound itself fails (LLaDA2: 0.95)
    steps: int | None = None  # forward passes at most, for the whole answer; None = at least one slot each
    compat: Rounding = "none"  # "dllm": shares of a step rounded half to even (its LLaDA2 sampler)

    def __post_init__(self) -> None:
        Quota.__post_init__(self)
        check_rounding(self.compat)

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return prediction.confidence[:, : state.num_slots]

    def choose(
        self, state: DenoisingState, prediction: Prediction, among: Bool[Tensor, "b l"], count: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b l"]:
        confidence = self.score(state, prediction)
        return among & (confidence > self.threshold) | top(confidence, among, count)


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
