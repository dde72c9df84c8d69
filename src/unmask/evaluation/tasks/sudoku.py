"""4x4 sudoku in the format of the Dream evaluation set: four rows of digits, 0 for an empty cell.

Source: Ye et al., Dream 7B (arXiv 2508.15487), planning tasks. Deviates: puzzles are generated here.
"""

import json
import random
from itertools import permutations
from pathlib import Path

from unmask.evaluation.tasks.base import Generated, Problem

SIDE = 4
CELLS = SIDE * SIDE
FEWEST_GIVENS = 4
MOST_GIVENS = 12


def _all_grids() -> tuple[str, ...]:
    """Every complete 4x4 grid as a string of 16 digits; there are 288."""
    rows = ["".join(row) for row in permutations("1234")]
    boxes = [(0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15)]
    columns = [tuple(range(column, CELLS, SIDE)) for column in range(SIDE)]
    halves = [
        top + second
        for top in rows
        for second in rows
        if all(len({(top + second)[cell] for cell in box}) == SIDE for box in boxes[:2])
    ]
    grids = (upper + lower for upper in halves for lower in halves)
    return tuple(grid for grid in grids if all(len({grid[cell] for cell in column}) == SIDE for column in columns))


GRIDS = _all_grids()

# Bit g of _FITS[cell][digit] says that grid g has this digit in this cell; intersecting them counts the solutions.
_FITS = tuple(
    {digit: sum(1 << index for index, grid in enumerate(GRIDS) if grid[cell] == digit) for digit in "1234"}
    for cell in range(CELLS)
)


def solutions(puzzle: str) -> list[str]:
    """All complete grids that agree with the givens.

    Args:
        puzzle: 16 digits, 0 for an empty cell; line breaks are ignored.

    Returns:
        Grids of 16 digits each, without line breaks.

    Raises:
        ValueError: if it is not 16 digits from 0 to 4.
    """
    cells = puzzle.replace("\n", "")
    if len(cells) != CELLS or not set(cells) <= set("01234"):
        raise ValueError(f"a puzzle is four rows of four digits from 0 to 4, got {puzzle!r}")
    fitting = (1 << len(GRIDS)) - 1
    for cell, digit in enumerate(cells):
        if digit != "0":
            fitting &= _FITS[cell][digit]
    return [grid for index, grid in enumerate(GRIDS) if fitting >> index & 1]


def _rows(cells: str) -> str:
    return "\n".join(cells[start : start + SIDE] for start in range(0, CELLS, SIDE))


def _problem(puzzle: str, answer: str) -> Problem:
    return Problem(task="sudoku", prompt=f"Solve this 4x4 sudoku:\n{puzzle}", answer=answer, key=puzzle)


class Sudoku(Generated):
    """4x4 puzzles with 4 to 12 givens and exactly one solution."""

    name = "sudoku"

    def sample(self, rng: random.Random) -> Problem:
        """Draw a grid and a number of givens, then cells until the puzzle is unambiguous."""
        givens = rng.randint(FEWEST_GIVENS, MOST_GIVENS)
        while True:
            grid = rng.choice(GRIDS)
            shown = rng.sample(range(CELLS), givens)
            fitting = (1 << len(GRIDS)) - 1
            for cell in shown:
                fitting &= _FITS[cell][grid[cell]]
            if fitting & (fitting - 1) == 0:
                puzzle = "".join(grid[cell] if cell in shown else "0" for cell in range(CELLS))
                return _problem(_rows(puzzle), _rows(grid))

    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the text, stripped, is the solution."""
        return text.strip() == problem.answer


def load_sudoku(path: str | Path) -> list[Problem]:
    """Read puzzles in the published format: one JSON object a line with "input" and "output".

    Args:
        path: a .jsonl file, or a folder of them (read in the order of their names).

    Raises:
        ValueError: if a record is malformed, or its output is not its only solution.
        FileNotFoundError: if there is no such file, or no .jsonl file in the folder.
    """
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .jsonl file in {path}")
    problems = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file.name}, line {number}: not JSON: {error.msg}") from None
            if not isinstance(record, dict) or not {"input", "output"} <= record.keys():
                raise ValueError(f'{file.name}, line {number}: a record needs "input" and "output", got {line[:80]!r}')
            puzzle, answer = record["input"].strip(), record["output"].strip()
            if solutions(puzzle) != [answer.replace("\n", "")]:
                raise ValueError(f"{file.name}, line {number}: the output is not the only solution of the input")
            problems.append(_problem(puzzle, answer))
    return problems
