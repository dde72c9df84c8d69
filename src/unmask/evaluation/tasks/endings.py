"""What a pipeline returns about the elements that are left: a sum, a list, a dict, a best one and so on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.tasks.primitives import Constant, Draw, condition


@dataclass(frozen=True, slots=True)
class Ending:
    """What the function returns about the elements that are left.

    Args:
        say: phrase after "returns", with `%` where " of the numbers in ..." may follow.
        code: expressions; `%G` is a bare generator, `%L` a list, `%V` a variable (which may be used repeatedly).
        before: lines before a loop, or None if the ending is never written as a loop.
        inside: lines inside the loop, where `@e` is the element.
        result: what the loop version returns; empty if `inside` already returns.
        compute: the meaning, given the list and `@k`.
        pool: which local names suit the result.
    """

    say: str
    code: tuple[str, ...]
    before: tuple[str, ...] | None
    inside: tuple[tuple[str, ...], ...]
    result: str
    compute: Callable[[list[Any], int], Any]
    pool: str = "total"


def _product(values: list[int]) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def _counts(values: list[Any]) -> dict[Any, int]:
    return {value: values.count(value) for value in values}


def _groups(values: list[Any], measure: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    return {measure(value): [other for other in values if measure(other) == measure(value)] for value in values}


def _best_of(draw: Draw) -> Ending:
    """The largest or smallest element, with what to return when there is none."""
    rng = draw.rng
    name, sign, word, pick = rng.choice(
        (("max", ">", "largest", max), ("min", "<", "smallest", min), ("max", ">", "largest", max))
    )
    default = rng.choice((0, 0, -1, None))
    return Ending(
        f"the {word}%, or {default} if there is none",
        (f"{name}(%L, default={default})", f"{name}(%V) if %V else {default}"),
        ("@r = None",),
        ((f"if @r is None or @e {sign} @r:", "    @r = @e"),),
        "@r" if default is None else f"{default} if @r is None else @r",
        lambda values, k: pick(values) if values else default,
        "best",
    )


def _at_end(draw: Draw, kind: str) -> Ending:
    rng = draw.rng
    default: Any = rng.choice((0, -1, None)) if kind == "number" else ""
    shown = '""' if default == "" else str(default)
    said = "an empty string" if default == "" else shown
    if rng.random() < 0.5:
        return Ending(
            f"the first one%, or {said} if there is none",
            (f"%V[0] if %V else {shown}",),
            (),
            (("return @e",),),
            shown,
            lambda values, k: values[0] if values else default,
        )
    return Ending(
        f"the last one%, or {said} if there is none",
        (f"%V[-1] if %V else {shown}",),
        (f"@r = {shown}",),
        (("@r = @e",),),
        "@r",
        lambda values, k: values[-1] if values else default,
        "best",
    )


_SUM = Ending(
    "the sum%",
    ("sum(%G)",),
    ("@r = 0",),
    (("@r += @e",),),
    "@r",
    lambda values, k: sum(values),
)
COUNT = Ending(
    "the count%",
    ("len(%L)",),
    ("@r = 0",),
    (("@r += 1",),),
    "@r",
    lambda values, k: len(values),
    "count",
)
_PRODUCT = Ending(
    "the product%, which is 1 if there are none",
    (),
    ("@r = 1",),
    (("@r *= @e",),),
    "@r",
    lambda values, k: _product(values),
)
LIST = Ending(
    "the list%",
    ("%L",),
    ("@r = []",),
    (("@r.append(@e)",),),
    "@r",
    lambda values, k: list(values),
    "list",
)
_DISTINCT = Ending(
    "the number of different ones%",
    ("len(set(%L))",),
    ("@r = set()",),
    (("@r.add(@e)",),),
    "len(@r)",
    lambda values, k: len(set(values)),
    "seen",
)
_TALLY = Ending(
    "a dict with the counts%",
    (),
    ("@r = {}",),
    (("@r[@e] = @r.get(@e, 0) + 1",), ("if @e in @r:", "    @r[@e] += 1", "else:", "    @r[@e] = 1")),
    "@r",
    lambda values, k: _counts(values),
    "table",
)
_RUNNING = Ending(
    "the list of running totals%",
    (),
    ("@r = []", "@t = 0"),
    (("@t += @e", "@r.append(@t)"),),
    "@r",
    lambda values, k: [sum(values[: index + 1]) for index in range(len(values))],
    "list",
)
_STEPWISE = Ending(
    "the list of differences between each one and the next (next minus current)%",
    ("[@w - @v for @v, @w in zip(%V, %V[1:])]", "[%V[@i + 1] - %V[@i] for @i in range(len(%V) - 1)]"),
    None,
    (),
    "",
    lambda values, k: [values[index] - values[index - 1] for index in range(1, len(values))],
)
_SPAN = Ending(
    "the largest minus the smallest%, or 0 if there is none",
    ("max(%V) - min(%V) if %V else 0",),
    None,
    (),
    "",
    lambda values, k: max(values) - min(values) if values else 0,
)
_ALTERNATING = Ending(
    "the alternating sum% (first minus second plus third and so on)",
    ("sum(%V[::2]) - sum(%V[1::2])",),
    ("@r = 0", "@t = 1"),
    (("@r += @t * @e", "@t = -@t"),),
    "@r",
    lambda values, k: sum(value * (-1) ** index for index, value in enumerate(values)),
)


def _grouped(draw: Draw, kind: str) -> Ending:
    """A dict of lists: by remainder, by length or by first letter."""
    if kind == "number":
        c: Constant = draw.constant(2, 6)
        mark, said = f"@e % {c.code}", f"remainder modulo {c.say}"
        return Ending(
            f"a dict that maps each {said} to the list of such numbers%",
            (),
            ("@r = {}",),
            _grouping(mark),
            "@r",
            lambda values, k: _groups(values, lambda value: value % c.of(k)),
            "table",
        )
    mark, said, measure = draw.rng.choice((("len(@e)", "length", len), ("@e[0]", "first letter", lambda word: word[0])))
    return Ending(
        f"a dict that maps each {said} to the list of such words%",
        (),
        ("@r = {}",),
        _grouping(mark),
        "@r",
        lambda values, k: _groups(values, measure),
        "table",
    )


def _grouping(mark: str) -> tuple[tuple[str, ...], ...]:
    return (
        (f"@r.setdefault({mark}, []).append(@e)",),
        (f"@g = {mark}", "if @g not in @r:", "    @r[@g] = []", "@r[@g].append(@e)"),
    )


def _whether(draw: Draw, kind: str) -> Ending:
    found = condition(draw, kind)
    code = found.code[0].replace("@v", "@e")
    opposite = found.opposite.replace("@v", "@e")
    if draw.rng.random() < 0.5:
        return Ending(
            f"whether any% {found.say}",
            (f"any({found.code[0]} for @v in %L)",),
            (),
            ((f"if {code}:", "    return True"),),
            "False",
            lambda values, k: any(found.holds(value, k) for value in values),
        )
    return Ending(
        f"whether all% {found.say}",
        (f"all({found.code[0]} for @v in %L)",),
        (),
        ((f"if {opposite}:", "    return False"),),
        "True",
        lambda values, k: all(found.holds(value, k) for value in values),
    )


def _split(draw: Draw, kind: str) -> Ending:
    found = condition(draw, kind, compound=0.0)
    code = found.code[0].replace("@v", "@e")
    return Ending(
        f"a tuple of two lists: those% that {found.say} and the others",
        (),
        ("@r = []", "@t = []"),
        ((f"if {code}:", "    @r.append(@e)", "else:", "    @t.append(@e)"),),
        "@r, @t",
        lambda values, k: (
            [value for value in values if found.holds(value, k)],
            [value for value in values if not found.holds(value, k)],
        ),
        "list",
    )


_FACTS: tuple[tuple[str, str, Callable[[list[int]], int]], ...] = (
    ("sum", "sum(%V)", sum),
    ("count", "len(%V)", len),
    ("max", "max(%V, default=0)", lambda values: max(values, default=0)),
    ("min", "min(%V, default=0)", lambda values: min(values, default=0)),
)


def _summary(draw: Draw) -> Ending:
    """A dict with two or three facts; the maximum and minimum of nothing are 0."""
    rng = draw.rng
    facts = rng.sample(_FACTS, rng.choice((2, 3)))
    names = [f'"{name}"' for name, _, _ in facts]
    empty = " (0 if there is none)" if any(name in ("max", "min") for name, _, _ in facts) else ""
    pairs = ", ".join(f'"{name}": {code}' for name, code, _ in facts)
    return Ending(
        f"a dict with the keys {', '.join(names[:-1])} and {names[-1]}%{empty}",
        ("{" + pairs + "}",),
        None,
        (),
        "",
        lambda values, k: {name: compute(values) for name, _, compute in facts},
    )


def _joined(draw: Draw, kind: str) -> Ending:
    mark, said = draw.rng.choice((("-", '"-"'), (", ", '", "'), (" ", "spaces"), ("+", '"+"'), ("", "nothing")))
    code = (f'"{mark}".join(%G)',)
    if kind == "number":
        code = (f'"{mark}".join(str(@v) for @v in %L)',)
    return Ending(
        f"the string of all of them joined with {said} in between%",
        code,
        None,
        (),
        "",
        lambda values, k: mark.join(map(str, values)),
    )


TEXT = Ending(
    "the string%",
    ('"".join(%G)',),
    ('@r = ""',),
    (("@r += @e",),),
    "@r",
    lambda values, k: "".join(values),
    "text",
)


def draw_ending(draw: Draw, kind: str) -> Ending:
    """Draw an ending that suits the kind of the elements."""
    rng = draw.rng
    if kind == "number":
        if not draw.wide and rng.random() < 0.6:
            return rng.choice((_SUM, _SUM, COUNT, LIST, LIST, _TALLY, _DISTINCT))
        chosen = rng.randrange(30 if draw.wide else 25)
        if chosen < 19:
            plain = (_SUM, _SUM, _SUM, COUNT, COUNT, COUNT, _PRODUCT, LIST, LIST, LIST, LIST, LIST, _DISTINCT,
                     _TALLY, _TALLY, _RUNNING, _STEPWISE, _SPAN, _ALTERNATING)  # fmt: skip
            return plain[chosen]
        if chosen < 22:
            return _best_of(draw)
        if chosen == 22:
            return _at_end(draw, kind)
        if chosen < 25:
            return _whether(draw, kind)
        if chosen == 25:
            return _split(draw, kind)
        if chosen == 26:
            return _grouped(draw, kind)
        return _joined(draw, kind) if chosen == 27 else _summary(draw)
    if kind == "word":
        chosen = rng.randrange(14)
        if chosen < 7:
            return (COUNT, COUNT, LIST, LIST, LIST, _TALLY, _DISTINCT)[chosen]
        if chosen == 7:
            return _at_end(draw, kind)
        if chosen < 10:
            return _whether(draw, kind)
        if chosen == 10:
            return _split(draw, kind)
        return _grouped(draw, kind) if chosen == 11 else _joined(draw, kind)
    chosen = rng.randrange(12)
    if chosen < 10:
        return (TEXT, TEXT, TEXT, TEXT, COUNT, COUNT, COUNT, _TALLY, LIST, _DISTINCT)[chosen]
    # A changed character may be several, for which the conditions on one are not defined.
    return _whether(draw, kind) if kind == "char" else TEXT
