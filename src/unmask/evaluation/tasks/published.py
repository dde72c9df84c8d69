"""What a published task adds to a task: records of others, a prompt and an answer length.

A task is a frozen dataclass; its fields say how it is asked, its class variables what it is. One file a task.
"""

import importlib.resources
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from unmask.errors import RequestError
from unmask.evaluation.sandbox import Program, run_programs
from unmask.evaluation.tasks.base import Problem, Task, Verdict
from unmask.evaluation.tasks.sources import Hub, Record, records

Style = Literal["chat", "turns", "raw"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked.

    Args:
        messages: turns of a chat, with "role" and "content"; the last one is the user's.
        raw: the text goes in as it is, without chat template.
    """

    messages: tuple[Mapping[str, str], ...]
    raw: bool = False

    @property
    def text(self) -> str:
        """All contents, one after the other."""
        return "".join(message["content"] for message in self.messages)


@dataclass(frozen=True, slots=True)
class Published(Task):
    """A benchmark that others have published.

    A subclass gives `name` and the other class variables, and the methods `read`, `question` and `verdict`.
    """

    shots: int = 0  # worked examples before the question
    style: Style = "chat"  # "chat": one message; "turns": the examples as turns; "raw": plain text, for base models

    hub: ClassVar[Hub | None] = None
    files: ClassVar[tuple[str, ...]] = ("*test*", "*")  # names in a folder, the first that fits
    length: ClassVar[int] = 256  # answer slots, tokens
    stops: ClassVar[tuple[str, ...]] = ()  # a raw answer ends before the first of them
    joint: ClassVar[str] = "\n\n"  # between examples
    runs_code: ClassVar[bool] = False  # does grading run what the model wrote?

    def __post_init__(self) -> None:
        most = len(_examples(self.name))
        if not 0 <= self.shots <= most:
            raise ValueError(f"shots of {self.name} must be from 0 to {most}: got {self.shots}")
        if self.style not in ("chat", "turns", "raw"):
            raise ValueError(f'style must be "chat", "turns" or "raw": got {self.style!r}')

    @abstractmethod
    def read(self, record: Record) -> Problem | None:
        """One record as a problem; None if it belongs to another part of the data set.

        Raises:
            KeyError, TypeError, ValueError: if it is no record of this task.
        """

    @abstractmethod
    def question(self, problem: Problem) -> str:
        """What is asked, up to where the answer begins."""

    @abstractmethod
    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Whether the text solves the problem, and why not; never raises for any text."""

    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the text solves the problem."""
        return self.verdict(problem, text).passed

    def problems(self, source: str | Path | None = None, *, limit: int | None = None) -> list[Problem]:
        """Read the problems.

        Args:
            source: a file or a folder; None = the hub, with the `datasets` library.
            limit: the first ones only.

        Raises:
            RequestError: nothing there, or a record that is none of this task.
        """
        found: list[Problem] = []
        for place, record in records(source, self.hub, self.files):
            if limit is not None and len(found) >= limit:
                break
            try:
                problem = self.read(record)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                said = f"lacks the field {error}" if isinstance(error, KeyError) else str(error)
                raise RequestError(f"{place}: no record of {self.name}: {said}") from None
            if problem is not None:
                found.append(problem)
        if not found:
            raise RequestError(f"no problem of {self.name} in {source or self.hub}")
        return found

    def examples(self, problem: Problem) -> list[Problem]:
        """The worked examples before a problem; never the problem itself."""
        known = [self.example(record) for record in _examples(self.name)]
        return [one for one in known if one.key != problem.key][: self.shots]

    def example(self, record: Record) -> Problem:
        """A record of the examples that come with the package."""
        problem = self.read(record)
        assert problem is not None, "the examples are records of the task"
        return problem

    def answer_of(self, example: Problem) -> str:
        """How an example's answer stands in the prompt."""
        return example.answer

    def gap(self) -> str:
        """Between question and answer in plain text."""
        return " "

    def prompt(self, problem: Problem) -> Prompt:
        """The question with its worked examples, in the style of this task."""
        shown = [(self.question(one), self.answer_of(one)) for one in self.examples(problem)]
        asked = self.question(problem)
        if self.style == "turns":
            turns = [
                _turn(role, text) for pair in shown for role, text in zip(("user", "assistant"), pair, strict=True)
            ]
            return Prompt((*turns, _turn("user", asked)))
        text = self.joint.join([*(question + self.gap() + answer for question, answer in shown), asked])
        return Prompt((_turn("user", text),), raw=self.style == "raw")

    def trim(self, text: str) -> str:
        """The answer up to where the model went on with a question of its own."""
        ends = [text.find(stop) for stop in self.stops]
        return text[: min((end for end in ends if end >= 0), default=len(text))]


@dataclass(frozen=True, slots=True)
class Coded(Published):
    """A task whose answers are programs: what is run is the answer's code with the checks of the problem."""

    runs_code: ClassVar[bool] = True

    @abstractmethod
    def program(self, problem: Problem, text: str) -> Program:
        """The code in the text, ready to run with its checks."""

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Run the code in the sandbox."""
        return self.verdicts([problem], [text])[0]

    def verdicts(self, problems: Sequence[Problem], texts: Sequence[str], workers: int = 1) -> list[Verdict]:
        """`verdict` for many, several programs at a time."""
        programs = [self.program(problem, text) for problem, text in zip(problems, texts, strict=True)]
        return [
            Verdict(outcome.passed, outcome.reason, program.source)
            for program, outcome in zip(programs, run_programs(programs, workers=workers), strict=True)
        ]


def _turn(role: str, content: str) -> Mapping[str, str]:
    return {"role": role, "content": content}


@lru_cache
def _examples(name: str) -> tuple[dict[str, Any], ...]:
    file = importlib.resources.files("unmask.evaluation.tasks") / "shots" / f"{name}.jsonl"
    if not file.is_file():
        return ()
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
