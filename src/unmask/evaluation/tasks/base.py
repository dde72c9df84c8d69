"""What every task offers: problems and a grader; and the hash split of generated ones.

Tasks know nothing about tokenizers, models or decoding: they deal in text.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with a reference answer and what is needed to grade another answer.

    Args:
        task: name of the task that made it.
        prompt: what the user asks.
        answer: one correct solution (what training teaches).
        key: canonical description, free names aside; problems with equal keys count as the same problem.
        checks: hidden test cases of a function, as (arguments, expected value).
        entry_point: name of the function that the checks call.
        extra: what only the grader or the prompt of its own task reads, by name.
    """

    task: str
    prompt: str
    answer: str
    key: str
    checks: tuple[tuple[tuple[Any, ...], Any], ...] = ()
    entry_point: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader says of a text.

    Args:
        passed: whether the text solves the problem.
        reason: why or why not, in one line.
        answer: what was taken from the text as its answer, "" if nothing was found.
    """

    passed: bool
    reason: str
    answer: str = ""

    def __bool__(self) -> bool:
        return self.passed


class Task(ABC):
    """Problems whose answers can be graded without a model."""

    name: str

    @abstractmethod
    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the text solves the problem."""

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """`grade` with a reason."""
        passed = self.grade(problem, text)
        return Verdict(passed, "right" if passed else "wrong", text.strip())


class Generated(Task):
    """A task that makes its own problems, without end."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem; the same generator state gives the same problem."""


def is_held_out(key: str) -> bool:
    """Whether a key belongs to the tenth of all problems that is for tests only."""
    return int(hashlib.sha1(key.encode("utf-8")).hexdigest(), 16) % 10 == 0
