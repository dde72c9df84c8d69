"""Conditions, changes and constants that the functions task composes: a phrase, its code and its meaning.

In phrases and code, `@x`, `@k`, `@v` ... stand for names chosen later; `@v` is always the element at hand, `@k` a whole
number argument. A meaning is a Python callable of the element and `@k`, written apart from the code, so that it can
judge the code.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LETTERS = "aeiostrnl"
ENDINGS = ("s", "ed", "er", "ing", "ly", "x", "z", "a")


@dataclass(frozen=True, slots=True)
class Constant:
    """A whole number in the description: a literal, or the argument `@k` when the value is None."""

    say: str
    code: str
    value: int | None

    def of(self, k: int) -> int:
        """The number, given the argument."""
        return k if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class Condition:
    """A property of an element: "are even"."""

    say: str
    code: tuple[str, ...]
    opposite: str
    holds: Callable[[Any, int], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """A function of an element: "doubles each number in `@x`"; `%` is the place of the element in the phrases."""

    say: str
    noun: str
    code: tuple[str, ...]
    apply: Callable[[Any, int], Any]
    result: str  # "number", "word" or "char": the kind of what comes out


class Draw:
    """Random choices for one problem, with the budget for a single use of the argument `@k`.

    `wide` draws from the whole grammar; otherwise from the part that a model of three million parameters can learn.
    """

    def __init__(self, rng: random.Random, *, argument: bool, wide: bool = True) -> None:
        self.rng = rng
        self.wide = wide
        self.argument = argument
        self.used_argument = False

    def constant(self, low: int, high: int) -> Constant:
        """A literal from low to high, or the argument if the problem has one that is still unused."""
        if self.argument and not self.used_argument:
            self.used_argument = True
            return Constant("`@k`", "@k", None)
        value = self.rng.randint(low, high)
        return Constant(str(value), str(value), value)


def _compare(draw: Draw, subject: str, measure: Callable[[Any], int], low: int, high: int) -> Condition:
    """A comparison of a measured number with a constant; the subject is its code."""
    c = draw.constant(low, high)
    kind = draw.rng.randrange(4)
    s, t = subject, c.code
    if kind == 0:
        return Condition(f"greater than {c.say}", (f"{s} > {t}",), f"{s} <= {t}", lambda v, k: measure(v) > c.of(k))
    if kind == 1:
        return Condition(f"less than {c.say}", (f"{s} < {t}",), f"{s} >= {t}", lambda v, k: measure(v) < c.of(k))
    if kind == 2:
        return Condition(f"at least {c.say}", (f"{s} >= {t}",), f"{s} < {t}", lambda v, k: measure(v) >= c.of(k))
    return Condition(f"at most {c.say}", (f"{s} <= {t}",), f"{s} > {t}", lambda v, k: measure(v) <= c.of(k))


def _itself(value: Any) -> Any:
    return value


def _prefixed(prefix: str, condition: Condition) -> Condition:
    return Condition(f"{prefix} {condition.say}", condition.code, condition.opposite, condition.holds)


def _simple_number_condition(draw: Draw) -> Condition:
    rng = draw.rng
    kind = rng.randrange(14)
    if kind < 5:
        return _prefixed("are", _compare(draw, "@v", _itself, 0, 20))
    if kind == 5:
        return Condition("are even", ("@v % 2 == 0",), "@v % 2 != 0", lambda v, k: v % 2 == 0)
    if kind == 6:
        return Condition("are odd", ("@v % 2 == 1", "@v % 2 != 0"), "@v % 2 == 0", lambda v, k: v % 2 == 1)
    if kind == 7:
        return Condition("are positive", ("@v > 0",), "@v <= 0", lambda v, k: v > 0)
    if kind == 8:
        return Condition("are negative", ("@v < 0",), "@v >= 0", lambda v, k: v < 0)
    if kind == 9:
        low = rng.randint(0, 12)
        high = low + rng.randint(1, 8)
        return Condition(
            f"are between {low} and {high}",
            (f"{low} <= @v <= {high}", f"@v >= {low} and @v <= {high}"),
            f"@v < {low} or @v > {high}",
            lambda v, k: low <= v <= high,
        )
    c = draw.constant(3, 9)
    if kind in (10, 11):
        return Condition(
            f"are divisible by {c.say}",
            (f"@v % {c.code} == 0",),
            f"@v % {c.code} != 0",
            lambda v, k: v % c.of(k) == 0,
        )
    if kind == 12:
        return Condition(
            f"are not divisible by {c.say}",
            (f"@v % {c.code} != 0",),
            f"@v % {c.code} == 0",
            lambda v, k: v % c.of(k) != 0,
        )
    return Condition(f"are not equal to {c.say}", (f"@v != {c.code}",), f"@v == {c.code}", lambda v, k: v != c.of(k))


def _letter_condition(rng: random.Random, letter: str) -> Condition:
    kind = rng.randrange(4)
    if kind == 0:
        return Condition(
            f'start with "{letter}"',
            (f'@v.startswith("{letter}")', f'@v[:1] == "{letter}"'),
            f'not @v.startswith("{letter}")',
            lambda v, k: v[:1] == letter,
        )
    if kind == 1:
        ending = rng.choice(ENDINGS)
        return Condition(
            f'end with "{ending}"',
            (f'@v.endswith("{ending}")',),
            f'not @v.endswith("{ending}")',
            lambda v, k: v.endswith(ending),
        )
    if kind == 2:
        return Condition(
            f'contain "{letter}"', (f'"{letter}" in @v',), f'"{letter}" not in @v', lambda v, k: letter in v
        )
    return Condition(
        f'do not contain "{letter}"', (f'"{letter}" not in @v',), f'"{letter}" in @v', lambda v, k: letter not in v
    )


def _simple_word_condition(draw: Draw) -> Condition:
    rng = draw.rng
    if (draw.argument and not draw.used_argument) or rng.random() < 0.4:
        found = _compare(draw, "len(@v)", len, 2, 8)
        return _prefixed("have a length of", found) if found.say.startswith("at") else _prefixed("have a length", found)
    if rng.random() < 0.08:
        return Condition("have an even length", ("len(@v) % 2 == 0",), "len(@v) % 2 != 0", lambda v, k: len(v) % 2 == 0)
    return _letter_condition(rng, rng.choice(LETTERS))


def _simple_char_condition(draw: Draw) -> Condition:
    rng = draw.rng
    kind = rng.randrange(8)
    if kind in (0, 1):
        return Condition("are vowels", ('@v in "aeiou"',), '@v not in "aeiou"', lambda v, k: v in "aeiou")
    if kind == 2:
        return Condition("are not vowels", ('@v not in "aeiou"',), '@v in "aeiou"', lambda v, k: v not in "aeiou")
    if kind == 3:
        return Condition("are digits", ("@v.isdigit()",), "not @v.isdigit()", lambda v, k: v in "0123456789")
    if kind == 4:
        return Condition("are letters", ("@v.isalpha()",), "not @v.isalpha()", lambda v, k: v.isalpha())
    letter = rng.choice(LETTERS)
    if kind == 5:
        return Condition(f'equal "{letter}"', (f'@v == "{letter}"',), f'@v != "{letter}"', lambda v, k: v == letter)
    if kind == 6:
        return Condition(
            f'differ from "{letter}"', (f'@v != "{letter}"',), f'@v == "{letter}"', lambda v, k: v != letter
        )
    return Condition(f'come after "{letter}"', (f'@v > "{letter}"',), f'@v <= "{letter}"', lambda v, k: v > letter)


_SIMPLE = {"number": _simple_number_condition, "word": _simple_word_condition, "char": _simple_char_condition}


def condition(draw: Draw, kind: str, *, compound: float | None = None) -> Condition:
    """Draw a condition on a "number", "word" or "char"; some are two conditions joined by "and" or "or"."""
    if compound is None:
        compound = 0.12 if draw.wide else 0.04
    first = _SIMPLE[kind](draw)
    if draw.rng.random() >= compound:
        return first
    second = _SIMPLE[kind](draw)
    if second.say == first.say or " or " in first.code[-1] or " or " in second.code[-1]:
        return first
    one, two = first.code[0], second.code[0]
    if draw.rng.random() < 0.5:
        return Condition(
            f"{first.say} and {second.say}",
            (f"{one} and {two}",),
            f"not ({one} and {two})",
            lambda v, k: first.holds(v, k) and second.holds(v, k),
        )
    return Condition(
        f"{first.say} or {second.say}",
        (f"{one} or {two}",),
        f"not ({one} or {two})",
        lambda v, k: first.holds(v, k) or second.holds(v, k),
    )


def _arithmetic(draw: Draw) -> Change:
    kind = draw.rng.randrange(9)
    if kind < 2:
        c = draw.constant(3, 12)
        return Change(
            f"multiplies % by {c.say}",
            f"% times {c.say}",
            (f"@v * {c.code}", f"{c.code} * @v"),
            lambda v, k: v * c.of(k),
            "number",
        )
    if kind < 4:
        c = draw.constant(1, 15)
        return Change(f"adds {c.say} to %", f"% plus {c.say}", (f"@v + {c.code}",), lambda v, k: v + c.of(k), "number")
    if kind == 4:
        c = draw.constant(1, 15)
        return Change(
            f"subtracts {c.say} from %", f"% minus {c.say}", (f"@v - {c.code}",), lambda v, k: v - c.of(k), "number"
        )
    if kind == 5:
        c = draw.constant(3, 9)
        return Change(
            f"takes % modulo {c.say}", f"% modulo {c.say}", (f"@v % {c.code}",), lambda v, k: v % c.of(k), "number"
        )
    if kind == 6:
        c = draw.constant(2, 6)
        return Change(
            f"divides % by {c.say} rounding down",
            f"% divided by {c.say} rounding down",
            (f"@v // {c.code}",),
            lambda v, k: v // c.of(k),
            "number",
        )
    if kind == 7:
        c = draw.constant(5, 20)
        return Change(
            f"subtracts % from {c.say}", f"{c.say} minus %", (f"{c.code} - @v",), lambda v, k: c.of(k) - v, "number"
        )
    factor = draw.rng.randint(2, 9)
    c = draw.constant(1, 9)
    return Change(
        f"multiplies % by {factor} and adds {c.say}",
        f"% times {factor} plus {c.say}",
        (f"@v * {factor} + {c.code}", f"{factor} * @v + {c.code}"),
        lambda v, k: v * factor + c.of(k),
        "number",
    )


def _fixed_number_change(rng: random.Random) -> Change:
    kind = rng.randrange(5)
    if kind == 0:
        return Change("squares %", "the square of %", ("@v * @v", "@v ** 2"), lambda v, k: v * v, "number")
    if kind == 1:
        return Change("doubles %", "twice %", ("@v * 2", "2 * @v"), lambda v, k: v + v, "number")
    if kind == 2:
        return Change("negates %", "% negated", ("-@v",), lambda v, k: -v, "number")
    if kind == 3:
        return Change("cubes %", "the cube of %", ("@v ** 3", "@v * @v * @v"), lambda v, k: v * v * v, "number")
    return Change(
        "takes the absolute value of %", "the absolute value of %", ("abs(@v)",), lambda v, k: abs(v), "number"
    )


def _limit(draw: Draw) -> Change:
    c = draw.constant(2, 15)
    if draw.rng.random() < 0.5:
        return Change(
            f"limits % to at most {c.say}",
            f"the smaller of % and {c.say}",
            (f"min(@v, {c.code})", f"@v if @v < {c.code} else {c.code}"),
            lambda v, k: min(v, c.of(k)),
            "number",
        )
    return Change(
        f"raises % to at least {c.say}",
        f"the larger of % and {c.say}",
        (f"max(@v, {c.code})", f"@v if @v > {c.code} else {c.code}"),
        lambda v, k: max(v, c.of(k)),
        "number",
    )


def simple_number_change(draw: Draw) -> Change:
    """Draw a change of a number that has no cases."""
    chance = draw.rng.random()
    if chance < 0.6 or (draw.argument and not draw.used_argument):
        return _arithmetic(draw)
    return _limit(draw) if chance < 0.7 else _fixed_number_change(draw.rng)


def _conditional_change(draw: Draw) -> Change:
    """A change of only those numbers that meet a condition."""
    change = simple_number_change(draw)
    while " if " in change.code[-1]:
        change = simple_number_change(draw)
    found = condition(draw, "number", compound=0.0)
    return Change(
        f"{change.say} if it is{found.say.removeprefix('are')}, leaving the others as they are",
        "",
        (f"{change.code[0]} if {found.code[0]} else @v", f"@v if {found.opposite} else {change.code[0]}"),
        lambda v, k: change.apply(v, k) if found.holds(v, k) else v,
        "number",
    )


def _word_change(draw: Draw) -> Change:
    rng = draw.rng
    kind = rng.randrange(10)
    if kind < 3:
        return Change("takes the length of %", "", ("len(@v)",), lambda v, k: len(v), "number")
    if kind == 3:
        return Change("reverses %", "", ("@v[::-1]",), lambda v, k: "".join(reversed(v)), "word")
    if kind == 4:
        return Change("puts % in upper case", "", ("@v.upper()",), lambda v, k: v.upper(), "word")
    if kind == 5:
        return Change("capitalizes %", "", ("@v.capitalize()",), lambda v, k: v.capitalize(), "word")
    if kind == 6:
        ending = rng.choice(ENDINGS)
        return Change(f'adds "{ending}" to the end of %', "", (f'@v + "{ending}"',), lambda v, k: v + ending, "word")
    if kind == 7:
        c = draw.constant(1, 5)
        where = f"takes the first {c.say} characters of %"
        return Change(where, "", (f"@v[:{c.code}]",), lambda v, k: v[: c.of(k)], "word")
    letter = rng.choice(LETTERS)
    if kind == 8:
        return Change(
            f'counts the letter "{letter}" in %',
            "",
            (f'@v.count("{letter}")',),
            lambda v, k: sum(part == letter for part in v),
            "number",
        )
    other = rng.choice("uyk-*")
    return Change(
        f'replaces "{letter}" by "{other}" in %',
        "",
        (f'@v.replace("{letter}", "{other}")',),
        lambda v, k: v.replace(letter, other),
        "word",
    )


_SINGULAR = {
    "are not vowels": "is not a vowel",
    "are vowels": "is a vowel",
    "are digits": "is a digit",
    "are letters": "is a letter",
    "equal ": "equals ",
    "differ ": "differs ",
    "come ": "comes ",
}


def _char_change(draw: Draw) -> Change:
    rng = draw.rng
    kind = rng.randrange(4)
    if kind == 0:
        return Change("puts % in upper case", "", ("@v.upper()",), lambda v, k: v.upper(), "char")
    if kind == 1:
        c = draw.constant(2, 5)
        return Change(f"repeats % {c.say} times", "", (f"@v * {c.code}",), lambda v, k: v * c.of(k), "char")
    if kind == 2:
        mark = rng.choice("-_.!")
        return Change(f'adds "{mark}" after %', "", (f'@v + "{mark}"',), lambda v, k: v + mark, "char")
    found = _simple_char_condition(draw)
    mark = rng.choice("*-_#")
    said = found.say
    for plural, singular in _SINGULAR.items():
        said = said.replace(plural, singular)
    return Change(
        f'replaces % by "{mark}" if it {said}',
        "",
        (f'"{mark}" if {found.code[0]} else @v', f'@v if {found.opposite} else "{mark}"'),
        lambda v, k: mark if found.holds(v, k) else v,
        "char",
    )


def change(draw: Draw, kind: str) -> Change:
    """Draw a change of a "number", "word" or "char"."""
    if kind == "word":
        return _word_change(draw)
    if kind == "char":
        return _char_change(draw)
    return _conditional_change(draw) if draw.rng.random() < 0.15 else simple_number_change(draw)
