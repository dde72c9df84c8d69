"""Endless training problems, held-out test problems and batch grading over all tasks."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from unmask.errors import UnknownNameError
from unmask.evaluation.sandbox import run_functions
from unmask.evaluation.tasks import TASKS, Generated, Problem, is_held_out

# Draws in a row without a new problem before held_out gives up: small tasks run dry.
_PATIENCE = 20_000


def _task(name: str) -> Generated:
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name]


def training_problems(mix: Mapping[str, float], seed: int, *, exclude: Collection[str] = ()) -> Iterator[Problem]:
    """Draw problems without end; held-out ones never occur.

    Args:
        mix: weight of each task, by name; weights need not sum to 1.
        seed: the same seed gives the same problems in the same order.
        exclude: further keys that must not occur.

    Raises:
        UnknownNameError: if the mix names a task that does not exist.
        ValueError: if no weight is positive, or one is negative.
    """
    tasks = [_task(name) for name in mix]
    weights = list(mix.values())
    if min(weights, default=0.0) < 0.0 or sum(weights) <= 0.0:
        raise ValueError(f"the mix needs weights of at least 0 that are not all 0, got {dict(mix)}")
    return _endless(tasks, weights, random.Random(seed), frozenset(exclude))


def _endless(
    tasks: list[Generated], weights: list[float], rng: random.Random, excluded: frozenset[str]
) -> Iterator[Problem]:
    while True:
        task = rng.choices(tasks, weights)[0]
        problem = task.sample(rng)
        # A rejected problem is redrawn from its own task, so that the hash split leaves the mix as it is.
        while problem.key in excluded or is_held_out(problem.key):
            problem = task.sample(rng)
        yield problem


def held_out(task: str, count: int, seed: int = 0) -> list[Problem]:
    """Draw distinct test problems: keys that training never sees.

    Args:
        task: name of the task.
        count: number of problems.
        seed: the same seed gives the same problems.

    Raises:
        UnknownNameError: if there is no such task.
        ValueError: if the task has fewer held-out problems than asked for.
    """
    source, rng = _task(task), random.Random(f"held out {seed}")
    problems: dict[str, Problem] = {}
    misses = 0
    while len(problems) < count:
        problem = source.sample(rng)
        if problem.key in problems or not is_held_out(problem.key):
            misses += 1
            if misses > _PATIENCE:
                raise ValueError(
                    f"task {task!r} seems to have only {len(problems)} held-out problems, got count={count}"
                )
            continue
        misses = 0
        problems[problem.key] = problem
    return list(problems.values())


def without_fence(text: str) -> str:
    """The code in the first Markdown fence, or the whole text if there is none."""
    if "```" not in text:
        return text
    inside = text.split("```", 2)[1]
    first, _, rest = inside.partition("\n")
    return rest if first.strip() in ("", "python", "py") else inside


def grade(problems: Sequence[Problem], texts: Sequence[str]) -> list[bool]:
    """Whether each text solves its problem; all functions run in one sandbox.

    Args:
        problems: what was asked.
        texts: the answers, in the same order.

    Raises:
        ValueError: if there is not one text a problem.
    """
    if len(problems) != len(texts):
        raise ValueError(f"grade needs one text a problem, got {len(problems)} problems and {len(texts)} texts")
    functions = [index for index, problem in enumerate(problems) if problem.checks]
    passed = run_functions(
        [without_fence(texts[index]) for index in functions],
        [problems[index].entry_point for index in functions],
        [problems[index].checks for index in functions],
    )
    verdicts = dict(zip(functions, passed, strict=True))
    return [
        verdicts[index] if index in verdicts else _task(problem.task).grade(problem, text)
        for index, (problem, text) in enumerate(zip(problems, texts, strict=True))
    ]
