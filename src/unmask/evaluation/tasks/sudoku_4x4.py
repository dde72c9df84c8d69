"""4x4 sudoku asked of models that were not made for it: an instruction, worked examples, answers with prose around.

Source: the planning tasks of Ye et al., Dream 7B (arXiv 2508.15487), whose files it reads. Deviates: the wording, and
worked examples that are generated here.
"""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record
from unmask.evaluation.tasks.sudoku import SIDE, Sudoku, solutions

MOST_SHOTS = 16
_ROW = re.compile(r"^[^\d\n]*([0-4])[\s|,]*([0-4])[\s|,]*([0-4])[\s|,]*([0-4])[^\d\n]*$", re.MULTILINE)
_RUN = re.compile(r"(?<!\d)[0-4]{16}(?!\d)")


def grid_in(text: str) -> str | None:
    """The last complete grid of a text as 16 digits; None if there is none."""
    runs = _RUN.findall(text)
    rows = ["".join(row) for row in _ROW.findall(text)]
    if len(rows) >= SIDE:
        return "".join(rows[-SIDE:])
    return runs[-1] if runs else None


@lru_cache
def _made() -> tuple[Problem, ...]:
    rng = random.Random(4)
    return tuple(Sudoku().sample(rng) for _ in range(MOST_SHOTS))


@dataclass(frozen=True, slots=True)
class Sudoku4x4(Published):
    """4x4 puzzles in the published format, with an instruction and worked examples."""

    shots: int = 4  # worked examples before the question

    name = "sudoku-4x4"
    hub: ClassVar[Hub | None] = None
    files: ClassVar[tuple[str, ...]] = ("sudoku_4x4_*.jsonl", "*")
    length: ClassVar[int] = 256
    stops: ClassVar[tuple[str, ...]] = ("Fill in", "Puzzle:")

    def __post_init__(self) -> None:
        if not 0 <= self.shots <= MOST_SHOTS:
            raise ValueError(f"shots of {self.name} must be from 0 to {MOST_SHOTS}: got {self.shots}")

    def read(self, record: Record) -> Problem:
        """A record with "input" and "output"."""
        puzzle, answer = record["input"].strip(), record["output"].strip()
        if answer.replace("\n", "") not in solutions(puzzle):
            raise ValueError("the output is no solution of the input")
        return Problem(self.name, puzzle, answer, puzzle)

    def examples(self, problem: Problem) -> list[Problem]:
        """Generated puzzles."""
        made = [Problem(self.name, one.key, one.answer, one.key) for one in _made()]
        return [one for one in made if one.key != problem.key][: self.shots]

    def question(self, problem: Problem) -> str:
        """What to do, the puzzle, and "Solution:"."""
        return (
            "Fill in this 4x4 sudoku: replace each 0, so that every row, column and 2x2 box holds 1, 2, 3 and 4.\n"
            f"Puzzle:\n{problem.prompt}\nSolution:"
        )

    def gap(self) -> str:
        """The grid begins on a line of its own."""
        return "\n"

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Whether the last grid of the text solves the puzzle."""
        grid = grid_in(self.trim(text))
        if grid is None:
            return Verdict(False, "no grid found")
        right = grid in solutions(problem.prompt)
        return Verdict(right, "right" if right else "wrong: no solution of the puzzle", grid)
