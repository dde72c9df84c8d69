"""On what a benchmark ran: weights, numbers, machine and versions."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from unmask.core.denoise import MaskPredictor
from unmask.errors import CheckpointError
from unmask.generation import Model
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import adapter_on, find_adapter, find_folder
from unmask.models.checkpoints.adapters import WEIGHTS_FILE
from unmask.models.checkpoints.reading import read_headers
from unmask.models.guidance import Guided
from unmask.models.predictor import BackbonePredictor

PACKAGES = ("unmask", "torch", "transformers")


def backbone_of(predictor: MaskPredictor) -> Backbone | None:
    """The network inside a predictor; None if it is none of ours."""
    if isinstance(predictor, Guided):
        return backbone_of(predictor.inner)
    return predictor.backbone if isinstance(predictor, BackbonePredictor) else None


def guidance_of(predictor: MaskPredictor) -> float:
    """Scale of classifier-free guidance, 0 = none."""
    return predictor.scale if isinstance(predictor, Guided) else 0.0


def num_parameters(model: Model) -> int | None:
    """Weights of the network; None if it is none of ours."""
    backbone = backbone_of(model.predictor)
    return None if backbone is None else sum(parameter.numel() for parameter in backbone.parameters())


def dtype_of(model: Model) -> str | None:
    """Number format the network computes in, e.g. "float32"; None if it is none of ours."""
    backbone = backbone_of(model.predictor)
    return None if backbone is None else str(backbone.embedding.weight.dtype).removeprefix("torch.")


def weights_hash(source: str, adapter: str | None = None) -> str | None:
    """SHA-256 of the weights file; of several files, that of their digests in the order of their names, the adapter's
    last.

    None when there are no files behind the name, as with a model made in memory.
    """
    try:
        files = {header.file for header in read_headers(find_folder(source)).values()}
    except CheckpointError:
        return None
    added = adapter_on(source, adapter)
    files_in_order = [*sorted(files), *([] if added is None else [find_adapter(added) / WEIGHTS_FILE])]
    digests = [_digest(file) for file in files_in_order]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode("ascii")).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of what takes part in an answer."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def hardware(device: torch.device) -> str:
    """Name of the processor that runs the network."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
