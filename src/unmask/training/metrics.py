"""`metrics.jsonl` of a run: means over some steps, and evaluations, one JSON object a line."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from unmask.training.checkpoints import unwritable

FILE = "metrics.jsonl"


class Metrics:
    """Gathers figures and writes a line every so many steps.

    Args:
        folder: of the run; None writes nothing.
        every: steps between lines.
    """

    def __init__(self, folder: Path | None, every: int) -> None:
        self.path = None if folder is None else folder / FILE
        self.every = every
        self._recent: dict[str, list[float]] = defaultdict(list)

    def add(self, step: int, averaged: Mapping[str, float], latest: Mapping[str, int | float]) -> None:
        """Note a step.

        Args:
            step: its number, from 1.
            averaged: figures whose mean over the steps since the last line is written.
            latest: figures that are written as they are.
        """
        for name, value in averaged.items():
            self._recent[name].append(value)
        if step % self.every == 0:
            means = {name: round(sum(values) / len(values), 5) for name, values in self._recent.items()}
            self._recent.clear()
            self.write(means | {"step": step} | dict(latest))

    def write(self, line: Mapping[str, int | float]) -> None:
        """Append a line.

        Raises:
            TrainingError: if the file cannot be written.
        """
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(line)) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from None

    def cut(self, step: int) -> None:
        """Drop the lines of steps that a resumed run will do again, and half-written ones."""
        if self.path is None or not self.path.exists():
            return
        kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        aside = self.path.with_suffix(".part")
        try:
            aside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            aside.replace(self.path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise unwritable(self.path, error) from None


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a killed run may have stopped in the middle of a line
        return float("inf")
