"""From a name to a model ready to decode: find the folder, read the config, load the weights.

Known families: LLaDA and Dream; further ones come from plug-ins. No code from a checkpoint is ever run.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import torch

from unmask.errors import CheckpointError, RequestError
from unmask.models.adapters import fold
from unmask.models.backbone import Backbone
from unmask.models.checkpoints.adapters import (
    CONFIG_FILE,
    OWN_FILE,
    WEIGHTS_FILE,
    StoredAdapter,
    attach_stored,
    open_adapter,
    read_own_section,
)
from unmask.models.checkpoints.dream import DREAM
from unmask.models.checkpoints.family import OWN_SECTION, Family, own_settings
from unmask.models.checkpoints.included import adapter_on, included_folder, included_models
from unmask.models.checkpoints.llada import LLADA
from unmask.models.checkpoints.reading import (
    DTYPES,
    Settings,
    TensorHeader,
    check_tensors,
    empty_backbone,
    fill,
    read_headers,
    read_tensors,
    resolve_names,
)
from unmask.models.config import AttentionPattern, BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text

__all__ = [
    "FAMILIES",
    "Family",
    "LoadedModel",
    "Opened",
    "adapter_on",
    "find_adapter",
    "find_family",
    "find_folder",
    "included_models",
    "load_checkpoint",
    "open_folder",
]

ENTRY_POINTS = "unmask.checkpoints"
FAMILIES: Mapping[str, Family] = {"llada": LLADA, "dream": DREAM}

# Up to this many parameters "auto" computes in float32 on a CPU, which is faster there than bfloat16; above it the
# memory matters more.
SMALL = 1_000_000_000

# What a checkpoint needs from a hub: no pickled weights, no code.
_TEXT_FILES = ("*.json", "*.txt", "*.jinja")
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint in memory."""

    backbone: Backbone
    facts: ModelFacts
    text: Text
    source: str  # the name it was asked for by
    folder: Path  # where its files lie
    dtype: torch.dtype
    device: torch.device
    adapter: StoredAdapter | None = None  # merged into the backbone, or attached to it


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint of which everything but the weights has been read."""

    folder: Path
    settings: Settings
    family: Family
    config: BackboneConfig
    facts: ModelFacts
    text: Text
    adapter: StoredAdapter | None = None  # on top of it; of the hub, with its weights


def load_checkpoint(
    name_or_path: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    attention: AttentionPattern | None = None,
    block_length: int | None = None,
    adapter: str | Path | None = None,
    merge: bool = True,
) -> LoadedModel:
    """Load a checkpoint.

    Args:
        name_or_path: "builtin" for the small model that comes with the package, "builtin:NAME" for a variant of it, a
            folder, or a model of the hub as "organisation/name", with "@revision" behind it if wanted.
        device: "auto" is the first CUDA device if there is one, else the CPU; any other name as torch knows it.
        dtype: "auto" is the stored dtype, but float32 on a CPU for a model of up to a billion parameters; else
            "float32", "bfloat16", "float16", "float64", or the torch dtype.
        attention: replaces the pattern that checkpoint and adapter state, for students trained elsewhere.
        block_length: slots per block of block-causal attention; replaces what checkpoint and adapter state.
        adapter: a LoRA adapter in peft's format, a folder or a hub name; what its folder says about attention (see
            `checkpoints.adapters`) replaces what the checkpoint says.
        merge: add the adapter to the weights, for speed; False leaves it beside them, to be trained or switched off.

    Raises:
        CheckpointError: if it cannot be found, read, or does not fit its config; or the adapter does not fit it.
        RequestError: if the device or dtype is not available, or a variant that is an adapter is given another one.
    """
    folder = find_folder(name_or_path)
    adapter = adapter_on(name_or_path, adapter)
    opened = open_folder(folder, attention=attention, block_length=block_length, adapter=adapter)
    headers = read_headers(opened.folder)
    backbone, names = match_tensors(opened, headers)
    target = choose_device(device)
    chosen = choose_dtype(dtype, target, headers, names)
    fill(backbone, names, headers, device=target, dtype=chosen)
    backbone.eval()
    if opened.adapter is not None:
        attach_stored(backbone, opened.adapter)
        if merge:
            fold(backbone)
    return LoadedModel(
        backbone,
        opened.facts,
        opened.text,
        str(name_or_path),
        opened.folder,
        dtype=chosen,
        device=target,
        adapter=opened.adapter,
    )


def find_adapter(name_or_path: str | Path) -> Path:
    """The folder of an adapter; downloads it when the name is one of the hub.

    Raises:
        CheckpointError: if there is none.
    """
    name = str(name_or_path)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path}: is a file; name the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}")
    match = _HUB_NAME.fullmatch(name)
    if isinstance(name_or_path, Path) or match is None or name.startswith("."):
        raise CheckpointError(
            f'no adapter "{name}": there is no such folder, and it is no hub name of the form "organisation/name"'
        )
    return _download(match["repository"], match["revision"], (CONFIG_FILE, WEIGHTS_FILE, OWN_FILE))


def find_folder(name_or_path: str | Path, *, weights: bool = True) -> Path:
    """The folder of a checkpoint; downloads it when the name is one of the hub.

    Args:
        name_or_path: as for `load_checkpoint`.
        weights: False leaves the weights out of a download.
    """
    name = str(name_or_path)
    included = included_folder(name)
    if included is not None:
        return included
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path}: is a file; name the folder that holds config.json and the weights")
    match = _HUB_NAME.fullmatch(name)
    if isinstance(name_or_path, Path) or match is None or name.startswith("."):
        raise CheckpointError(
            f'no checkpoint "{name}": there is no such folder, and it is neither "builtin" nor a hub name '
            'of the form "organisation/name"'
        )
    return _download(
        match["repository"], match["revision"], (*_TEXT_FILES, "*.safetensors") if weights else _TEXT_FILES
    )


def _download(repository: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # every HTTP library below it has its own exceptions
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f'no folder "{repository}" here, and it could not be downloaded from the hub: {reason} '
            f"({type(error).__name__}). Check the name, the network and, for a gated model, your login; "
            "or give the path of a folder that holds the files"
        ) from error


def open_folder(
    folder: Path,
    *,
    attention: AttentionPattern | None = None,
    block_length: int | None = None,
    adapter: str | Path | None = None,
) -> Opened:
    """Read config and tokenizer of a checkpoint folder, and config and headers of an adapter, and check that they fit;
    arguments and errors as for `load_checkpoint`."""
    settings = Settings.read(folder)
    beside = None if adapter is None else find_adapter(adapter)
    if beside is not None and (own := read_own_section(beside)):
        settings = Settings(settings.path, {**settings.values, OWN_SECTION: {**own_settings(settings).values, **own}})
    family = find_family(settings)
    try:
        config = family.read_config(settings)
        if attention is not None:
            config = replace(config, attention=attention)
        if block_length is not None:
            config = replace(config, block_length=block_length)
    except ValueError as error:
        raise CheckpointError(f"{settings.path}: {error}") from error
    if block_length is not None and config.attention != "block_causal":
        warnings.warn(f"block_length={block_length} has no effect: attention is {config.attention}", stacklevel=3)
    text = Text.load(folder)
    facts = family.read_facts(settings, config, text)
    if text.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer does not belong to this model: it has ids up to {text.vocab_size - 1}, "
            f"the embedding ends at {config.vocab_size - 1}"
        )
    named = text.named.get("mask_token")
    if named is not None and text.id_of(named) != facts.mask_id:
        warnings.warn(
            f'{folder}: config.json says the mask id is {facts.mask_id}, the tokenizer\'s mask token "{named}" is '
            f"{text.id_of(named)}; config.json is followed",
            stacklevel=3,
        )
    stored = None
    if beside is not None:
        stored = open_adapter(str(adapter), beside, config, family.tensor_names(config), family.name)
    return Opened(folder, settings, family, config, facts, text, stored)


def find_family(settings: Settings) -> Family:
    """The adapter for a config's `model_type`, in any case; ours first, then plug-ins."""
    wanted = settings.text("model_type")
    if wanted.lower() in FAMILIES:
        return FAMILIES[wanted.lower()]
    plug_ins = {point.name.lower(): point for point in metadata.entry_points(group=ENTRY_POINTS)}
    point = plug_ins.get(wanted.lower())
    if point is None:
        known = ", ".join(sorted({*FAMILIES, *plug_ins}))
        raise CheckpointError(f'{settings.path}: no adapter for model_type "{wanted}"; known: {known}')
    family = point.load()
    if not isinstance(family, Family):
        raise CheckpointError(f'the plug-in "{point.value}" for model_type "{wanted}" is no Family: got {family!r}')
    return family


def match_tensors(opened: Opened, headers: Mapping[str, TensorHeader]) -> tuple[Backbone, dict[str, str]]:
    """A backbone without weights (on the meta device) and, for each of its tensors, the name in the files.

    Raises:
        CheckpointError: if stored tensors and config do not fit.
    """
    backbone = empty_backbone(opened.config)
    names = resolve_names(opened.family.tensor_names(opened.config), headers)
    headers = _without_tied_copy(opened, names, headers)
    shapes = {name: tuple(parameter.shape) for name, parameter in backbone.named_parameters()}
    assert shapes.keys() == names.keys(), f"the name map of {opened.family.name} does not cover the backbone"
    check_tensors(opened.folder, names, shapes, headers)
    return backbone, names


def _without_tied_copy(
    opened: Opened, names: Mapping[str, str], headers: Mapping[str, TensorHeader]
) -> Mapping[str, TensorHeader]:
    """Drop the head that some tools store although it is the embedding table, after a look that it really is."""
    if not opened.config.tied:
        return headers
    untied = resolve_names(opened.family.tensor_names(replace(opened.config, tied=False)), headers)
    head, table = untied["head.weight"], names["embedding.weight"]
    if head not in headers or table not in headers:
        return headers
    tensors = dict(read_tensors((head, table), headers))
    if not torch.equal(tensors[head], tensors[table]):
        raise CheckpointError(
            f"{opened.settings.path}: says that the head is the embedding table, but {head} and {table} differ"
        )
    return {name: header for name, header in headers.items() if name != head}


def choose_device(device: str | torch.device) -> torch.device:
    """The device behind a name; "auto" is CUDA if there is any, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise RequestError(f'no device "{device}": {str(error).splitlines()[0]}') from error
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if chosen.type not in available:
        raise RequestError(f'device "{device}" is not supported; use {", ".join(available)} or auto')
    if not available[chosen.type]:
        raise RequestError(f'device "{device}" is not available on this machine; use "cpu" or "auto"')
    return chosen


def choose_dtype(
    dtype: str | torch.dtype, device: torch.device, headers: Mapping[str, TensorHeader], names: Mapping[str, str]
) -> torch.dtype:
    """The dtype behind a name; for "auto" see `load_checkpoint`."""
    if dtype == "auto":
        stored = [headers[theirs] for theirs in names.values()]
        small = sum(header.size for header in stored) <= SMALL
        largest = max(stored, key=lambda header: header.size)
        return torch.float32 if device.type == "cpu" and small else DTYPES[largest.dtype]
    by_name = {str(known).removeprefix("torch."): known for known in DTYPES.values()}
    name = str(dtype).removeprefix("torch.")
    if name not in by_name:
        raise RequestError(f'no dtype "{name}" for weights; allowed: auto, {", ".join(by_name)}')
    return by_name[name]
