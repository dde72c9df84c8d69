"""MBPP: short Python programs from a sentence and three tests; the full set and the hand-checked one.

Source: Austin et al., Program Synthesis with Large Language Models (arXiv 2108.07732): three worked examples (tasks 2,
3 and 4), and its prompt with [BEGIN] and [DONE]. Tasks 11 to 510 are the test part.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.evaluation.sandbox import Program
from unmask.evaluation.tasks.base import Problem
from unmask.evaluation.tasks.code import called, parses, program_of
from unmask.evaluation.tasks.published import Coded
from unmask.evaluation.tasks.sources import Hub, Record

_TEST_PART = range(11, 511)


@dataclass(frozen=True, slots=True)
class Mbpp(Coded):
    """Short Python programs from a sentence and three tests; the answer is run."""

    shots: int = 3  # worked examples before the question
    part: Literal["test", "all"] = "test"  # "test": tasks 11 to 510

    name = "mbpp"
    hub: ClassVar[Hub | None] = Hub("google-research-datasets/mbpp", "full")
    files: ClassVar[tuple[str, ...]] = ("mbpp.jsonl*", "*test*", "*")
    length: ClassVar[int] = 512
    stops: ClassVar[tuple[str, ...]] = ("[DONE]", "You are an expert Python programmer")

    def read(self, record: Record) -> Problem | None:
        """A record with "task_id", "text" (or "prompt"), "code" and "test_list"."""
        if self.part == "test" and record["task_id"] not in _TEST_PART:
            return None
        return self._problem(record)

    def example(self, record: Record) -> Problem:
        """An example: these tasks are outside the test part."""
        return self._problem(record)

    def _problem(self, record: Record) -> Problem:
        tests = [str(test).replace("\r\n", "\n").strip() for test in record["test_list"]]
        before = [record.get("test_setup_code") or "", *(record.get("test_imports") or [])]
        checks = "\n".join([*before, *tests]).replace("\r\n", "\n")
        if not tests or not parses(checks):
            raise ValueError("its tests are no Python")
        text = record["text"] if "text" in record else record["prompt"]
        code = str(record["code"]).replace("\r\n", "\n").strip()
        extra = {"tests": tests, "checks": checks}
        return Problem(self.name, str(text).strip(), code, str(record["task_id"]), extra=extra)

    def question(self, problem: Problem) -> str:
        """The sentence, its tests and [BEGIN]."""
        tests = "\n".join(problem.extra["tests"])
        return (
            f"You are an expert Python programmer, and here is your task: {problem.prompt} "
            f"Your code should pass these tests:\n\n{tests}\n[BEGIN]"
        )

    def answer_of(self, example: Problem) -> str:
        """The code and [DONE]."""
        return f"{example.answer}\n[DONE]"

    def gap(self) -> str:
        """Code begins on a line of its own."""
        return "\n"

    def program(self, problem: Problem, text: str) -> Program:
        """The code in the text with the tests of the problem."""
        text = self.trim(text).rpartition("[BEGIN]")[2]
        checks = problem.extra["checks"]
        names = called(checks, problem.answer)
        return Program(program_of(text, names), checks, entry_points=tuple(sorted(names)))


@dataclass(frozen=True, slots=True)
class MbppSanitized(Mbpp):
    """The hand-checked tasks of MBPP."""

    name = "mbpp-sanitized"
    hub: ClassVar[Hub | None] = Hub("google-research-datasets/mbpp", "sanitized")
    files: ClassVar[tuple[str, ...]] = ("sanitized-mbpp.json*", "*sanitized*test*", "*test*", "*")
