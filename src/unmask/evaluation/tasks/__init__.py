"""All tasks by name: those that make their problems, and published ones, plug-ins included."""

from unmask.errors import UnknownNameError
from unmask.evaluation.tasks.base import Generated, Problem, Task, Verdict, is_held_out
from unmask.evaluation.tasks.countdown import Countdown
from unmask.evaluation.tasks.functions import Functions
from unmask.evaluation.tasks.gpqa import Gpqa
from unmask.evaluation.tasks.gsm8k import Gsm8k
from unmask.evaluation.tasks.humaneval import HumanEval
from unmask.evaluation.tasks.ifeval import IfEval
from unmask.evaluation.tasks.math500 import Math500
from unmask.evaluation.tasks.mbpp import Mbpp, MbppSanitized
from unmask.evaluation.tasks.published import Coded, Prompt, Published
from unmask.evaluation.tasks.sudoku import Sudoku, load_sudoku
from unmask.evaluation.tasks.sudoku_4x4 import Sudoku4x4
from unmask.evaluation.tasks.words import Words
from unmask.registry import Registry

TASKS: dict[str, Generated] = {task.name: task for task in (Functions(), Functions(wide=True), Sudoku(), Words())}

# What the built-in model is trained on and measured with; the others are there to make it harder.
SUITE = ("functions", "sudoku")

_OWN: tuple[type[Published], ...] = (
    Gsm8k, Math500, HumanEval, Mbpp, MbppSanitized, IfEval, Gpqa, Countdown, Sudoku4x4,
)  # fmt: skip
PUBLISHED: Registry[Published] = Registry(
    "task",
    "unmask.tasks",
    {task.name: task for task in _OWN},
    Published,  # type: ignore[type-abstract]
)


def find_task(spec: str) -> Task:
    """The task that a name or a spec such as "gsm8k(shots=8)" stands for.

    Raises:
        UnknownNameError, RequestError: no such task, or a field it does not have.
    """
    if spec in TASKS:
        return TASKS[spec]
    try:
        return PUBLISHED.make(spec)
    except UnknownNameError:
        raise UnknownNameError("task", spec.partition("(")[0].strip(), [*TASKS, *PUBLISHED]) from None


__all__ = [
    "PUBLISHED",
    "SUITE",
    "TASKS",
    "Coded",
    "Generated",
    "Problem",
    "Prompt",
    "Published",
    "Task",
    "Verdict",
    "find_task",
    "is_held_out",
    "load_sudoku",
]
