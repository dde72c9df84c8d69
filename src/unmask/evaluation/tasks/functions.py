"""Small Python functions from an English description, graded by running hidden test cases.

What is asked is drawn from a grammar of conditions, changes, orders and endings; how the reference answer is written
(loop or comprehension, names of locals, early return or variable) is drawn apart from it. So there are many right
answers, and tokens that depend on each other. Expected values come from the grammar's meaning, never from the reference
answer.
"""

import random
import re
from typing import Any

from unmask.evaluation.tasks import formulas
from unmask.evaluation.tasks.base import Generated, Problem
from unmask.evaluation.tasks.pipelines import Sketch, pipeline
from unmask.evaluation.tasks.primitives import Draw

_VERBS = (
    "get", "make", "find", "compute", "build", "solve", "run", "do", "calc", "pick", "take", "collect",
    "process", "handle", "scan", "check", "read", "fetch", "form", "derive",
)  # fmt: skip
_NOUNS = (
    "values", "items", "result", "data", "numbers", "parts", "entries", "things", "answer", "output", "score", "points",
    "steps", "rows", "cells", "units", "marks", "levels", "prices", "sizes", "ages", "tags", "notes", "hits",
    "days", "costs", "scores", "stats", "chunks", "records",
)  # fmt: skip
_ARGUMENTS = {
    "numbers": ("xs", "nums", "numbers", "values", "items", "data", "a", "scores", "ages"),
    "words": ("words", "names", "items", "strings", "parts", "tags"),
    "text": ("s", "text", "line", "string", "phrase"),
    "count": ("n", "num", "limit", "a", "m"),
    "digits": ("n", "num", "code", "m"),
    "whole": ("n", "a", "x", "num", "value"),
    "small": ("k", "m", "size", "step", "p"),
    "table": ("d", "table", "prices", "counts", "stock", "ages"),
}
_SECOND = {"numbers": ("ys", "others", "b", "more"), "whole": ("b", "m", "y"), "count": ("b", "q", "y")}
_LOCALS = {
    "v": ("x", "v", "n", "item", "num", "e", "value"),
    "v words": ("w", "word", "item", "name", "e", "part"),
    "v text": ("c", "ch", "char", "letter"),
    "w": ("y", "w", "u", "new", "other"),
    "r": ("result", "out", "res", "total", "acc", "ans"),
    "t": ("t", "current", "temp", "run", "cur"),
    "y": ("kept", "step1", "first", "found", "chosen"),
    "z": ("then", "step2", "second", "left", "rest"),
    "q": ("third", "step3", "last", "final"),
    "p": ("fourth", "step4"),
    "o": ("fifth", "step5"),
    "i": ("i", "j", "index", "pos"),
    "g": ("key", "name", "g", "word"),
}

# Other words for the same thing; the key keeps the first.
_SYNONYMS = (
    ("greater than", "more than"),
    ("keeps the", "selects the"),
    ("the count of", "the number of"),
    ("squares each", "takes the square of each"),
    ("in descending order", "from largest to smallest"),
    ("in ascending order", "from smallest to largest"),
    ("takes the first", "picks the first"),
    ("multiplies each", "scales each"),
    ("joined with", "separated by"),
    ("at least", "no less than"),
    ("at most", "no more than"),
    (" otherwise", " in all other cases"),
)
_OPENINGS = (
    "Write a function `{head}` that {say}.",
    "Write a Python function `{head}` that {say}.",
    "Define a function `{head}` that {say}.",
    "Write `{head}`, a function that {say}.",
)
_PLACE = re.compile(r"@([a-z])")
_NUMBER = re.compile(r"\d+")
_SAMPLE_WORDS = (
    "apple", "table", "tree", "ant", "sing", "rose", "star", "oil", "lion", "nest", "it", "running", "tested", "player",
    "slowly", "box", "jazz", "pizza", "era", "island", "night", "e", "reading", "older", "train", "eel", "used", "sky",
)  # fmt: skip
_SAMPLE_TEXT = "aeiostrnlaeiostrnlbcdghmpuwxyz  019"


def _plan(draw: Draw) -> Sketch:
    chance = draw.rng.random()
    if not draw.wide:
        return _narrow_plan(draw, chance)
    if chance < 0.58:
        return pipeline(draw)
    if chance < 0.67:
        return formulas.reports(draw)
    if chance < 0.76:
        return formulas.cases(draw)
    if chance < 0.81:
        return formulas.arithmetic(draw)
    if chance < 0.84:
        return formulas.loops(draw)
    if chance < 0.89:
        return formulas.scans(draw)
    if chance < 0.96:
        return formulas.tables(draw)
    return formulas.pairs(draw) if chance < 0.99 else formulas.common_divisor(draw)


def _narrow_plan(draw: Draw, chance: float) -> Sketch:
    if chance < 0.64:
        return pipeline(draw)
    if chance < 0.67:
        return formulas.reports(draw)
    if chance < 0.77:
        return formulas.cases(draw)
    if chance < 0.84:
        return formulas.arithmetic(draw)
    if chance < 0.87:
        return formulas.loops(draw)
    return formulas.scans(draw) if chance < 0.91 else formulas.tables(draw)


def _near(rng: random.Random, constants: list[int]) -> int:
    """A number that is often close to a constant of the description, where wrong code differs from right code."""
    if constants and rng.random() < 0.5:
        return rng.choice(constants) + rng.randint(-1, 1)
    return rng.randint(-12, 25)


def _argument(rng: random.Random, kind: str, constants: list[int], turn: int) -> Any:
    """A value of the given kind; turn 0 is the smallest one and turn 1 a small one."""
    size = 0 if turn == 0 else rng.randint(1, 3) if turn == 1 else rng.randint(4, 9)
    if kind == "numbers":
        values = [_near(rng, constants) for _ in range(size)]
        return values + values[:1] if turn == 3 else values
    if kind == "words":
        words = rng.choices(_SAMPLE_WORDS, k=size)
        return words + words[:1] if turn == 3 else words
    if kind == "text":
        return "".join(rng.choices(_SAMPLE_TEXT, k=2 * size))
    if kind == "table":
        return {word: _near(rng, constants) for word in rng.sample(_SAMPLE_WORDS, size)}
    if kind == "small":
        return rng.randint(1, 6)
    if kind == "count":
        return rng.randint(1, 12) if turn == 0 else rng.randint(5, 24)
    if kind == "digits":
        return rng.randint(0, 9) if turn == 0 else rng.randint(10, 99999)
    return 0 if turn == 0 else -rng.randint(1, 9) if turn == 1 else _near(rng, constants)


def _checks(rng: random.Random, sketch: Sketch) -> tuple[tuple[tuple[Any, ...], Any], ...]:
    constants = [int(number) for number in _NUMBER.findall(sketch.key)]
    turns = 6 if sketch.arguments[0] == "whole" else 5
    checks = []
    for turn in range(turns):
        arguments = tuple(_argument(rng, kind, constants, turn) for kind in sketch.arguments)
        checks.append((arguments, sketch.meaning(*arguments)))
    return tuple(checks)


class Functions(Generated):
    """Descriptions of small functions over numbers, lists, strings and dicts.

    Args:
        wide: also pipelines of three steps, dicts of three facts and rarer endings; then the task is "functions-wide".
            Both share one split: what is held out of one is held out of the other.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self.wide = wide
        self.name = "functions-wide" if wide else "functions"

    def sample(self, rng: random.Random) -> Problem:
        """Draw a description, a program for it in some style, and test cases."""
        sketch = _plan(Draw(rng, argument=rng.random() < 0.2, wide=self.wide))
        places = ["x"]
        names = {"x": rng.choice(_ARGUMENTS[sketch.arguments[0]])}
        for kind in sketch.arguments[1:]:
            place = "k" if "@k" in sketch.key else "b"
            pool = (_SECOND.get(kind) or _ARGUMENTS[kind]) if place == "b" else _ARGUMENTS[kind]
            names[place] = rng.choice([name for name in pool if name != names["x"]])
            places.append(place)
        code = "\n".join(["def @f(" + ", ".join(f"@{place}" for place in places) + "):", *_indented(sketch.body)])
        taken = set(names.values())
        names["f"] = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"
        for place in sorted(set(_PLACE.findall(code)) - names.keys()):
            pool = _LOCALS.get(f"{place} {sketch.arguments[0]}", _LOCALS[place])
            pool = pool if self.wide else pool[:4]
            names[place] = rng.choice([name for name in pool if name not in taken])
            taken.add(names[place])

        def named(match: re.Match[str]) -> str:
            return names[match.group(1)]

        say = sketch.say
        for canonical, other in _SYNONYMS:
            if canonical in say and rng.random() < 0.3:
                say = say.replace(canonical, other)
        head = f"{names['f']}({', '.join(names[place] for place in places)})"
        opening = _OPENINGS[0] if rng.random() < 0.5 else rng.choice(_OPENINGS)
        return Problem(
            task=self.name,
            prompt=opening.replace("{head}", head).replace("{say}", _PLACE.sub(named, say)),
            answer=_PLACE.sub(named, code),
            key=sketch.key,
            checks=_checks(rng, sketch),
            entry_point=names["f"],
        )

    def grade(self, problem: Problem, text: str) -> bool:
        """Whether the code in the text passes every hidden test case; runs it in a sandbox."""
        from unmask.evaluation.tasks.suite import grade

        return grade([problem], [text])[0]


def _indented(body: list[str]) -> list[str]:
    return ["    " + line for line in body]
