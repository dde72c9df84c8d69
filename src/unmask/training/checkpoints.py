"""Checkpoint files of a training: written whole or not at all, the newest two kept."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from unmask.errors import UnmaskError

FORMAT = 1  # of checkpoint files
KEPT = 2  # newest checkpoints that stay


class TrainingError(UnmaskError):
    """A run that cannot start, resume or go on."""


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    return max(folder.glob("step-*.pt"), default=None)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Contents of a checkpoint file.

    Raises:
        TrainingError: if it is missing, damaged or of another format.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TrainingError(f"{path} cannot be read as a training checkpoint: {error}") from None
    if content.get("format") != FORMAT:
        raise TrainingError(f"{path} has checkpoint format {content.get('format')}; this version reads {FORMAT}")
    return content


def write_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> None:
    """Write aside, rename, then drop all but the newest checkpoints.

    Raises:
        TrainingError: if it cannot be written, because the disk is full, say; older checkpoints stay as they are.
    """
    target = folder / f"step-{step:08d}.pt"
    temporary = target.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT} | content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except (OSError, RuntimeError) as error:  # torch has an error of its own for a write that fell short
        remove_leftovers(folder)
        raise unwritable(target, error) from None
    for old in sorted(folder.glob("step-*.pt"))[:-KEPT]:
        old.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed or failed write has left."""
    for leftover in folder.glob("step-*.tmp"):
        with suppress(OSError):
            leftover.unlink()


def unwritable(path: Path, error: Exception) -> TrainingError:
    """What to say when a file of a run cannot be written."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return TrainingError(f"cannot write {path}: {reason}; {last_good(path.parent)}. Make room, then resume.")


def last_good(folder: Path | None) -> str:
    """The checkpoint that a message points to."""
    return f"last good checkpoint: {(latest_checkpoint(folder) if folder is not None else None) or 'none'}"
