"""Models that come with the package: "builtin", and its variants as "builtin:NAME".

A variant is a folder beside the built-in model's files. It holds either a whole checkpoint (another network, such as
the autoregressive twin) or an adapter, which is loaded on top of the built-in model.
"""

import re
from importlib import resources
from pathlib import Path

from unmask.errors import CheckpointError, RequestError
from unmask.models.checkpoints.adapters import CONFIG_FILE as ADAPTER_CONFIG

BUILTIN = "builtin"
_NAME = re.compile(rf"{BUILTIN}(:(?P<variant>.*))?")


def included_models() -> dict[str, Path]:
    """Folders of the models that are there, by the names they are loaded by; the built-in one first."""
    root = _root()
    variants = [path for path in sorted(root.glob("*")) if _is_model(path) or _is_adapter(path)]
    return ({BUILTIN: root} if _is_model(root) else {}) | {f"{BUILTIN}:{path.name}": path for path in variants}


def included_folder(name: str) -> Path | None:
    """The checkpoint folder behind "builtin" or "builtin:NAME"; None if the name is none of these.

    A variant that is an adapter has the built-in model's own.

    Raises:
        CheckpointError: this installation has no such model.
    """
    if _NAME.fullmatch(name) is None:
        return None
    models = included_models()
    if name not in models:
        known = ", ".join(models) or "none"
        raise CheckpointError(f'"{name}" is not part of this installation of unmask; models in {_root()}: {known}')
    return models[name] if _is_model(models[name]) else included_folder(BUILTIN)


def adapter_on(name: str | Path, adapter: str | Path | None) -> str | Path | None:
    """The adapter that a model is loaded with: the one asked for, or the one that a variant of the built-in model is.

    Raises:
        RequestError: an adapter for a variant that is one itself.
    """
    folder = included_models().get(str(name))
    if folder is None or _is_model(folder):
        return adapter
    if adapter is not None:
        raise RequestError(f'"{name}" is an adapter of the built-in model, and takes no second one: got {adapter}')
    return folder


def _root() -> Path:
    return Path(str(resources.files("unmask"))) / "builtin"


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()
