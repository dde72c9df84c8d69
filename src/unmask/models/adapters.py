"""Low-rank adapters on the backbone's linear layers: attach, train, switch off, merge.

Source: Hu et al., LoRA: low-rank adaptation of large language models (arXiv 2106.09685), section 4.1; scaling by the
root of the rank: Kalajdzievski (arXiv 2312.03732). An adapted layer gives W x + b + s B A x, with s = alpha / r.

Layers are chosen by the names that a checkpoint's family publishes, by the rules of the peft library, so that a list of
targets means here what it means there. Reading and writing files is in `checkpoints/adapters.py`.
"""

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.backbone import Backbone

ALL_LINEAR = "all-linear"  # as `targets`: every linear layer but the output head
LINEARS = ("query", "key", "value", "attention_out", "gate", "up", "down")  # of a block, as the backbone calls them
HEAD = "head"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What an adapter is, apart from its numbers. The comments give the names in `adapter_config.json`."""

    rank: int  # r
    alpha: float  # lora_alpha
    targets: tuple[str, ...] | str  # target_modules: ends of published names, or a pattern for whole names
    dropout: float = 0.0  # lora_dropout, of the layer's input, in training only
    rslora: bool = False  # use_rslora: s = alpha / sqrt(r)
    excluded: tuple[str, ...] | str = ()  # exclude_modules, written as targets
    layers: tuple[int, ...] | None = None  # layers_to_transform, from 0; None = all
    ranks: Mapping[str, int] = field(default_factory=dict)  # rank_pattern: ends of names -> another rank
    alphas: Mapping[str, float] = field(default_factory=dict)  # alpha_pattern
    base: str | None = None  # base_model_name_or_path
    task: str | None = None  # task_type, e.g. "CAUSAL_LM"; of no meaning here

    def __post_init__(self) -> None:
        for rank in (self.rank, *self.ranks.values()):
            if rank < 1:
                raise ValueError(f"the rank must be at least 1: got {rank}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1: got {self.dropout}")
        if not self.targets:
            raise ValueError("targets must name at least one layer: got none")

    def rank_of(self, published: str) -> int:
        """Rank at a layer."""
        return next((rank for end, rank in self.ranks.items() if _ends(end, published)), self.rank)

    def scaling_of(self, published: str) -> float:
        """What B A is multiplied with at a layer."""
        rank = self.rank_of(published)
        alpha = next((alpha for end, alpha in self.alphas.items() if _ends(end, published)), self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def hits(self, published: str, *, head: bool = False) -> bool:
        """Whether the layer of this name gets an adapter.

        Args:
            published: name of the layer in checkpoints of its family.
            head: whether it is the output head, which "all-linear" leaves out.
        """
        if _listed_in(self.excluded, published):
            return False
        if self.targets == ALL_LINEAR:
            return not head
        if not _listed_in(self.targets, published):
            return False
        if self.layers is None or isinstance(self.targets, str) or published in self.targets:
            return True
        number = re.search(r"\.(\d+)\.", published)
        return number is not None and int(number[1]) in self.layers

    def unmatched(self, published: Sequence[str]) -> tuple[str, ...]:
        """Targets that are the name of no layer, like those of another family."""
        if isinstance(self.targets, str):
            return ()
        return tuple(target for target in self.targets if not any(_listed_in((target,), name) for name in published))


def _ends(pattern: str, published: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", published) is not None


def _listed_in(names: tuple[str, ...] | str, published: str) -> bool:
    """A list holds whole names or their ends, a string is a pattern of the whole name."""
    if isinstance(names, str):
        return re.fullmatch(names, published) is not None
    return any(published == name or published.endswith(f".{name}") for name in names)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter and the layers it sits on."""

    config: LoraConfig
    modules: Mapping[str, str]  # our name of a layer -> the published one


class Adapted(nn.Linear):
    """A linear layer with an adapter; its own weight and bias keep their names and never change."""

    merged: Tensor | None

    def __init__(self, linear: nn.Linear, rank: int, scaling: float, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.scaling, self.dropout, self.on = rank, scaling, dropout, True
        # small steps of an optimiser would be lost in half precision
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        self.lora_a = nn.Parameter(self.weight.new_zeros(rank, linear.in_features, dtype=wide))
        self.lora_b = nn.Parameter(self.weight.new_zeros(linear.out_features, rank, dtype=wide))
        self.register_buffer("merged", None, persistent=False)
        self.train(linear.training)

    def combined(self) -> Float[Tensor, "k c"]:
        """W + s B A, rounded once."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        delta = self.lora_b.to(wide) @ self.lora_a.to(wide)
        return torch.add(self.weight.to(wide), delta, alpha=self.scaling).to(self.weight.dtype)

    def forward(self, x: Float[Tensor, "*n c"]) -> Float[Tensor, "*n k"]:
        if self.on and self.merged is not None:
            return functional.linear(x, self.merged, self.bias)
        out = functional.linear(x, self.weight, self.bias)
        if not self.on:
            return out
        narrow = functional.linear(
            functional.dropout(x.to(self.lora_a.dtype), self.dropout, self.training), self.lora_a
        )
        return out + (self.scaling * functional.linear(narrow, self.lora_b)).to(out.dtype)

    def train(self, mode: bool = True) -> "Adapted":
        if mode:
            self.merged = None  # it would hide what the optimiser does to A and B
        super().train(mode)
        return self


def linear_modules(names: Mapping[str, str]) -> dict[str, str]:
    """Our names of all linear layers -> the published ones.

    Args:
        names: our tensor names -> the published ones (`Family.tensor_names`).
    """
    modules = {
        ours.removesuffix(".weight"): theirs.removesuffix(".weight")
        for ours, theirs in names.items()
        if ours.endswith(".weight")
    }
    return {ours: theirs for ours, theirs in modules.items() if ours.rpartition(".")[2] in (*LINEARS, HEAD)}


def published_targets(names: Mapping[str, str], linears: Sequence[str] = LINEARS) -> tuple[str, ...]:
    """What a family calls the linear layers of a block, for `LoraConfig.targets`.

    Args:
        names: our tensor names -> the published ones.
        linears: the backbone's names, e.g. ("query", "key", "value", "attention_out").
    """
    return tuple(names[f"blocks.0.{linear}.weight"].removesuffix(".weight").rpartition(".")[2] for linear in linears)


def attach(
    backbone: Backbone,
    config: LoraConfig,
    names: Mapping[str, str],
    *,
    init: Literal["kaiming", "gaussian"] = "kaiming",
    seed: int = 0,
) -> Adapter:
    """Give a backbone a new adapter that does nothing yet: A random, B zero. Everything else is frozen.

    The output head stays as it is, even if a target is its name too (`ff_out` of LLaDA); the returned config says so.

    Args:
        backbone: is changed.
        config: rank, targets, and so on; a warning tells which targets match nothing.
        names: our tensor names -> the published ones (`Family.tensor_names`).
        init: how A is drawn: uniform below 1 / sqrt(width), or normal with deviation 1 / r.
        seed: of A.

    Raises:
        ValueError: no layer is a target, or there is an adapter already.
    """
    modules = linear_modules(names)
    head = modules.get(HEAD)
    if head is not None and not isinstance(config.targets, str) and config.hits(head, head=True):
        if isinstance(config.excluded, str):
            raise ValueError(f"excluded must be names where a target is also the output head: got {config.excluded!r}")
        config = replace(config, excluded=(*config.excluded, head))
    chosen = {ours: theirs for ours, theirs in modules.items() if ours != HEAD and config.hits(theirs)}
    if not chosen:
        raise ValueError(f"targets must name layers of this model: got {config.targets!r}, allowed {_ends_of(modules)}")
    warn_of_unmatched(config, modules)
    adapter = Adapter(config, chosen)
    adapt(backbone, adapter)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapted_layers(backbone):
            bound = layer.in_features**-0.5
            noise = torch.empty(layer.lora_a.shape)
            if init == "kaiming":
                noise.uniform_(-bound, bound, generator=generator)
            else:
                noise.normal_(0.0, 1.0 / layer.rank, generator=generator)
            layer.lora_a.copy_(noise)
    return adapter


def adapt(backbone: Backbone, adapter: Adapter) -> None:
    """Put an adapter of zeros on the layers it names, and freeze everything else.

    Raises:
        ValueError: if the backbone has an adapter already.
    """
    if adapted_layers(backbone):
        raise ValueError("the model has an adapter already: fold it in first")
    backbone.requires_grad_(False)
    for ours, theirs in adapter.modules.items():
        linear = backbone.get_submodule(ours)
        assert isinstance(linear, nn.Linear), ours
        config = adapter.config
        layer = Adapted(linear, config.rank_of(theirs), config.scaling_of(theirs), config.dropout)
        backbone.set_submodule(ours, layer)


def warn_of_unmatched(config: LoraConfig, modules: Mapping[str, str]) -> None:
    """Say which targets match nothing: a list written for Llama hits q, k, v and up of LLaDA only."""
    unmatched = config.unmatched(tuple(modules.values()))
    if unmatched:
        warnings.warn(
            f"target modules that match nothing in this model: {', '.join(unmatched)}; its linear layers are called "
            f"{_ends_of(modules)}",
            stacklevel=4,
        )


def _ends_of(modules: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(theirs.rpartition(".")[2] for theirs in modules.values()))


def adapted_layers(backbone: nn.Module) -> list[Adapted]:
    """The layers that have an adapter, in the order of the backbone."""
    return [module for module in backbone.modules() if isinstance(module, Adapted)]


def adapter_parameters(backbone: nn.Module) -> list[nn.Parameter]:
    """What an optimiser is to train: A and B of every adapted layer."""
    return [matrix for layer in adapted_layers(backbone) for matrix in (layer.lora_a, layer.lora_b)]


@contextmanager
def adapter_off(backbone: nn.Module) -> Iterator[None]:
    """Inside, the model computes what it computed before it had an adapter (the teacher of D2F)."""
    layers = adapted_layers(backbone)
    before = [layer.on for layer in layers]
    try:
        for layer in layers:
            layer.on = False
        yield
    finally:
        for layer, on in zip(layers, before, strict=True):
            layer.on = on


@torch.no_grad()
def merge(backbone: nn.Module) -> None:
    """One product per layer instead of three, for decoding. Takes a second copy of the adapted weights; the first one
    is what `unmerge` and `adapter_off` go back to, bit for bit. `train()` ends it."""
    for layer in adapted_layers(backbone):
        layer.merged = layer.combined()


def unmerge(backbone: nn.Module) -> None:
    """Undo `merge`."""
    for layer in adapted_layers(backbone):
        layer.merged = None


@torch.no_grad()
def fold(backbone: Backbone) -> None:
    """Add the adapter to the weights for good: a plain backbone remains, and takes no more memory than before."""
    for name, layer in list(backbone.named_modules()):
        if isinstance(layer, Adapted):
            plain = nn.Linear(1, 1, bias=layer.bias is not None)  # sizes of the layer follow with its tensors
            plain.in_features, plain.out_features = layer.in_features, layer.out_features
            plain.weight, plain.bias = nn.Parameter(layer.combined()), layer.bias
            backbone.set_submodule(name, plain.train(layer.training))
    backbone.requires_grad_(True)
