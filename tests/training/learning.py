"""Whether a run learns: its loss on masks that stay the same."""

from collections.abc import Sequence

import torch

from unmask.training.corruption import MaskedBatch
from unmask.training.loop import TrainingRun, train


def masked_for(run: TrainingRun, count: int = 1) -> list[MaskedBatch]:
    """The next batches as the model sees them."""
    return [run.corruption(clean, torch.Generator().manual_seed(0)) for clean in run.batches.take(count)]


def mean_loss(run: TrainingRun, batches: Sequence[MaskedBatch]) -> float:
    """What the batches cost now, nats."""
    with torch.no_grad():
        sums = [run.objective(run.model, batch) for batch in batches]
    return sum(one.total.item() for one in sums) / sum(one.count for one in sums)


def gained(run: TrainingRun) -> float:
    """Carry out a run; how much lower the loss is afterwards, nats."""
    same = masked_for(run, count=4)
    before = mean_loss(run, same)
    list(train(run))
    return before - mean_loss(run, same)
