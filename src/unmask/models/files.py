"""JSON files of a checkpoint folder."""

import json
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: if the file is absent, not JSON, or not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, got {type(values).__name__}")
    return values
