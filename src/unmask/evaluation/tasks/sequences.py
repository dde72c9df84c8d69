"""Where the elements of a pipeline come from, and the steps that look at the whole list."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.tasks.primitives import Change, Condition, Draw


@dataclass(frozen=True, slots=True)
class Source:
    """Where the elements come from."""

    each: str  # one element in a phrase
    every: str  # all of them, as the subject of "that are even"
    whole: str  # the sequence itself in a phrase
    code: str
    kind: str
    arguments: tuple[str, ...]
    read: Callable[..., list[Any]]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Order:
    """A step that looks at the whole list: sorting, taking, dropping; `%` is the list, in phrases and in code."""

    say: str
    code: tuple[str, ...]
    in_place: str
    apply: Callable[[list[Any], int], list[Any]]


Step = Condition | Change | Order


def draw_source(rng: random.Random) -> Source:
    chance = rng.random()
    if chance < 0.46:
        return Source(
            "each number in `@x`", "the numbers in `@x`", "the list `@x`", "@x", "number", ("numbers",), list, True
        )
    if chance < 0.66:
        return Source("each word in `@x`", "the words in `@x`", "the list `@x`", "@x", "word", ("words",), list, True)
    if chance < 0.78:
        what = "the characters of `@x`"
        return Source("each character of `@x`", what, what, "@x", "char", ("text",), list, False)
    if chance < 0.86:
        what = "the numbers from 1 to `@x`"
        code = "range(1, @x + 1)"
        return Source(f"each of {what}", what, what, code, "number", ("count",), lambda n: list(range(1, n + 1)), False)
    if chance < 0.9:
        what = "the digits of `@x`"
        code = "[int(@v) for @v in str(@x)]"
        return Source(
            f"each of {what}", what, what, code, "number", ("digits",), lambda n: [int(d) for d in str(n)], True
        )
    if chance < 0.94:
        what = "the numbers in `@x` followed by those in `@b`"
        lists = ("numbers", "numbers")
        return Source(f"each of {what}", what, what, "@x + @b", "number", lists, lambda a, b: [*a, *b], True)
    word, sign, combine = rng.choice(_PAIRS)
    what = f"the {word} of the pairs of numbers in `@x` and `@b`"
    code = f"[@v {sign} @w for @v, @w in zip(@x, @b)]"
    lists = ("numbers", "numbers")
    return Source(
        f"each of {what}",
        what,
        what,
        code,
        "number",
        lists,
        lambda a, b: [combine(p, q) for p, q in zip(a, b, strict=False)],
        True,
    )


_PAIRS: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
    ("sums", "+", lambda p, q: p + q),
    ("products", "*", lambda p, q: p * q),
    ("differences", "-", lambda p, q: p - q),
)


def _last(values: list[Any], count: int) -> list[Any]:
    return values[max(0, len(values) - count) :]


def draw_order(draw: Draw, kind: str) -> Order:
    rng = draw.rng
    chosen = rng.randrange(12)
    if chosen < 2:
        return Order("sorts % in ascending order", ("sorted(%)",), "%.sort()", lambda values, k: sorted(values))
    if chosen < 4:
        return Order(
            "sorts % in descending order",
            ("sorted(%, reverse=True)",),
            "%.sort(reverse=True)",
            lambda values, k: sorted(values, reverse=True),
        )
    if chosen == 4:
        return Order("reverses %", ("%[::-1]",), "%.reverse()", lambda values, k: list(reversed(values)))
    if chosen == 5:
        return Order(
            "removes duplicates from %, keeping first occurrences",
            ("list(dict.fromkeys(%))",),
            "",
            lambda values, k: list(dict.fromkeys(values)),
        )
    if chosen == 6:
        if kind == "number":
            return Order(
                "sorts % by absolute value (ties keep their order)",
                ("sorted(%, key=abs)",),
                "%.sort(key=abs)",
                lambda values, k: sorted(values, key=abs),
            )
        return Order(
            "sorts % by length (ties keep their order)",
            ("sorted(%, key=len)",),
            "%.sort(key=len)",
            lambda values, k: sorted(values, key=len),
        )
    if chosen == 7:
        return Order(
            "takes every second one of %, starting with the first", ("%[::2]",), "", lambda values, k: values[::2]
        )
    c = draw.constant(2, 6)
    if chosen < 10:
        return Order(f"takes the first {c.say} of %", (f"%[:{c.code}]",), "", lambda values, k: values[: c.of(k)])
    if chosen == 10:
        return Order(f"takes the last {c.say} of %", (f"%[-{c.code}:]",), "", lambda values, k: _last(values, c.of(k)))
    return Order(f"drops the first {c.say} of %", (f"%[{c.code}:]",), "", lambda values, k: values[c.of(k) :])
