"""Objectives: what a masked batch costs.

An objective returns a *sum* and the *count* it is to be divided by. Only the training loop divides, once per step, by
the count of the whole global batch: a mean of means would make gradients depend on how a batch was split.

Shape letters: b rows of the batch, l slots of the canvas, n slots with loss, v vocabulary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.models.attention import block_causal
from unmask.models.backbone import Backbone
from unmask.training.corruption import MaskedBatch, block_of

Per = Literal["sample", "target"]  # what a sum is divided by: canvases, or slots with loss
HEAD_ROWS = 256  # slots with loss are padded to a multiple: free shapes make the memory of CPU runs grow


@dataclass(frozen=True, slots=True)
class LossSum:
    """A sum over slots, not yet divided."""

    total: Float[Tensor, ""]  # nats, with gradient
    count: int  # what the sum over the global batch is divided by
    targets: int  # slots with loss
    rows: Float[Tensor, " b"]  # the same sum by row, nats, without gradient
    counts: Float[Tensor, " b"]  # what each row adds to `count`


@runtime_checkable
class Objective(Protocol):
    """What a batch costs under a model."""

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum: ...


def weighted_cross_entropy(
    logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weight times cross-entropy of each slot, nats, float32."""
    return functional.cross_entropy(logits.float(), targets, reduction="none") * weights


@dataclass(frozen=True, slots=True)
class MaskedCrossEntropy:
    """Weighted cross-entropy of the masked slots.

    Source: Nie et al., Large Language Diffusion Models (arXiv 2502.09992), eq. 5. Deviates: nowhere.

    Args:
        per: what is counted: "sample" for weights that are already normalised within a row (LLaDA), "target" for a mean
            over all slots with loss.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
    """

    per: Per = "sample"
    shift: int = 0

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum:
        asked = ask(model, batch, batch.weights > 0, self.shift)
        losses = weighted_cross_entropy(asked.logits, asked.targets, asked.of(batch.weights))
        return asked.sum(losses, self.per)


@dataclass(frozen=True, slots=True)
class Asked:
    """Logits about some masked slots of a batch, flattened, and padded to a handy length."""

    logits: Float[Tensor, "n v"]
    targets: Int[Tensor, " n"]
    slots: Int[Tensor, " n"]  # flat indices; padding repeats one
    count: int  # how many are no padding
    shape: tuple[int, int]

    def of(self, values: Tensor) -> Tensor:
        """Values of (b, l) at these slots, 0 on padding."""
        real = torch.arange(len(self.slots), device=self.slots.device) < self.count
        return values.flatten()[self.slots] * real

    def sum(self, losses: Float[Tensor, " n"], per: Per) -> LossSum:
        """Add up what each slot costs, to be divided by the number of rows or of slots."""
        counts = (
            self.by_row(torch.ones_like(losses)[: self.count]) if per == "target" else losses.new_ones(self.shape[0])
        )
        count = self.count if per == "target" else self.shape[0]
        return LossSum(losses.sum(), count, targets=self.count, rows=self.by_row(losses.detach()), counts=counts)

    def by_row(self, values: Float[Tensor, " k"]) -> Float[Tensor, " b"]:
        """Sums by row of values of the first slots."""
        rows = self.slots[: len(values)] // self.shape[1]
        return values.new_zeros(self.shape[0]).index_add_(0, rows, values)


def ask(
    model: Backbone,
    batch: MaskedBatch,
    about: Bool[Tensor, "b l"],
    shift: int,
    mask: Bool[Tensor, "b l l"] | None = None,
) -> Asked:
    """What the model says about masked slots.

    Args:
        about: slots wanted; those that are not masked are left out.
        shift: 1 where the left neighbour's row speaks for a slot.
        mask: who sees whom; None = everybody sees every slot that exists, of a causal model those up to its own.
    """
    if mask is None and model.config.attention == "causal":
        places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)
        mask = block_causal(places, places)  # padding is on the right, out of sight
    if mask is None and not bool(batch.exists.all()):  # attending to everything is cheaper without a mask
        mask = batch.exists[:, None, :].expand(-1, batch.exists.shape[1], -1)
    hidden = model.hidden(batch.tokens, None, mask).flatten(0, 1)
    slots = (about & batch.masked).flatten().nonzero().squeeze(1)
    # A prompt comes first, so the speaking row of a shifted slot is always in the same sequence.
    padded = functional.pad(slots, (0, -len(slots) % HEAD_ROWS), value=shift)
    rows, length = batch.tokens.shape
    return Asked(
        model.logits(hidden[padded - shift]), batch.targets.flatten()[padded], padded, len(slots), (rows, length)
    )


@dataclass(frozen=True, slots=True)
class Distillation:
    """D2F: a block-causal student learns what a bidirectional teacher says about the same masked canvas.

    Cross-entropy to the teacher's distribution, weighed per slot and averaged over the masked slots: the forward
    Kullback-Leibler divergence plus a constant. With `teacher=None` the data's own tokens are the targets, the baseline
    that the paper calls training without self-alignment.

    Source: Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), eq. 7 and the released code (the text has the
    divergence the other way round). Deviates: nowhere.

    Args:
        teacher: gives the network that teaches, which sees everything and gets no gradient.
        block_length: of the student's blocks, slots, counted from the end of the prompt.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
    """

    teacher: Callable[[], AbstractContextManager[Backbone]] | None
    block_length: int = 16
    shift: int = 0

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum:
        blocks = block_of(batch.answer_starts, batch.tokens.shape[1], self.block_length)
        mask = block_causal(blocks, blocks) & batch.exists[:, None, :]
        student = ask(model, batch, batch.weights > 0, self.shift, mask)
        weights = student.of(batch.weights)
        if self.teacher is None:
            return student.sum(weighted_cross_entropy(student.logits, student.targets, weights), "target")
        with torch.no_grad(), self.teacher() as network:
            wanted = ask(network, batch, batch.weights > 0, self.shift).logits.float().softmax(-1)
        losses = functional.cross_entropy(student.logits.float(), wanted, reduction="none") * weights
        return student.sum(losses, "target")


@dataclass(frozen=True, slots=True)
class CertaintyForcing:
    """dParallel: learn the tokens, and be surer of those that are right already.

    Of each half of a block (see `HalvedBlock`): mean cross-entropy, plus `certainty` times the mean entropy of the
    tempered distribution over the slots whose best token is right. The halves of a row are added, rows are averaged.

    Source: Chen et al., dParallel (arXiv 2509.26488), eq. 5 and 6, and its released code. Deviates: nowhere.
    """

    certainty: float = 2.0  # beta; the authors take 2 for LLaDA, 1 for Dream
    temperature: float = 0.5  # of the distribution whose entropy is pressed down
    shift: int = 0

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum:
        asked = ask(model, batch, batch.weights > 0, self.shift)
        right = (asked.logits.argmax(-1) == asked.targets) & (asked.of(batch.weights) > 0)
        sharp = entropy_of(asked.logits / self.temperature)
        losses = weighted_cross_entropy(asked.logits, asked.targets, asked.of(batch.weights))
        losses = losses + self.certainty * sharp * per_row_mean(asked, right)
        halves = asked.sum(losses, "sample")
        rows = halves.rows.view(-1, 2).sum(1)
        return replace(halves, count=len(rows), rows=rows, counts=torch.ones_like(rows))


@dataclass(frozen=True, slots=True)
class VerifiedOrder:
    """WINO+: learn the tokens that WINO kept at a step, be surer of right guesses and less sure of wrong ones.

    Per sample: mean cross-entropy of the targets; `unmask` times the mean entropy of the targets that are right but
    less sure than `shy`; minus `remask` times the mean entropy of the other masked slots of the same block whose best
    token is wrong and surer than `bold`. Samples are averaged.

    Source: the release that goes with Hong et al., WINO (arXiv 2507.18578). Deviates: the block is that of each
    sample's first target, whatever the batch; the released code can do so for one sample at a time only.

    Args:
        block_length: slots, counted from the end of the prompt.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
    """

    unmask: float = 0.1
    remask: float = 1.0
    shy: float = 0.9  # confidence of a right target below which it is to become surer; the bound itself does not
    bold: float = 0.6  # confidence of a wrong guess above which it is to become less sure; the bound itself does not
    block_length: int = 128
    shift: int = 0

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum:
        wanted = (batch.weights > 0) & batch.masked
        blocks = block_of(batch.answer_starts, batch.tokens.shape[1], self.block_length)
        first = wanted.to(torch.int8).argmax(1, keepdim=True)
        inside = blocks == blocks.gather(1, first)
        asked = ask(model, batch, inside | wanted, self.shift)
        target = asked.of(wanted) > 0
        other = (asked.of(inside) > 0) & ~target
        with torch.no_grad():
            confidence, best = asked.logits.float().softmax(-1).max(-1)
            right = best == asked.targets
            shy = target & right & (confidence < self.shy)
            bold = other & ~right & (confidence > self.bold)
        entropy = entropy_of(asked.logits)
        losses = weighted_cross_entropy(asked.logits, asked.targets, per_row_mean(asked, target))
        losses = losses + self.unmask * entropy * per_row_mean(asked, shy)
        losses = losses - self.remask * entropy * per_row_mean(asked, bold)
        return asked.sum(losses, "sample")


def entropy_of(logits: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Entropy of each distribution, nats, float32."""
    logs = logits.float().log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def per_row_mean(asked: Asked, among: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights that turn a sum over slots into a mean over the given slots of each row; 0 at all others."""
    rows = asked.slots // asked.shape[1]
    count = torch.zeros(asked.shape[0], device=rows.device).index_add_(0, rows, among.float())
    return among / count[rows].clamp_min(1.0)
