"""Problems from the built-in suite or from a file, and their grading."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import RequestError, UnknownNameError
from unmask.evaluation.tasks import SUITE, TASKS, Problem, load_sudoku
from unmask.evaluation.tasks.suite import grade as grade_known
from unmask.evaluation.tasks.suite import held_out

SUITES = ("builtin",)
EXACT = "exact"  # task of a file's problem that names none


def suite_problems(suite: str, tasks: Sequence[str], count: int, seed: int = 0) -> list[Problem]:
    """Held-out problems of a suite, which its model has never been trained on.

    Args:
        suite: "builtin".
        tasks: names of tasks; none = all of the suite.
        count: problems of each task.
        seed: the same seed gives the same problems.

    Raises:
        UnknownNameError: no such suite or task.
        RequestError: a count below 1, or more problems than a task has.
    """
    if suite not in SUITES:
        raise UnknownNameError("suite", suite, SUITES)
    if count < 1:
        raise RequestError(f"problems must be at least 1: got {count}")
    try:
        return [problem for task in (tasks or SUITE) for problem in held_out(task, count, seed)]
    except ValueError as error:
        raise RequestError(str(error)) from None


def file_problems(path: Path, tasks: Sequence[str] = (), count: int | None = None) -> list[Problem]:
    """Problems of a JSONL file, or of all *.jsonl files of a folder.

    A line is {"prompt", "answer"} with an optional "task" (graded as that built-in task, or by exact match if there is
    none of that name), or {"prompt", "checks", "entry_point"} (a function that has to pass its checks, each a list
    of arguments and the wanted value). A file of {"input", "output"} holds 4x4 sudokus in their published form.

    Args:
        tasks: keep problems of these tasks only; none = all.
        count: keep so many of each task, the first ones; None = all.

    Raises:
        RequestError: no such file, a line that cannot be used (the message names file and line), or nothing left.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise RequestError(f"no .jsonl file in {path}")
    found = [problem for file in files for problem in _read(file)]
    kept: dict[str, list[Problem]] = {}
    for problem in found:
        if not tasks or problem.task in tasks:
            kept.setdefault(problem.task, []).append(problem)
    if count is not None and count < 1:
        raise RequestError(f"problems must be at least 1: got {count}")
    if not kept:
        names = ", ".join(sorted({problem.task for problem in found}))
        raise RequestError(f"{path}: no problem of the tasks {', '.join(tasks)}; its tasks: {names}")
    return [problem for group in kept.values() for problem in group[:count]]


def _read(file: Path) -> list[Problem]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise RequestError(f"no such file: {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file}: cannot be read as UTF-8 text: {error}") from None
    records = [(number, _record(file, number, line)) for number, line in enumerate(lines, start=1) if line.strip()]
    if not records:
        raise RequestError(f"{file}: is empty; every line should be one problem")
    if "input" in records[0][1] and "prompt" not in records[0][1]:
        return _sudokus(file, records)
    return [_problem(f"{file}, line {number}", record) for number, record in records]


def _record(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{file}, line {number}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise RequestError(f"{file}, line {number}: wants a JSON object, got {line.strip()[:60]}")
    return record


def _sudokus(file: Path, records: Sequence[tuple[int, dict[str, Any]]]) -> list[Problem]:
    for number, record in records:
        for field in ("input", "output"):
            _text(f"{file}, line {number}", record, field)
    try:
        return load_sudoku(file)
    except ValueError as error:
        raise RequestError(f"{file}: {error}") from None


def _text(where: str, record: dict[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        got = repr(value)[:60] if field in record else f"the fields {', '.join(record) or 'none'}"
        raise RequestError(f'{where}: wants a text in "{field}", got {got}')
    return value


def _problem(where: str, record: dict[str, Any]) -> Problem:
    prompt = _text(where, record, "prompt")
    task = _text(where, record, "task") if "task" in record else EXACT
    if "checks" in record:
        answer = _text(where, record, "answer") if "answer" in record else ""
        entry_point = _text(where, record, "entry_point")
        return Problem(task, prompt, answer, prompt, _checks(where, record["checks"]), entry_point)
    problem = Problem(task, prompt, _text(where, record, "answer"), prompt)
    if task in ("functions", "functions-wide"):
        raise RequestError(f'{where}: a problem of the task "{task}" needs "checks" and "entry_point"')
    if task in TASKS and not _own_answer_counts(problem):
        raise RequestError(f'{where}: the answer is none that the task "{task}" accepts: got {problem.answer[:60]!r}')
    return problem


def _checks(where: str, checks: Any) -> tuple[tuple[tuple[Any, ...], Any], ...]:
    wanted = isinstance(checks, list) and bool(checks)
    if not wanted or not all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], list) for one in checks):
        raise RequestError(f'{where}: "checks" wants a list of [[arguments], value], got {repr(checks)[:60]}')
    return tuple((tuple(arguments), value) for arguments, value in checks)


def _own_answer_counts(problem: Problem) -> bool:
    try:
        return TASKS[problem.task].grade(problem, problem.answer)
    except (ValueError, IndexError):  # a grader may rely on the form of its own task's answers
        return False


def grader(problem: Problem) -> str:
    """How a problem is graded: "checks", the name of a built-in task, or "exact"."""
    return "checks" if problem.checks else problem.task if problem.task in TASKS else EXACT


def grade(problems: Sequence[Problem], texts: Sequence[str]) -> list[bool]:
    """Whether each text solves its problem; all functions run in one sandbox.

    A problem of no known task is solved by its answer, white space around it aside.
    """
    known = [index for index, problem in enumerate(problems) if grader(problem) != EXACT]
    verdicts = grade_known([problems[index] for index in known], [texts[index] for index in known])
    graded = dict(zip(known, verdicts, strict=True))
    return [
        graded[index] if index in graded else text.strip() == problem.answer.strip()
        for index, (problem, text) in enumerate(zip(problems, texts, strict=True))
    ]
