"""KLASS: commit what is sure and has stopped changing.

Source: Kim et al., KLASS: KL-Guided Fast Inference in Masked Diffusion Models (arXiv 2511.05664), algorithm 1 and the
released code. Deviates: a step commits at least its quota, also where fewer slots are ready (the released code then
falls behind its plan and may leave masks; `compat="klass"`), and only masked slots of the window are ever written.
Above temperature 0, divergence and confidence are those of the distribution without noise.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots, a asked targets, v vocabulary, n = a * v.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder
from unmask.decoders.quota import check_steps, quota
from unmask.decoders.selection import best_only, force, reaches, top


@dataclass(frozen=True, slots=True)
class Watched:
    """What the model said at the step before, and for how many steps each slot has been calm."""

    slots: Int[Tensor, "b a"]  # asked about then
    count: Int[Tensor, " b"]  # how many of them are no padding
    logits: Float[Tensor, "b n"]  # flat, so that rows with fewer slots join by padding
    calm: Int[Tensor, "b l"]  # comparisons in a row that stayed below the bound


@dataclass(frozen=True, slots=True)
class Klass(Decoder):
    """Commit every open slot that is sure and whose distribution has been calm for `history` steps; else the quota.

    Calm means that the divergence of the distribution from that of the step before is below a bound. Watching the whole
    answer, a slot may be calm when its block opens; it also makes a cache recompute all that is masked.
    """

    confidence: float = 0.9  # smallest probability that commits; the bound itself fails
    divergence: float = 0.01  # epsilon, KL(now || before) in nats; the bound itself fails
    history: int = 2  # n, comparisons in a row that have to be calm; a window's first n - 1 steps commit the quota
    steps: int | None = None  # forward passes at most, for the whole answer; None = one per token
    watch: Literal["answer", "window"] = "answer"  # slots that are followed; "window" costs less
    pick: Literal["all", "max-confidence", "min-divergence"] = "all"  # which of the ready slots (`unmask_strategy`)
    strict: bool = True  # False: the bound on the confidence itself passes (KLASS's Dream code)
    compat: Literal["none", "klass"] = "none"  # "klass": ready slots alone, even if fewer than the quota

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if self.history < 1:
            raise ValueError(f"history must be at least 1 comparison: got {self.history}")
        if self.watch not in ("answer", "window"):
            raise ValueError(f'watch must be "answer" or "window": got "{self.watch}"')
        if self.pick not in ("all", "max-confidence", "min-divergence"):
            raise ValueError(f'pick must be "all", "max-confidence" or "min-divergence": got "{self.pick}"')

    @property
    def spreads(self) -> bool:
        return self.steps is not None

    def begin(self, state: DenoisingState) -> Watched:
        nothing = state.tokens[:, :0]
        return Watched(nothing, torch.zeros_like(state.step), nothing.float(), torch.zeros_like(state.tokens))

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        asked = state.masked & (window.open if self.watch == "window" else window.open | window.visible)
        return functional.pad(asked, (0, canvas.extra))

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Watched
    ) -> tuple[Move, Watched]:
        among = self.eligible(state, window, prediction)
        divergence = divergence_from(memory, prediction)[:, : state.num_slots]
        still = (divergence < self.divergence) | (self.divergence == float("inf"))  # no bound: nothing to compare
        calm = torch.where(still, memory.calm + 1, 0)
        seasoned = (window.age >= self.history - 1)[:, None] & (calm >= self.history)
        confidence = prediction.confidence[:, : state.num_slots]
        ready = among & seasoned & reaches(confidence, self.confidence, self.strict)
        if self.pick != "all":
            ready = best_only(confidence if self.pick == "max-confidence" else -divergence, ready)
        missing = quota(self.steps, state, window) - ready.sum(-1)
        if self.compat == "klass":
            missing = torch.where(ready.any(-1), 0, missing)
        commit = ready | top(confidence, among & ~ready, missing)
        move = self.move(state, force(confidence, among, commit, window), prediction)
        return move, watched(prediction, calm)


def watched(prediction: Prediction, calm: Int[Tensor, "b l"]) -> Watched:
    """Memory of a step: its logits of answer slots (they come first), and the calm of each slot."""
    asked, work = prediction.work.asked, prediction.work
    real = torch.arange(asked.shape[1], device=asked.device)[None] < work.num_asked[:, None]
    return Watched(asked, (real & (asked < calm.shape[1])).sum(-1), prediction.logits.flatten(1), calm)


def divergence_from(memory: Watched, prediction: Prediction) -> Float[Tensor, "b s"]:
    """KL(now || before) of every slot asked about both times, nats; infinite elsewhere."""
    if not memory.slots.shape[1]:
        return torch.full_like(prediction.confidence, float("inf"))
    before = memory.logits.reshape(*memory.slots.shape, -1).to(prediction.logits.dtype)
    work = replace(prediction.work, asked=memory.slots, num_asked=memory.count, speakers=memory.slots)  # rows: unused
    return prediction.kl_from(replace(prediction, logits=before, work=work))
