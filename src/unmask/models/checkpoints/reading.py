"""config.json and safetensors files, read with errors that name the file and the entry at fault.

Weights go from the file straight into their final device and dtype, one tensor at a time: apart from the model itself,
memory holds one tensor. Whether the tensors fit is known from the files' headers, before any weight is read.

Refuses to know: what a family's keys and tensors are called (see `llada.py`, `dream.py`).
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmask.errors import CheckpointError
from unmask.models.backbone import Backbone
from unmask.models.config import BackboneConfig
from unmask.models.files import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LISTED = 8  # names in an error message


@dataclass(frozen=True, slots=True)
class Settings:
    """config.json, asked key by key. Every method raises `CheckpointError` naming file and key."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        return cls(folder / "config.json", read_json(folder / "config.json"))

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        got = f"got {json.dumps(self.values[key])}" if key in self.values else "it is missing"
        return CheckpointError(f'{self.path}: "{key}" must be {wanted}: {got}')

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; null reads as the default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; null reads as the default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; null or absent reads as none."""
        value = self.values.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in listed):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(listed)

    def must_be(self, key: str, *allowed: Any, default: Any) -> None:
        """Refuse a feature the backbone does not have, by name; `default` is what an absent key means."""
        value = self.values.get(key, default)
        if value not in allowed:
            names = " or ".join(json.dumps(choice) for choice in allowed)
            raise CheckpointError(f"{self.path}: {key} = {json.dumps(value)} is not supported, only {names} is")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One stored tensor, before it is read."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # safetensors' name: "F32", "BF16", ...

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def headers_of(file: Path) -> dict[str, TensorHeader]:
    """Name, shape and dtype of every tensor of one safetensors file.

    Raises:
        CheckpointError: if it is absent or unreadable.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
            return {
                name: TensorHeader(file, tuple(piece.get_shape()), str(piece.get_dtype()))
                for name, piece in slices.items()
            }
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except (OSError, SafetensorError) as error:
        with file.open("rb") as opened:
            pointer = opened.read(40).startswith(b"version https://git-lfs")
        hint = "it is a git-lfs pointer, fetch the real file with `git lfs pull`" if pointer else str(error)
        raise CheckpointError(f"{file}: not a readable safetensors file (truncated?): {hint}") from error


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Name, shape and dtype of every stored tensor of a checkpoint, single-file or sharded; reads no weights.

    Raises:
        CheckpointError: if there is no safetensors file, a shard is absent or unreadable, or the index is wrong.
    """
    if (folder / SINGLE_FILE).is_file():
        return headers_of(folder / SINGLE_FILE)
    index_path = folder / INDEX_FILE
    if not index_path.is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        found = f"; found only pickled weights ({pickled[0]}), which are never opened: convert them" if pickled else ""
        raise CheckpointError(f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}{found}")

    index = read_json(index_path).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(shard, str) for shard in index.values()):
        raise CheckpointError(f'{index_path}: "weight_map" must map tensor names to file names')
    headers: dict[str, TensorHeader] = {}
    for shard in sorted(set(index.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f'{index_path}: shards must lie next to the index, got "{shard}"')
        if not (folder / shard).is_file():
            raise CheckpointError(f'{index_path}: names the shard "{shard}", which is not in {folder}')
        headers |= headers_of(folder / shard)
    lost = [name for name, shard in index.items() if name not in headers or headers[name].file.name != shard]
    if lost:
        raise CheckpointError(
            f'{index_path}: {_listed(lost)} not in the named shard ("{index[lost[0]]}" for the first)'
        )
    return headers


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


# Ways in which tools rename all tensors of a model at once; each maps a published name to the name in the file.
_RENAMINGS = (
    lambda name: name,
    lambda name: name.removeprefix("model."),
    lambda name: f"module.{name}",
    lambda name: f"_orig_mod.{name}",
)


def resolve_names(names: Mapping[str, str], headers: Mapping[str, TensorHeader]) -> dict[str, str]:
    """Our tensor names -> the names in the file, with a common prefix added or dropped where a tool did so."""
    anchor = names["embedding.weight"]
    for renaming in _RENAMINGS:
        if renaming(anchor) in headers:
            return {ours: renaming(theirs) for ours, theirs in names.items()}
    return dict(names)


def check_tensors(
    source: Path, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], headers: Mapping[str, TensorHeader]
) -> None:
    """Compare stored tensors with the backbone's.

    Args:
        source: the folder, for messages.
        names: our tensor names -> the names in the file.
        shapes: our tensor names -> the shapes the config asks for.
        headers: what is stored.

    Raises:
        CheckpointError: if tensors are missing, unknown, wrongly shaped, or not in a floating dtype.
    """
    found = {theirs: ours for ours, theirs in names.items()}
    missing = [theirs for theirs in found if theirs not in headers]
    extra = [name for name in headers if name not in found and not name.endswith("rotary_emb.inv_freq")]
    misshapen = [
        f"{theirs} (expected {list(shapes[ours])}, got {list(headers[theirs].shape)})"
        for theirs, ours in found.items()
        if theirs in headers and headers[theirs].shape != shapes[ours]
    ]
    wrong_type = [
        f"{theirs} ({headers[theirs].dtype})"
        for theirs in found
        if theirs in headers and headers[theirs].dtype not in DTYPES
    ]
    faults = faults_among(
        (
            ("missing", missing),
            ("unknown", extra),
            ("wrongly shaped", misshapen),
            (f"in an unsupported dtype (supported: {', '.join(DTYPES)})", wrong_type),
        )
    )
    if faults:
        raise CheckpointError(f"{source}: the tensors do not fit config.json; {faults}")


def faults_among(kinds: Iterable[tuple[str, Collection[str]]]) -> str:
    """What is wrong with the named tensors, kind by kind; empty if nothing is."""
    return "; ".join(f"{len(culprits)} {what}: {_listed(culprits)}" for what, culprits in kinds if culprits)


def read_tensors(
    names: Iterable[str], headers: Mapping[str, TensorHeader]
) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    """Stored tensors, file after file, so that each file is opened once.

    Yields:
        Name in the file and tensor, on the CPU, in the stored dtype. It may be a view of the mapped file: copy it.
    """
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(headers[name].file, []).append(name)
    for file, wanted in by_file.items():
        try:
            with safe_open(file, framework="pt") as opened:
                for name in wanted:
                    yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from error


class _WithoutInitialisation(TorchFunctionMode):
    """Skips filling parameters that have no memory; on the meta device torch loads its compiler for it (1.4 s)."""

    SKIPPED = frozenset({"normal_", "uniform_", "kaiming_uniform_", "fill_", "ones_", "zero_"})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.SKIPPED:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_backbone(config: BackboneConfig) -> Backbone:
    """A backbone on the meta device: shapes without memory, to be given weights by `fill`."""
    with torch.device("meta"), _WithoutInitialisation():
        return Backbone(config)


def fill(
    module: nn.Module,
    names: Mapping[str, str],
    headers: Mapping[str, TensorHeader],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Give a module on the meta device its weights.

    Args:
        module: from `empty_backbone`.
        names: our tensor names -> the names in the file.
        headers: what is stored, already checked by `check_tensors`.
        device: where the weights go.
        dtype: what they are converted to.
    """
    ours_of = {theirs: ours for ours, theirs in names.items()}
    for theirs, stored in read_tensors(ours_of, headers):
        path, _, leaf = ours_of[theirs].rpartition(".")
        # a copy even where nothing changes: a mapped file may be overwritten while the model lives
        weight = stored.to(device=device, dtype=dtype, copy=True)
        setattr(module.get_submodule(path), leaf, nn.Parameter(weight))
    empty = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    assert not empty, f"the name map misses {_listed(empty)}"
