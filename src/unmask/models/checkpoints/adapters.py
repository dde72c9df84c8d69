"""Adapters in the peft library's file format: a folder with `adapter_config.json` and `adapter_model.safetensors`.

Source: the files of published adapters (D2F, dParallel) and of peft's `save_pretrained`. A tensor is called
`base_model.model.<published name of the layer>.lora_A.weight`, or `lora_B`. What an adapter needs beyond A and B
(trained biases or whole layers, DoRA, initialisations that change the base) is refused by name.

An adapter that changes who sees whom (D2F) has a third file of ours beside them, `unmask.json`, which peft never opens:
the "unmask" section of the config.json that its model would have.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unmask.errors import CheckpointError
from unmask.models.adapters import (
    HEAD,
    Adapted,
    Adapter,
    LoraConfig,
    adapt,
    linear_modules,
    warn_of_unmatched,
)
from unmask.models.backbone import Backbone
from unmask.models.checkpoints.family import OWN_SECTION, own_section, own_settings
from unmask.models.checkpoints.reading import (
    DTYPES,
    Settings,
    TensorHeader,
    empty_backbone,
    faults_among,
    headers_of,
    read_tensors,
)
from unmask.models.config import BackboneConfig
from unmask.models.files import read_json

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
OWN_FILE = "unmask.json"
PREFIX = "base_model.model."
# Some trainers store what is in memory, where peft puts the adapter's name behind lora_A.
_TENSOR = re.compile(r"(base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
# Keys whose meaning we do not have, with the values that mean nothing.
_INERT: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # the others change the base
}
_DEFAULTS = {"peft_type": "LORA", "bias": "none"}


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter of which everything but the numbers has been read, and that fits its model."""

    source: str  # the name it was asked for by
    folder: Path
    adapter: Adapter
    tensors: Mapping[str, tuple[str, str]]  # our name of a layer -> names of A and B in the file
    headers: Mapping[str, TensorHeader]
    unmatched: tuple[str, ...]  # targets that match no layer

    @property
    def size(self) -> int:
        """Number of entries of all A and B."""
        return sum(self.headers[name].size for pair in self.tensors.values() for name in pair)

    def describe(self) -> dict[str, Any]:
        """Facts for `unmask inspect`, ready for JSON."""
        config = self.adapter.config
        return {
            "source": self.source,
            "folder": str(self.folder),
            "base": config.base,
            "rank": config.rank,
            "alpha": config.alpha,
            "rslora": config.rslora,
            "dropout": config.dropout,
            "targets": config.targets if isinstance(config.targets, str) else list(config.targets),
            "unmatched": list(self.unmatched),
            "layers": len(self.tensors),
            "parameters": self.size,
        }


def read_lora_config(folder: Path) -> LoraConfig:
    """`adapter_config.json` of a folder.

    Raises:
        CheckpointError: if it is absent, invalid, or asks for what is not supported.
    """
    settings = Settings(folder / CONFIG_FILE, read_json(folder / CONFIG_FILE))
    for key, allowed in _INERT.items():
        settings.must_be(key, *allowed, default=_DEFAULTS.get(key))
    values = settings.values
    dropout = values.get("lora_dropout", 0.0)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise settings.wrong("lora_dropout", "a number from 0 to below 1")
    layers = values.get("layers_to_transform")
    if type(layers) is int:
        layers = [layers]
    if layers is not None and (not isinstance(layers, list) or any(type(layer) is not int for layer in layers)):
        raise settings.wrong("layers_to_transform", "a layer's number, a list of them, or null")
    try:
        return LoraConfig(
            rank=settings.count("r"),
            alpha=settings.number("lora_alpha"),
            targets=_names(settings, "target_modules"),
            dropout=float(dropout),
            rslora=settings.flag("use_rslora", False),
            excluded=_names(settings, "exclude_modules") if values.get("exclude_modules") else (),
            layers=tuple(layers) if layers else None,
            ranks={end: Settings(settings.path, values["rank_pattern"]).count(end) for end in _map(values, "rank")},
            alphas={end: Settings(settings.path, values["alpha_pattern"]).number(end) for end in _map(values, "alpha")},
            base=values.get("base_model_name_or_path"),
            task=values.get("task_type"),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{settings.path}: {error}") from error


def read_own_section(folder: Path) -> dict[str, Any]:
    """What an adapter's folder says about its model's attention, as the "unmask" section of a config.json would; empty
    where it says nothing.

    Raises:
        CheckpointError: if the file is invalid.
    """
    path = folder / OWN_FILE
    if not path.exists():
        return {}
    own = own_settings(Settings(path, {OWN_SECTION: read_json(path)}))
    own.count("block_length", 1)
    return dict(own.values)


def _names(settings: Settings, key: str) -> tuple[str, ...] | str:
    value = settings.values.get(key)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise settings.wrong(key, "a list of names or a pattern")


def _map(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = values.get(f"{kind}_pattern") or {}
    if not isinstance(found, dict):
        raise ValueError(f'"{kind}_pattern" must be an object: got {json.dumps(found)}')
    return found


def open_adapter(
    source: str, folder: Path, config: BackboneConfig, names: Mapping[str, str], family: str
) -> StoredAdapter:
    """Read config and headers of an adapter and compare them with the model it is for; reads no weights.

    Args:
        source: the name it was asked for by.
        folder: where its files lie.
        config: sizes of the model.
        names: our tensor names -> the published ones.
        family: of the model, for messages.

    A warning tells which of its targets match nothing.

    Raises:
        CheckpointError: if files are absent or unreadable, or tensors and model do not fit.
    """
    lora = read_lora_config(folder)
    if not (folder / WEIGHTS_FILE).is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        found = f"; found only pickled weights ({pickled[0]}), which are never opened: convert them" if pickled else ""
        raise CheckpointError(f"{folder}: holds no {WEIGHTS_FILE}{found}")
    headers = headers_of(folder / WEIGHTS_FILE)
    modules = linear_modules(names)
    parts, unknown = _parts(headers, modules)
    wanted = {ours for ours, theirs in modules.items() if lora.hits(theirs, head=ours == HEAD)}
    shapes = {ours: tuple(weight.shape) for ours, weight in _linear_weights(config, modules)}
    misshapen, wrong_type = [], []
    for ours, pair in parts.items():
        (outer, inner), rank = shapes[ours], lora.rank_of(modules[ours])
        for part, expected in (("A", (rank, inner)), ("B", (outer, rank))):
            header = headers.get(pair.get(part, ""))
            if header is not None and header.shape != expected:
                misshapen.append(f"{pair[part]} (expected {list(expected)}, got {list(header.shape)})")
            if header is not None and header.dtype not in DTYPES:
                wrong_type.append(f"{pair[part]} ({header.dtype})")
    missing = [
        f"{PREFIX}{modules[ours]}.lora_{part}.weight"
        for ours in wanted | parts.keys()
        for part in "AB"
        if part not in parts.get(ours, {})
    ]
    faults = faults_among(
        (
            ("missing", missing),
            ("unknown", unknown),
            (f"not among the target modules of {CONFIG_FILE}", [modules[ours] for ours in parts.keys() - wanted]),
            ("wrongly shaped", misshapen),
            (f"in an unsupported dtype (supported: {', '.join(DTYPES)})", wrong_type),
        )
    )
    if not parts and not faults:
        faults = "it has no tensors" if not headers else "none of its target modules is in this model"
    if faults:
        made = f" (it was made for {lora.base})" if lora.base else ""
        raise CheckpointError(f"{folder}: the adapter does not fit this {family} model{made}; {faults}")
    chosen = {ours: theirs for ours, theirs in modules.items() if ours in parts}
    tensors = {ours: (parts[ours]["A"], parts[ours]["B"]) for ours in chosen}
    warn_of_unmatched(lora, modules)
    unmatched = lora.unmatched(tuple(modules.values()))
    return StoredAdapter(source, folder, Adapter(lora, chosen), tensors, headers, unmatched)


def _parts(
    headers: Mapping[str, TensorHeader], modules: Mapping[str, str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Our names of layers -> "A" and "B" -> names in the file; and the names that belong to no layer."""
    ours_of = {theirs: ours for ours, theirs in modules.items()}
    parts: dict[str, dict[str, str]] = {}
    unknown = []
    for name in headers:
        match = _TENSOR.fullmatch(name)
        if match is None or match["module"] not in ours_of:
            unknown.append(name)
        else:
            parts.setdefault(ours_of[match["module"]], {})[match["part"]] = name
    return parts, unknown


def _linear_weights(config: BackboneConfig, modules: Mapping[str, str]) -> list[tuple[str, torch.Tensor]]:
    backbone = empty_backbone(config)
    return [(ours, backbone.get_parameter(f"{ours}.weight")) for ours in modules]


def attach_stored(backbone: Backbone, stored: StoredAdapter) -> Adapter:
    """Put a stored adapter on a model and freeze the rest."""
    adapt(backbone, stored.adapter)
    place = {name: (ours, part) for ours, pair in stored.tensors.items() for part, name in zip("ab", pair, strict=True)}
    with torch.no_grad():
        for name, tensor in read_tensors(place, stored.headers):
            ours, part = place[name]
            backbone.get_parameter(f"{ours}.lora_{part}").copy_(tensor)
    return stored.adapter


def save_adapter(backbone: Backbone, adapter: Adapter, folder: Path, *, base: str | None = None) -> None:
    """Write a backbone's adapter, all of it or nothing.

    Args:
        backbone: with the adapter attached; its attention is written too unless it is bidirectional.
        adapter: as `attach` or `attach_stored` returned it.
        folder: to make; one that holds an adapter and nothing else is replaced.
        base: name of the model below it; None keeps what the config says.

    Raises:
        CheckpointError: if the folder exists and holds anything else.
    """
    files = {CONFIG_FILE, WEIGHTS_FILE, OWN_FILE}
    strange = {path.name for path in folder.glob("*")} - files if folder.exists() else set()
    if folder.is_file() or strange:
        raise CheckpointError(f"{folder}: exists and holds more than an adapter; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        tensors = {}
        for ours, theirs in adapter.modules.items():
            layer = backbone.get_submodule(ours)
            assert isinstance(layer, Adapted), f"{ours} has no adapter"
            tensors[f"{PREFIX}{theirs}.lora_A.weight"] = layer.lora_a.detach().to("cpu", copy=True)
            tensors[f"{PREFIX}{theirs}.lora_B.weight"] = layer.lora_b.detach().to("cpu", copy=True)
        save_file(tensors, fresh / WEIGHTS_FILE, metadata={"format": "pt"})
        (fresh / WEIGHTS_FILE).chmod(0o644)  # safetensors leaves its files readable by their owner only
        written = json.dumps(_written(adapter.config, base), indent=2) + "\n"
        (fresh / CONFIG_FILE).write_text(written, encoding="utf-8")
        if own := own_section(backbone.config):
            (fresh / OWN_FILE).write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        fresh.rename(folder)


def _written(config: LoraConfig, base: str | None) -> dict[str, Any]:
    def names(given: tuple[str, ...] | str) -> list[str] | str:
        return given if isinstance(given, str) else list(given)

    return {
        "alpha_pattern": dict(config.alphas),
        "base_model_name_or_path": base if base is not None else config.base,
        "bias": "none",
        "exclude_modules": names(config.excluded) or None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_to_transform": None if config.layers is None else list(config.layers),
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": config.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": config.rank,
        "rank_pattern": dict(config.ranks),
        "target_modules": names(config.targets),
        "task_type": config.task,
        "use_dora": False,
        "use_rslora": config.rslora,
    }
