"""Countdown: reach a number from given ones with + - * /.

Source: the planning tasks of Ye et al., Dream 7B (arXiv 2508.15487), whose files it reads: the last number of "input"
is the target, "output" has a step per operation. Records with "nums" and "target" are read as well. An answer is a list
of such steps or one expression. Every given number is used exactly once. Deviates: the wording, and worked examples of
our own.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.math500 import boxed
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record

_STEP = re.compile(r"((?<![\d)])-\d+|\d+)([-+*/])\(?(-?\d+)\)?=\(?(-?\d+)(?!\d|\.\d)")
_MOST_CHARACTERS = 400  # of an expression
_NOTHING = "no equation found"


class NoAnswer(Exception):
    """No arithmetic, or one that breaks the rules; the text says why."""


def _tidy(text: str) -> str:
    """Arithmetic with the signs of a keyboard and without spaces."""
    for old, new in (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", "")):
        text = text.replace(old, new)
    text = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = text.translate(str.maketrans("\u00d7\u00b7\u00f7\u2212\u2013[]{}", "**/--()()"))
    text = re.sub(r"(?<=[\d)\s])x(?=[\d(\s])", "*", text)
    text = re.sub(r"(?<![\d)])\*\*|\*\*(?![\d(])", "", re.sub(r"[ \t`$]", "", text))  # bold type
    return text


def steps_in(text: str, given: Counter[Fraction]) -> Fraction:
    """The number that a list of steps ends with.

    Raises:
        NoAnswer: no step, a wrong one, a number that is not there, or one that is left over.
    """
    found = _STEP.findall(text)
    if not found:
        raise NoAnswer(_NOTHING)
    left, value = Counter(given), Fraction(0)
    for first, sign, second, result in found:
        for number in (Fraction(first), Fraction(second)):
            if not left[number]:
                raise NoAnswer(f"{number} is not there at {first}{sign}{second}={result}")
            left[number] -= 1
        value = _applied(sign, Fraction(first), Fraction(second))
        if value != int(result):
            raise NoAnswer(f"{first}{sign}{second} is not {result}")
        left[value] += 1
    if sum(left.values()) != 1:
        raise NoAnswer("not every number is used")
    return value


def expression_in(text: str, given: Counter[Fraction]) -> Fraction:
    """The value of an expression.

    Raises:
        NoAnswer: no such expression, or other numbers than the given ones.
    """
    if len(text) > _MOST_CHARACTERS:
        raise NoAnswer(_NOTHING)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoAnswer(_NOTHING) from None
    used: Counter[Fraction] = Counter()

    def value(node: ast.AST) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used[Fraction(node.value)] += 1
            return Fraction(node.value)
        signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
        if isinstance(node, ast.BinOp) and type(node.op) in signs:
            return _applied(signs[type(node.op)], value(node.left), value(node.right))
        raise NoAnswer(_NOTHING)

    result = value(tree.body)
    if used != given:
        raise NoAnswer("not the given numbers, each once")
    return result


def _applied(sign: str, first: Fraction, second: Fraction) -> Fraction:
    if sign == "/":
        if not second:
            raise NoAnswer("a division by zero")
        return first / second
    return {"+": first + second, "-": first - second, "*": first * second}[sign]


def _places(text: str) -> list[str]:
    """Where the answer may stand, the most explicit place first."""
    tagged = re.findall(r"<answer>(.*?)(?:</answer>|$)", text, re.DOTALL)
    inside = boxed(text)
    named = text.rpartition("nswer:")[2] if "nswer:" in text else ""
    places = [tagged[-1] if tagged else "", inside or "", named]
    return [place for place in places if place.strip()] or [text]


@dataclass(frozen=True, slots=True)
class Countdown(Published):
    """Reach a number from given ones with + - * /, each used once."""

    shots: int = 4  # worked examples before the question

    name = "countdown"
    hub: ClassVar[Hub | None] = None
    files: ClassVar[tuple[str, ...]] = ("cd*_test.jsonl", "*")
    stops: ClassVar[tuple[str, ...]] = ("Numbers:", "Use each of these")

    def read(self, record: Record) -> Problem:
        """A record with "input" and "output", or with "nums" and "target"."""
        if "input" in record:
            *given, target = (int(part) for part in str(record["input"]).split(","))
        else:
            given, target = [int(number) for number in record["nums"]], int(record["target"])
        if len(given) < 2:
            raise ValueError("fewer than two numbers")
        prompt = f"Numbers: {', '.join(map(str, given))}\nTarget: {target}"
        answer = str(record.get("output", "")).replace(",", ", ")
        return Problem(self.name, prompt, answer, prompt, extra={"given": tuple(given), "target": target})

    def question(self, problem: Problem) -> str:
        """What to do, the numbers, and "Answer:"."""
        return (
            "Use each of these numbers exactly once, with + - * /, to reach the target. Write one equation a step, "
            f"with commas between them.\n{problem.prompt}\nAnswer:"
        )

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Compute what the answer says; nothing is evaluated as Python."""
        given = Counter(Fraction(number) for number in problem.extra["given"])
        target, failed = problem.extra["target"], []
        for place in _places(self.trim(text)):
            for piece, read in _readings(_tidy(place)):
                try:
                    value = read(piece, given)
                except NoAnswer as error:
                    failed.append(Verdict(False, str(error), piece.strip()))
                    continue
                if value == target:
                    return Verdict(True, "right", piece.strip())
                failed.append(Verdict(False, f"wrong: {value}, not {target}", piece.strip()))
        return next((one for one in failed if one.reason != _NOTHING), Verdict(False, _NOTHING))


def _readings(text: str) -> Iterator[tuple[str, Callable[[str, Counter[Fraction]], Fraction]]]:
    """A text as steps and as expressions: all of it, then its lines from the last to the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    for piece in [text, *reversed(lines)]:
        yield piece, steps_in
        for side in re.findall(r"[\d(][-+*/()\d]*[\d)]", piece)[::-1]:
            yield side, expression_in
