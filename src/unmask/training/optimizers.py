"""Muon for matrices, in float32, batched over equal shapes and shared among processes.

Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (kellerjordan.github.io/posts/muon,
2024). Deviates: `torch.optim.Muon` orthogonalises one matrix at a time in bfloat16, which a CPU without bfloat16
arithmetic has to emulate: 4.6 s a step for the 42 matrices of the built-in model, more than the forward and backward
passes of the batch. The form here takes 0.2 s on one thread (float32, matrices of equal shape in one batched product)
and half of that with two processes, each of which orthogonalises its part. Everything else (Nesterov momentum, decay,
learning-rate factor) is the same.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from unmask.models.backbone import Backbone
from unmask.training.sharing import local, part_for, place, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of the quintic iteration
NEWTON_SCHULZ_STEPS = 5
EPSILON = 1e-7


def adamw(
    model: Backbone, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0
) -> torch.optim.AdamW:
    """AdamW for every parameter of a model that requires a gradient: all of them, or those of an adapter."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=lr, betas=betas, weight_decay=weight_decay)


def orthogonalised(matrices: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """Nearest (semi-)orthogonal matrices, roughly: singular values end between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(EPSILON)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: every direction of a matrix moves equally far.

    Args:
        params: two-dimensional parameters.
        lr: step length, times sqrt(rows / columns) of tall matrices.
        momentum: of the gradient's running sum (Nesterov).
        weight_decay: fraction of a weight that decays per unit of learning rate.
    """

    def __init__(
        self, params: Iterable[Tensor], *, lr: float = 0.01, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            if any(parameter.ndim != 2 for parameter in group["params"]):
                raise ValueError("Muon moves matrices only; give vectors and embeddings to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move all matrices; with several processes every process must call it."""
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            updates = _shared_orthogonalisation([whole(self._nesterov(parameter, group)) for parameter in parameters])
            for parameter, update in zip(parameters, updates, strict=True):
                rows, columns = parameter.shape
                own = local(parameter)
                own.mul_(1.0 - group["lr"] * group["weight_decay"])
                own.add_(part_for(update, parameter), alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))

    def _nesterov(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        buffer.lerp_(parameter.grad, 1.0 - group["momentum"])
        return parameter.grad.lerp(buffer, group["momentum"])


def _shared_orthogonalisation(matrices: list[Tensor]) -> list[Tensor]:
    """Orthogonalise each matrix on one of the processes, then give the results to all."""
    rank, world = place()
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        by_shape[rows, columns].append(index)
    flat = torch.zeros(sum(matrix.numel() for matrix in matrices), device=matrices[0].device)
    sizes = [matrix.numel() for matrix in matrices]
    parts = torch.split(flat, sizes)
    results = [part.view_as(matrix) for part, matrix in zip(parts, matrices, strict=True)]
    for indices in by_shape.values():
        mine = indices[rank::world]
        if mine:
            wide = torch.stack([_wide(matrices[index]) for index in mine])
            for index, result in zip(mine, orthogonalised(wide), strict=True):
                results[index].copy_(result if result.shape == matrices[index].shape else result.mT)
    if world > 1:
        # Every element is zero on all processes but one, so the sum is exact.
        dist.all_reduce(flat)
    return results


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
