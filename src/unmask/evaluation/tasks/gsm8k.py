"""GSM8K: grade-school word problems.

Source: Cobbe et al., Training Verifiers to Solve Math Word Problems (arXiv 2110.14168). Asked with worked examples
whose answers end in `#### N`, as the papers on diffusion models do. Deviates: the examples are the first of the
training set.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.numbers import numbers
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record

# Where an answer says that it comes to its end, the most explicit first.
_MARKS = (
    re.compile(r"####\s*(.+)"),
    re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}"),
    re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL),
    re.compile(r"answer(?:\s+is|\s*:|\s*=)((?:(?!answer).)+)", re.IGNORECASE),
)


@dataclass(frozen=True, slots=True)
class Gsm8k(Published):
    """Grade-school word problems; the answer is a number."""

    shots: int = 5  # worked examples before the question
    strict: bool = False  # only a number behind #### counts

    name = "gsm8k"
    hub: ClassVar[Hub | None] = Hub("openai/gsm8k", "main")
    stops: ClassVar[tuple[str, ...]] = ("Question:", "<|im_end|>", "<|eot_id|>")

    def read(self, record: Record) -> Problem:
        """A record with "question" and "answer"."""
        if not numbers(record["answer"].partition("####")[2]):
            raise ValueError("the answer has no number behind ####")
        return Problem(self.name, record["question"].strip(), record["answer"].strip(), record["question"].strip())

    def question(self, problem: Problem) -> str:
        """The question, and "Answer:"."""
        return f"Question: {problem.prompt}\nAnswer:"

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Compare the number behind the mark, or the last number if there is no mark."""
        wanted = numbers(problem.answer.rpartition("####")[2])[0]
        text = self.trim(text)
        for mark in _MARKS[:1] if self.strict else _MARKS:
            found = [inside for inside in mark.findall(text) if numbers(inside)]
            if found:
                # behind #### the first one: what follows is a question that the model asks itself
                said = found[0] if mark is _MARKS[0] else found[-1]
                said = re.split(r"\.\s|\n", said)[0]
                values = numbers(said.rpartition("=")[2]) or numbers(said)
                return _compared(values[0], wanted, said.strip())
        values = [] if self.strict else numbers(text)
        return _compared(values[-1], wanted, str(values[-1])) if values else Verdict(False, "no answer found")


def _compared(got: object, wanted: object, said: str) -> Verdict:
    return Verdict(got == wanted, "right" if got == wanted else f"wrong: {got}, not {wanted}", said)
