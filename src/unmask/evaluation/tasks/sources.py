"""Records of a published task: from the `datasets` library, a file, or a folder."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import RequestError

Record = Mapping[str, Any]
_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a data set lies on the Hugging Face hub.

    Args:
        path: owner and name.
        config: which of its configurations, None if it has one only.
        split: "test", "train" and so on.
    """

    path: str
    config: str | None = None
    split: str = "test"


def records(source: str | Path | None, hub: Hub | None, files: Iterable[str]) -> Iterator[tuple[str, Record]]:
    """Records, each with the place it comes from.

    Args:
        source: a file (JSONL or JSON, also gzipped; CSV; Parquet) or a folder of such files; None = the hub.
        hub: where the hub has it, None if it has not.
        files: patterns of file names in a folder; the first one that any file fits is taken.

    Raises:
        RequestError: no such file, one that cannot be read (file and line are named), or a library that is missing.
    """
    if source is None:
        if hub is None:
            raise RequestError("this task is on no hub: give a file or a folder")
        return _from_hub(hub)
    path = Path(source)
    if path.is_dir():
        fitting = (sorted(one for one in path.rglob(name) if one.name.endswith(_ENDINGS)) for name in files)
        found = next((some for some in fitting if some), [])
        if not found:
            raise RequestError(f"no file {' or '.join(files)} in {path}")
        return (record for file in found for record in _from_file(file))
    if not path.is_file():
        raise RequestError(f"no such file or folder: {path}")
    return _from_file(path)


def _from_hub(hub: Hub) -> Iterator[tuple[str, Record]]:
    try:
        import datasets
    except ImportError:
        raise RequestError(
            f"{hub.path} is read with the library datasets, which is not installed: run pip install datasets, or "
            "give a file"
        ) from None
    found = datasets.load_dataset(hub.path, hub.config, split=hub.split)
    for number, record in enumerate(found, start=1):
        yield f"{hub.path}, record {number}", record


def _from_file(path: Path) -> Iterator[tuple[str, Record]]:
    if not path.name.endswith(_ENDINGS):
        raise RequestError(f"{path} is none of {', '.join(_ENDINGS)}")
    if path.name.endswith(".parquet"):
        yield from _from_parquet(path)
        return
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="" if path.name.endswith(".csv") else None) as file:
        if path.name.endswith(".csv"):
            rows: Iterable[Any] = csv.DictReader(file)
        elif ".jsonl" in path.name:
            rows = (_json(path, number, line) for number, line in enumerate(file, start=1) if line.strip())
        else:
            rows = _json(path, 1, file.read())
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                raise RequestError(f"{path}, record {number}: wants an object, got {str(row)[:60]}")
            yield f"{path.name}, record {number}", row


def _json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError(f"{path}, line {number}: not JSON: {error}") from None


def _from_parquet(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise RequestError(f"{path} is read with pyarrow, which is not installed: pip install pyarrow") from None
    for number, record in enumerate(pyarrow.parquet.read_table(path).to_pylist(), start=1):
        yield f"{path.name}, record {number}", record
