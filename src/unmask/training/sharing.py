"""How processes share a step: every one keeps all weights, or its part of each.

Whole weights: gradients are summed in one message at the end of a step. Parts (`share_out`, FSDP2): a block's weights
are gathered when it computes, its gradients summed and cut up when it is done, so that no process ever holds the
gradients or the optimizer's memory of a whole model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from unmask.models.backbone import Backbone


def place() -> tuple[int, int]:
    """This process's number and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@runtime_checkable
class Gradients(Protocol):
    """The gradients of a step, over all micro-batches and processes."""

    def clear(self) -> None: ...

    def gather(self) -> None:
        """Sum over the processes."""

    def norm(self) -> float: ...

    def scale(self, factor: float) -> None: ...

    def divide(self, divisor: float) -> None: ...


def gradients_of(parameters: Sequence[Tensor]) -> Gradients:
    """For whole parameters, or for parts of them."""
    return GradientParts(parameters) if is_part(parameters[0]) else WholeGradients(parameters)


class WholeGradients:
    """One buffer behind all gradients: clipping and the message between processes need no copies."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.buffer = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        for parameter, part in zip(parameters, torch.split(self.buffer, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def clear(self) -> None:
        self.buffer.zero_()

    def gather(self) -> None:
        if place()[1] > 1:
            dist.all_reduce(self.buffer)

    def norm(self) -> float:
        return float(self.buffer.norm())

    def scale(self, factor: float) -> None:
        self.buffer.mul_(factor)

    def divide(self, divisor: float) -> None:
        self.buffer.div_(divisor)


class GradientParts:
    """Gradients of weights that are shared out; `backward` has summed them already."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters

    @property
    def _parts(self) -> list[Tensor]:
        return [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def gather(self) -> None:
        pass

    def norm(self) -> float:
        squares = torch.stack([part.float().square().sum() for part in self._parts]).sum()
        dist.all_reduce(squares)
        return float(squares.sqrt())

    def scale(self, factor: float) -> None:
        for part in self._parts:
            part.mul_(factor)

    def divide(self, divisor: float) -> None:
        for part in self._parts:
            part.div_(divisor)


def share_out(model: Backbone) -> None:
    """Cut every weight into one part per process, block by block; call it before the recipe makes optimizers.

    Gradients are summed, not averaged: the loop divides them by the count of the whole step. Inside a training only
    `Backbone.hidden` and `Backbone.logits` compute, so decoding with a shared-out model does not work.
    """
    mesh = init_device_mesh(next(model.parameters()).device.type, (place()[1],))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name in ("hidden", "logits"):
        register_fsdp_forward_method(model, name)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can only sum


def is_part(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """What of a tensor lies in this process, under the same memory."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must call it."""
    with torch.no_grad():
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def part_for(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that belongs to this process, cut as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()


@torch.no_grad()
def put(tensor: Tensor, values: Tensor) -> None:
    """Fill a tensor, or this process's part of it, from a whole one.

    Raises:
        ValueError: if the shapes differ.
    """
    if tensor.shape != values.shape:
        raise ValueError(f"shape {list(values.shape)} in place of {list(tensor.shape)}")
    local(tensor).copy_(part_for(values, tensor))


def whole_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state as one process would have it; every process must call it."""
    state = optimizer.state_dict()
    if not is_part(optimizer.param_groups[0]["params"][0]):
        return state
    memory = {
        index: {name: whole(value).cpu() if isinstance(value, Tensor) else value for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return state | {"state": memory}


def load_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Undo `whole_state`, also with another number of processes.

    Raises:
        ValueError: if the state belongs to other parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if is_part(parameters[0]):
        state = dict(state) | {
            "state": {
                index: {name: _as_part(value, parameters[index]) for name, value in entry.items()}
                for index, entry in state["state"].items()
            }
        }
    optimizer.load_state_dict(dict(state))


def _as_part(value: Any, like: DTensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
