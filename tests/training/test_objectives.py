"""The loss is a sum over the global batch divided by its count, whatever the split."""

from dataclasses import fields, replace

import pytest
import torch

from training.helpers import MASK, clean_batch, copy_batches, tiny_model
from unmask.models.backbone import Backbone
from unmask.training.corruption import MaskedBatch, RandomMask
from unmask.training.objectives import MaskedCrossEntropy, weighted_cross_entropy


def rows_of(batch: MaskedBatch, rows: slice) -> MaskedBatch:
    return MaskedBatch(*(getattr(batch, field.name)[rows] for field in fields(batch)))


def gradient_of_split(model: Backbone, batch: MaskedBatch, sizes: list[int], per: str) -> torch.Tensor:
    model.zero_grad()
    objective, count, start = MaskedCrossEntropy(per=per), 0, 0  # type: ignore[arg-type]
    for size in sizes:
        loss = objective(model, rows_of(batch, slice(start, start + size)))
        loss.total.backward()
        count, start = count + loss.count, start + size
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / count


@pytest.mark.parametrize("per", ["sample", "target"])
def test_gradient_does_not_depend_on_the_split(per: str) -> None:
    model = tiny_model()
    batch = RandomMask(MASK)(clean_batch(), torch.Generator().manual_seed(0))
    whole = gradient_of_split(model, batch, [6], per)
    for sizes in ([3, 3], [1, 5], [1, 1, 1, 1, 1, 1]):
        assert torch.allclose(gradient_of_split(model, batch, sizes, per), whole, rtol=1e-4, atol=1e-7)


def test_a_mean_of_means_is_not_what_is_computed() -> None:
    """Nine targets of class 0 in one micro-batch, one of class 1 in the other, five classes, all logits zero."""
    logits = torch.zeros(5, requires_grad=True)
    count = 0
    for targets in (torch.zeros(9, dtype=torch.long), torch.ones(1, dtype=torch.long)):
        weighted_cross_entropy(logits.expand(len(targets), 5), targets, torch.ones(len(targets))).sum().backward()
        count += len(targets)
    assert logits.grad is not None
    assert torch.allclose(logits.grad / count, torch.tensor([-0.7, 0.1, 0.2, 0.2, 0.2]))


def test_rows_without_loss_change_nothing() -> None:
    model, objective = tiny_model(), MaskedCrossEntropy(per="target")
    batch = RandomMask(MASK)(clean_batch(), torch.Generator().manual_seed(0))
    silent = replace(batch, weights=batch.weights * (torch.arange(6) < 3)[:, None])
    loss, half = objective(model, silent), objective(model, rows_of(batch, slice(0, 3)))
    assert loss.total.item() == pytest.approx(half.total.item(), rel=1e-5)
    assert (loss.count, loss.targets) == (half.count, half.targets)
    assert torch.allclose(loss.rows[:3], half.rows, rtol=1e-4)
    assert not loss.rows[3:].any()
    assert loss.counts.tolist() == [*half.counts.tolist(), 0.0, 0.0, 0.0]
    assert loss.counts.sum().item() == loss.count


def test_a_batch_without_loss_gives_zero_and_a_gradient() -> None:
    model = tiny_model()
    batch = RandomMask(MASK)(clean_batch(), torch.Generator().manual_seed(0))
    loss = MaskedCrossEntropy()(model, replace(batch, weights=torch.zeros_like(batch.weights)))
    loss.total.backward()
    assert loss.total.item() == 0.0


def test_padding_is_not_attended() -> None:
    model = tiny_model()
    with torch.no_grad():  # attention of a fresh model adds nothing
        for block in model.blocks:
            block.attention_out.weight.normal_(0, 0.3)  # type: ignore[operator,union-attr]
    clean = clean_batch()
    clean.exists[:, 30:] = False
    clean.weights[:, 30:] = 0.0
    batch = RandomMask(MASK)(clean, torch.Generator().manual_seed(0))
    other = replace(batch, tokens=batch.tokens.where(batch.exists, torch.tensor(7)))
    objective = MaskedCrossEntropy()
    assert objective(model, batch).total.item() == pytest.approx(objective(model, other).total.item(), rel=1e-6)
    seen = replace(other, exists=torch.ones_like(other.exists))
    assert objective(model, seen).total.item() != pytest.approx(objective(model, other).total.item(), rel=1e-6)


def test_a_shifted_model_is_asked_one_row_to_the_left() -> None:
    model = tiny_model()
    clean = copy_batches().take(1)[0]
    batch = RandomMask(MASK)(clean, torch.Generator().manual_seed(0))
    loss = MaskedCrossEntropy(shift=1)(model, batch)
    logits = torch.roll(model(batch.tokens), 1, dims=1)
    expected = weighted_cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), batch.weights.flatten())
    assert loss.total.item() == pytest.approx(expected.sum().item(), rel=1e-5)
