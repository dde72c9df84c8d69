"""Objectives: what a masked batch costs.

An objective returns a *sum* and the *count* it is to be divided by. Only the training loop divides, once per step, by
the count of the whole global batch: a mean of means would make gradients depend on how a batch was split.

Shape letters: b rows of the batch, l slots of the canvas, n slots with loss, v vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.models.backbone import Backbone
from unmask.training.corruption import MaskedBatch

HEAD_ROWS = 256  # slots with loss are padded to a multiple: free shapes make the memory of CPU runs grow


@dataclass(frozen=True, slots=True)
class LossSum:
    """A sum over slots, not yet divided."""

    total: Float[Tensor, ""]  # nats, with gradient
    count: int  # what the sum over the global batch is divided by
    targets: int  # slots with loss
    rows: Float[Tensor, " b"]  # the same sum by row, nats, without gradient


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

    per: Literal["sample", "target"] = "sample"
    shift: int = 0

    def __call__(self, model: Backbone, batch: MaskedBatch) -> LossSum:
        # Attending to everything is cheaper without a mask, and buckets that are filled to the end need none.
        exists = None if bool(batch.exists.all()) else batch.exists[:, None, :].expand(-1, batch.exists.shape[1], -1)
        hidden = model.hidden(batch.tokens, None, exists).flatten(0, 1)
        slots = (batch.weights * batch.masked).flatten().nonzero().squeeze(1)
        padding = -len(slots) % HEAD_ROWS
        # A prompt comes first, so the speaking row of a shifted slot is always in the same sequence.
        padded = functional.pad(slots, (0, padding), value=self.shift)
        weights = functional.pad(batch.weights.flatten()[slots], (0, padding))
        logits = model.logits(hidden[padded - self.shift])
        losses = weighted_cross_entropy(logits, batch.targets.flatten()[padded], weights)
        rows = torch.zeros(len(batch.tokens), dtype=losses.dtype, device=losses.device)
        rows.index_add_(0, padded // batch.tokens.shape[1], losses.detach())
        count = len(batch.tokens) if self.per == "sample" else len(slots)
        return LossSum(total=losses.sum(), count=count, targets=len(slots), rows=rows)
