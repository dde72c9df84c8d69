"""The generated tasks by name."""

from unmask.evaluation.tasks.base import Problem, Task, is_held_out
from unmask.evaluation.tasks.functions import Functions
from unmask.evaluation.tasks.sudoku import Sudoku, load_sudoku
from unmask.evaluation.tasks.words import Words

TASKS: dict[str, Task] = {task.name: task for task in (Functions(), Functions(wide=True), Sudoku(), Words())}

# What the built-in model is trained on and measured with; the others are there to make it harder.
SUITE = ("functions", "sudoku")

__all__ = ["SUITE", "TASKS", "Problem", "Task", "is_held_out", "load_sudoku"]
