"""GPQA: questions of experts with four choices.

Source: Rein et al., GPQA: A Graduate-Level Google-Proof Q&A Benchmark (arXiv 2311.12022). Zero examples. The order of
the choices follows from the question, so it is the same in every run and on every machine. Deviates: the wording.

The data set is gated on the hub; its authors ask that no examples of it are put on the web, so none come with this
package.
"""

import hashlib
import random
import re
from dataclasses import dataclass
from typing import ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.math500 import boxed
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record

_LETTERS = "ABCD"
_SAID = re.compile(
    r"(?:answer|choice|option)\b\W*(?:is|are|would be|must be|should be|=)?\W*(?:the\s+)?(?:option|choice|letter)?\W*"
    r"\(?\b([A-D])\b(?!['\u2019])",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"\(([A-D])\)")
_ALONE = re.compile(r"^\W*([A-D])\W*(?:$|[.:)]\s)", re.MULTILINE)


def letter_in(text: str, choices: tuple[str, ...]) -> str | None:
    """The choice that an answer names, as a letter; None if it names none."""
    inside = boxed(text)
    if inside is not None:
        named = re.search(r"\b([A-D])\b", re.sub(r"\\\w+", " ", inside))
        if named:
            return named[1]
    for pattern in (_SAID, _BRACKETED, _ALONE):
        found = [one for one in pattern.findall(text) if one.isupper()]
        if found:
            return str(found[-1])
    spelled = [letter for letter, choice in zip(_LETTERS, choices, strict=True) if _plain(choice) in _plain(text)]
    return spelled[0] if len(spelled) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).strip(" .")


@dataclass(frozen=True, slots=True)
class Gpqa(Published):
    """Questions of experts; the answer is one of four choices."""

    name = "gpqa"
    hub: ClassVar[Hub | None] = Hub("Idavidrein/gpqa", "gpqa_diamond", "train")
    files: ClassVar[tuple[str, ...]] = ("*diamond*", "*")

    def read(self, record: Record) -> Problem:
        """A record with "Question", "Correct Answer" and "Incorrect Answer 1" to "3"."""
        question = record["Question"].strip()
        names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
        choices = [record[name].strip() for name in names]
        order = list(range(4))
        random.Random(int(hashlib.sha256(question.encode("utf-8")).hexdigest(), 16)).shuffle(order)
        extra = {"choices": tuple(choices[at] for at in order)}
        return Problem(self.name, question, f"({_LETTERS[order.index(0)]})", question, extra=extra)

    def question(self, problem: Problem) -> str:
        """The question, its choices, and how to answer."""
        choices = "\n".join(
            f"({letter}) {text}" for letter, text in zip(_LETTERS, problem.extra["choices"], strict=True)
        )
        return (
            f"What is the correct answer to this question: {problem.prompt}\n\nChoices:\n{choices}\n\n"
            'Think step by step, and end with "The answer is (X)", where X is one of the letters.'
        )

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Compare the letter."""
        got = letter_in(self.trim(text), problem.extra["choices"])
        if got is None:
            return Verdict(False, "no answer found")
        wanted = problem.answer.strip("()")
        return Verdict(got == wanted, "right" if got == wanted else f"wrong: {got}, not {wanted}", got)
