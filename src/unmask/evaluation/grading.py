"""One answer, or many, against their problems: the way in for everything that measures a model.

Code that a model wrote runs only if it is asked for.
"""

from collections.abc import Sequence

from unmask.errors import RequestError
from unmask.evaluation.tasks import Coded, Problem, Task, Verdict, find_task


def grade(task: str | Task, problem: Problem, text: str, *, run_code: bool = False) -> Verdict:
    """Whether a text solves a problem, and why not.

    Args:
        task: a task, its name, or a spec such as "gsm8k(strict=True)".
        problem: one of its problems.
        text: what a model wrote, without the prompt.
        run_code: allow to run the text, in the sandbox, if the task needs that.

    Raises:
        RequestError: the task runs code, and that is not allowed.
        UnknownNameError: no such task.
    """
    return grade_all(task, [problem], [text], run_code=run_code)[0]


def grade_all(
    task: str | Task, problems: Sequence[Problem], texts: Sequence[str], *, run_code: bool = False, workers: int = 1
) -> list[Verdict]:
    """`grade` for many answers of one task.

    Args:
        workers: programs that run at a time, if the task runs code.

    Raises:
        RequestError: the task runs code, and that is not allowed; or a problem is of another task.
        ValueError: if there is not one text a problem.
    """
    found = find_task(task) if isinstance(task, str) else task
    if len(problems) != len(texts):
        raise ValueError(f"grade_all needs one text a problem, got {len(problems)} problems and {len(texts)} texts")
    for problem in problems:
        if problem.task != found.name:
            raise RequestError(f"a problem of {problem.task} cannot be graded as {found.name}")
    if not isinstance(found, Coded):
        return [found.verdict(problem, text) for problem, text in zip(problems, texts, strict=True)]
    if not run_code:
        raise RequestError(f"grading {found.name} runs code that a model wrote: allow it with run_code=True")
    return found.verdicts(problems, texts, workers)
