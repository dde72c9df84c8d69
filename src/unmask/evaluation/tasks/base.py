"""What every generated task offers: a problem, a hash split and a grader.

Tasks know nothing about tokenizers, models or decoding: they deal in text.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    """

    task: str
    prompt: str
    answer: str
    key: str
    checks: tuple[tuple[tuple[Any, ...], Any], ...] = ()
    entry_point: str = ""


class Task(ABC):
    """A source of problems whose answers can be graded without a model."""

    name: str

    @abstractmethod
    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem; the same generator state gives the same problem."""

    @abstractmethod
    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the text solves the problem."""


def is_held_out(key: str) -> bool:
    """Whether a key belongs to the tenth of all problems that is for tests only."""
    return int(hashlib.sha1(key.encode("utf-8")).hexdigest(), 16) % 10 == 0
