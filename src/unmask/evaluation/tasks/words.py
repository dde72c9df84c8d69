"""Word problems with one line per step and a last line `#### N`, in the manner of GSM8K, with small numbers.

Source: Cobbe et al., Training Verifiers to Solve Math Word Problems (arXiv 2110.14168), the answer format. Deviates:
problems are generated from templates; results stay within 60, addends within 9 and products within 20.
"""

import random
import re
from typing import NamedTuple

from unmask.evaluation.tasks.base import Generated, Problem

LARGEST_RESULT = 60
LARGEST_ADDEND = 9
LARGEST_PRODUCT = 20

NAMES = (
    "Tom", "Ann", "Ben", "Mia", "Leo", "Eva", "Max", "Zoe",
    "Sam", "Lily", "Jack", "Nina", "Omar", "Ruth", "Ivan", "Kate",
)  # fmt: skip
OBJECTS = (
    "apples", "books", "cards", "coins", "cups", "eggs", "pens", "plums",
    "shells", "stamps", "stones", "toys", "balls", "cakes", "flowers", "nuts",
)  # fmt: skip

_LAST_LINE = re.compile(r"^####\s*(-?\d+)\s*$", re.MULTILINE)


class _Step(NamedTuple):
    sentence: str  # {a} the actor, {b} a second person, {n} the number
    operator: str


# Every sentence starts with the actor, whom "then" sentences call by name again: no pronoun to resolve wrongly.
_STEPS = (
    _Step("{a} buys {n} more.", "+"),
    _Step("{a} finds {n} more.", "+"),
    _Step("{b} gives {n} more to {a}.", "+"),
    _Step("{a} gives {n} to {b}.", "-"),
    _Step("{a} loses {n}.", "-"),
    _Step("{a} sells {n}.", "-"),
    _Step("Then {a} has {n} times as many as before.", "*"),
    _Step("{a} shares them equally among {n} friends and keeps one share.", "/"),
)


class _Opening(NamedTuple):
    sentence: str
    operator: str  # "" when the sentence just states the first number


_OPENINGS = (
    _Opening("{a} has {m} {o}.", ""),
    _Opening("{a} starts with {m} {o}.", ""),
    _Opening("{a} has {m} boxes with {n} {o} in each box.", "*"),
    _Opening("{a} has {m} bags of {n} {o} each.", "*"),
    _Opening("{a} has {m} {o} in one box and {n} in another.", "+"),
    _Opening("{b} has {m} {o}. {a} has {n} more than {b}.", "+"),
    _Opening("{b} has {m} {o}. {a} has {n} fewer than {b}.", "-"),
    _Opening("{b} has {m} {o}. {a} has {n} times as many as {b}.", "*"),
)


def _operand(rng: random.Random, operator: str, value: int) -> int | None:
    """A number that keeps the result small, or None when no number does."""
    if operator == "+":
        room = min(LARGEST_ADDEND, LARGEST_RESULT - value)
        return rng.randint(1, room) if room >= 1 else None
    if operator == "-":
        room = min(LARGEST_ADDEND, value)
        return rng.randint(1, room) if room >= 1 else None
    if operator == "*":
        room = LARGEST_PRODUCT // value if value else 0
        return rng.randint(2, room) if room >= 2 else None
    divisors = [number for number in range(2, LARGEST_ADDEND + 1) if value and value % number == 0]
    return rng.choice(divisors) if divisors and value <= LARGEST_PRODUCT else None


def _apply(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left // right


def _first_number(rng: random.Random, operator: str) -> int:
    if operator == "*":
        return rng.randint(2, LARGEST_PRODUCT // 2)
    return rng.randint(2, 30) if operator else rng.randint(2, 50)


class Words(Generated):
    """Problems of two or three steps about people who own, get and give things."""

    name = "words"

    def sample(self, rng: random.Random) -> Problem:
        """Draw an opening and as many events as the number of steps asks for."""
        steps = rng.choice((2, 2, 3))
        opening = rng.choice(_OPENINGS)
        value = _first_number(rng, opening.operator)
        sentences, lines, numbers = [opening.sentence.replace("{m}", str(value))], [], []
        if opening.operator:
            number = _operand(rng, opening.operator, value)
            assert number is not None, "the ranges of first numbers leave room for a second"
            sentences[0] = sentences[0].replace("{n}", str(number))
            numbers.append((opening.operator, number))
        used = set()
        total = value
        while True:
            if numbers:
                operator, number = numbers.pop()
                result = _apply(operator, total, number)
                lines.append(f"{total} {operator} {number} = {result}")
                total = result
            if len(lines) == steps:
                break
            step = rng.choice(_STEPS)
            drawn = _operand(rng, step.operator, total)
            if drawn is None or step in used:
                continue
            used.add(step)
            sentences.append(step.sentence.replace("{n}", str(drawn)))
            numbers.append((step.operator, drawn))
        key = " ".join([*sentences, "How many {o} does {a} have now?"])
        first, second = rng.sample(NAMES, 2)
        prompt = key.replace("{a}", first).replace("{b}", second).replace("{o}", rng.choice(OBJECTS))
        return Problem(task=self.name, prompt=prompt, answer="\n".join([*lines, f"#### {total}"]), key=key)

    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the last line `#### N` of the text names the right number."""
        found = _LAST_LINE.findall(text)
        wanted = _LAST_LINE.findall(problem.answer)
        return bool(found) and int(found[-1]) == int(wanted[-1])
