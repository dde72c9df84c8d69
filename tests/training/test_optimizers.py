import pytest
import torch
from torch import nn

from unmask.training.optimizers import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 20), (2, 20, 8)])
def test_singular_values_become_nearly_equal(shape: tuple[int, int, int]) -> None:
    result = orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_zero_gradients_stay_zero() -> None:
    assert not orthogonalised(torch.zeros(1, 4, 6)).any()


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (20, 8)])
def test_steps_are_those_of_torch_but_for_bfloat16(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([ours], lr=0.02, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    moved = (ours - start).detach()
    assert torch.allclose(moved, (theirs - start).detach(), atol=0.03 * moved.abs().max().item())


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="matrices only"):
        Muon([nn.Parameter(torch.zeros(3))])
