"""Functions that are no pipelines: formulas with cases, counters, loops with a stop, dicts and pairs of lists."""

import math
from collections.abc import Callable
from typing import Any

from unmask.evaluation.tasks.pipelines import Sketch
from unmask.evaluation.tasks.primitives import Condition, Draw, condition, simple_number_change

_WORDS = ("big", "small", "low", "high", "even", "odd", "yes", "no", "good", "bad", "cold", "hot")


def _is(found: Condition) -> str:
    """The condition about the single number `@x`."""
    return f"`@x` is {found.say.removeprefix('are ')}"


def _outcome(draw: Draw) -> tuple[str, str, Callable[[int, int], Any]]:
    """A value that depends on `@x`: its phrase, code and meaning."""
    if draw.rng.random() < 0.15:
        value = draw.rng.randint(0, 9)
        return str(value), str(value), lambda v, k: value
    made = simple_number_change(draw)
    return made.noun.replace("%", "`@x`"), draw.rng.choice(made.code).replace("@v", "@x"), made.apply


def _constantly(value: Any) -> Callable[[int, int], Any]:
    return lambda v, k: value


def cases(draw: Draw) -> Sketch:
    """A formula or a word that depends on one or two conditions."""
    rng = draw.rng
    count = rng.choice((1, 1, 2))
    found: list[Condition] = []
    while len(found) < count:
        drawn = condition(draw, "number", compound=0.1)
        if all(drawn.say != other.say for other in found):
            found.append(drawn)
    if rng.random() < 0.25:
        words = rng.sample(_WORDS, count + 1)
        outcomes: list[tuple[str, str, Callable[[int, int], Any]]] = [
            (f'"{word}"', f'"{word}"', _constantly(word)) for word in words
        ]
    else:
        outcomes = [_outcome(draw) for _ in range(count + 1)]
    said = [f"{outcome[0]} if {_is(one)}" for outcome, one in zip(outcomes, found, strict=False)]
    key = f"returns {', '.join(said)} and {outcomes[-1][0]} otherwise"
    tests = [rng.choice(one.code).replace("@v", "@x") for one in found]
    codes = [outcome[1] for outcome in outcomes]
    style = rng.randrange(3)
    last = codes[-1]
    if style == 0:
        body = [
            line for test, code in zip(tests, codes, strict=False) for line in (f"if {test}:", f"    return {code}")
        ]
        body.append(f"return {last}")
    elif style == 1 and not any(" if " in code for code in codes):
        body = ["return " + " else ".join([*(f"{c} if {t}" for t, c in zip(tests, codes, strict=False)), last])]
    else:
        body = []
        for index, (test, code) in enumerate(zip(tests, codes, strict=False)):
            body += [f"{'elif' if index else 'if'} {test}:", f"    @r = {code}"]
        body += ["else:", f"    @r = {last}", "return @r"]

    def meaning(n: int, k: int = 0) -> Any:
        for one, outcome in zip(found, outcomes, strict=False):
            if one.holds(n, k):
                return outcome[2](n, k)
        return outcomes[-1][2](n, k)

    return Sketch(key, key, body, ("whole", "small") if "@k" in key else ("whole",), meaning)


def arithmetic(draw: Draw) -> Sketch:
    """A formula of two whole numbers."""
    rng = draw.rng
    p, q, r = rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 12)
    kind = rng.randrange(6)
    if kind < 2:
        first = "`@x`" if p == 1 else f"{p} times `@x`"
        second = "`@b`" if q == 1 else f"{q} times `@b`"
        left, right = "@x" if p == 1 else f"{p} * @x", "@b" if q == 1 else f"{q} * @b"
        sign, word = rng.choice((("+", "plus"), ("-", "minus")))
        key, code = f"returns {first} {word} {second}", f"{left} {sign} {right}"
        factor = q if sign == "+" else -q
        if r:
            key, code = f"{key} plus {r}", f"{code} + {r}"
        return _formula(draw, key, code, lambda a, b: p * a + factor * b + r)
    pairs: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
        ("the product of `@x` and `@b`", "@x * @b", lambda a, b: a * b),
        ("the square of `@x` plus the square of `@b`", rng.choice(("@x * @x + @b * @b", "@x ** 2 + @b ** 2")),
         lambda a, b: a * a + b * b),
        ("the absolute difference of `@x` and `@b`", "abs(@x - @b)", lambda a, b: abs(a - b)),
        ("the larger of `@x` and `@b`", rng.choice(("max(@x, @b)", "@x if @x > @b else @b")), max),
        ("the smaller of `@x` and `@b`", rng.choice(("min(@x, @b)", "@x if @x < @b else @b")), min),
    )  # fmt: skip
    said, code, compute = rng.choice(pairs)
    wrapped = f"({code})"
    if kind == 2:
        code = wrapped if " if " in code else code
        return _formula(draw, f"returns {said}, plus {r}", f"{code} + {r}", lambda a, b: compute(a, b) + r)
    if kind == 3:
        code = wrapped if not code.endswith(")") else code
        return _formula(
            draw, f"returns {said}, modulo {q + 1}", f"{code} % {q + 1}", lambda a, b: compute(a, b) % (q + 1)
        )
    if kind == 4:
        code = wrapped if not code.endswith(")") else code
        return _formula(
            draw, f"returns {said}, times {q + 1}", f"{code} * {q + 1}", lambda a, b: compute(a, b) * (q + 1)
        )
    found = condition(Draw(rng, argument=False), "number", compound=0.0)
    other, second, compute_other = rng.choice(pairs)
    test = "the sum of `@x` and `@b` is " + found.say.removeprefix("are ")
    key = f"returns {said} if {test} and {other} otherwise"
    check = rng.choice(found.code).replace("@v", "@t")
    body = ["@t = @x + @b", f"if {check}:", f"    return {code}"]
    body += rng.choice(([f"return {second}"], ["else:", f"    return {second}"]))
    return Sketch(
        key, key, body, ("whole", "whole"),
        lambda a, b: compute(a, b) if found.holds(a + b, 0) else compute_other(a, b),
    )  # fmt: skip


def _formula(draw: Draw, key: str, code: str, compute: Callable[[int, int], int]) -> Sketch:
    body = [f"return {code}"] if draw.rng.random() < 0.7 else [f"@r = {code}", "return @r"]
    return Sketch(key, key, body, ("whole", "whole"), compute)


def loops(draw: Draw) -> Sketch:
    """A while loop on one whole number."""
    rng = draw.rng
    kind = rng.randrange(4)
    if kind == 0:
        base = rng.randint(2, 9)
        start = rng.randint(1, 5)
        key = f"starts with {start} and multiplies by {base} until it is at least `@x`, then returns it"
        body = [f"@r = {start}", "while @r < @x:", f"    @r *= {base}", "return @r"]

        def grown(n: int) -> Any:
            return next(start * base**power for power in range(64) if start * base**power >= n)

        return Sketch(key, key, body, ("whole",), grown)
    if kind == 1:
        base, bound = rng.randint(2, 9), rng.randint(1, 9)
        key = f"returns how often `@x` can be divided by {base} rounding down before it is less than {bound}"
        body = ["@r = 0", f"while @x >= {bound}:", f"    @x //= {base}", "    @r += 1", "return @r"]
        if rng.random() < 0.5:
            body[2] = f"    @x = @x // {base}"

        def shrunk(n: int) -> int:
            return next(power for power in range(64) if n // base**power < bound)

        return Sketch(key, key, body, ("whole",), shrunk)
    if kind == 2:
        made = simple_number_change(Draw(rng, argument=False))
        while " if " in made.code[-1] or made.noun.startswith(("the cube", "the square")):
            made = simple_number_change(Draw(rng, argument=False))
        code = rng.choice(made.code).replace("@v", "@x")
        key = f"replaces `@x` by {made.noun.replace('%', '`@x`')}, does so `@b` times and returns it"
        body = ["for _ in range(@b):", f"    @x = {code}", "return @x"]

        def repeated(n: int, times: int) -> Any:
            for _ in range(times):
                n = made.apply(n, 0)
            return n

        return Sketch(key, key, body, ("whole", "small"), repeated)
    found = condition(Draw(rng, argument=False), "number", compound=0.3)
    step = rng.randint(1, 9)
    test = rng.choice(found.code).replace("@v", "@r")
    key = f"returns the number of terms of 0, {step}, {2 * step} and so on that are less than `@x` and {found.say}"
    body = ["@t = 0", f"for @r in range(0, @x, {step}):", f"    if {test}:", "        @t += 1", "return @t"]

    def terms(n: int) -> int:
        return sum(found.holds(value, 0) for value in range(0, n, step))

    return Sketch(key, key, body, ("whole",), terms)


def scans(draw: Draw) -> Sketch:
    """A loop over a list of numbers that remembers something or stops early."""
    rng = draw.rng
    found = condition(draw, "number")
    test, opposite = rng.choice(found.code), found.opposite
    singular = found.say.replace("are ", "is ")
    kind = rng.randrange(5)
    compute: Callable[[list[int], int], Any]
    if kind == 0:
        key = f"returns the length of the longest run of numbers in `@x` that {found.say}"
        grow = rng.choice((["        if @t > @r:", "            @r = @t"], ["        @r = max(@r, @t)"]))
        body = ["@r = 0", "@t = 0", "for @v in @x:", f"    if {test}:", "        @t += 1", *grow,
                "    else:", "        @t = 0", "return @r"]  # fmt: skip

        def compute(values: list[int], k: int) -> Any:
            marks = "".join("1" if found.holds(value, k) else "0" for value in values)
            return max(map(len, marks.split("0")))
    elif kind == 1:
        key = f"returns the sum of the numbers in `@x` before the first one that {singular}"
        body = ["@r = 0", "for @v in @x:", f"    if {test}:", "        break", "    @r += @v", "return @r"]

        def compute(values: list[int], k: int) -> Any:
            return sum(values[: _first(values, found, k)])
    elif kind == 2:
        key = f"returns the list of the numbers in `@x` before the first one that {singular}"
        body = ["@r = []", "for @v in @x:", f"    if {test}:", "        break", "    @r.append(@v)", "return @r"]

        def compute(values: list[int], k: int) -> Any:
            return values[: _first(values, found, k)]
    elif kind == 3:
        key = f"returns the position of the first number in `@x` that {singular}, or -1 if there is none"
        body = ["for @i, @v in enumerate(@x):", f"    if {test}:", "        return @i", "return -1"]
        if rng.random() < 0.4:
            indexed = test.replace("@v", "@x[@i]")
            body = ["for @i in range(len(@x)):", f"    if {indexed}:", "        return @i", "return -1"]

        def compute(values: list[int], k: int) -> Any:
            place = _first(values, found, k)
            return place if place < len(values) else -1
    else:
        key = f"returns the list of the positions of the numbers in `@x` that {found.say}"
        body = [f"return [@i for @i, @v in enumerate(@x) if {test}]"]
        if rng.random() < 0.5:
            body = ["@r = []", "for @i, @v in enumerate(@x):", f"    if {test}:", "        @r.append(@i)", "return @r"]

        def compute(values: list[int], k: int) -> Any:
            return [place for place, value in enumerate(values) if found.holds(value, k)]

    assert opposite, "every condition has an opposite"
    arguments = ("numbers", "small") if "@k" in key else ("numbers",)
    return Sketch(key, key, body, arguments, lambda values, k=0: compute(values, k))


def _first(values: list[int], found: Condition, k: int) -> int:
    """Place of the first match, or the length if there is none."""
    return next((place for place, value in enumerate(values) if found.holds(value, k)), len(values))


def tables(draw: Draw) -> Sketch:
    """A dict from words to numbers: filter, change, then a dict, a list, a number or a key."""
    rng = draw.rng
    about_key = rng.random() < 0.3
    found = condition(draw, "word" if about_key else "number")
    subject = "@g" if about_key else "@v"
    test = rng.choice(found.code).replace("@v", subject)
    made = simple_number_change(draw) if rng.random() < 0.45 else None
    filtered = rng.random() < 0.85 or made is None
    value = rng.choice(made.code) if made else "@v"
    part = "keys" if about_key else "values"
    keeps = f"keeps the entries of the dict `@x` whose {part} {found.say}"
    phrases = [keeps] if filtered else []
    if made:
        each = "each value" if filtered else "each value of the dict `@x`"
        phrases.append(made.say.replace("%", each))
    kind = rng.randrange(6)
    ends = (
        "the dict",
        "the sum of the values",
        "the sorted list of the keys",
        "the list of the values",
        "the count of the entries",
        "a dict that maps each value to the sorted list of its keys",
    )
    if kind == 4 and (made or not filtered):
        kind = 0
    if kind == 2 and made:
        kind = 1
    key = ", ".join(phrases) + f" and returns {ends[kind]}"
    clause = "for @g, @v in @x.items()" + (f" if {test}" if filtered else "")
    looped = rng.random() < 0.5 or kind == 5
    inside = (f"@r[@g] = {value}", f"@r += {value}", "@r.append(@g)", f"@r.append({value})", "@r += 1", "")[kind]
    if kind == 1 and " if " in value:
        inside = f"@r += ({value})"
    lines = [inside]
    if kind == 5:
        lines = rng.choice(
            ([f"@r.setdefault({value}, []).append(@g)"], [f"@t = {value}", "if @t not in @r:", "    @r[@t] = []",
             "@r[@t].append(@g)"])
        )  # fmt: skip
    start = ("{}", "0", "[]", "[]", "0", "{}")[kind]
    if looped:
        items = "sorted(@x.items())" if kind == 5 else "@x.items()"
        indent = "        " if filtered else "    "
        body = [f"@r = {start}", f"for @g, @v in {items}:"]
        body += [f"    if {test}:"] if filtered else []
        body += [indent + line for line in lines]
        body.append("return sorted(@r)" if kind == 2 else "return @r")
    else:
        body = [
            (
                "return {@g: " + value + " " + clause + "}",
                f"return sum({value} {clause})",
                f"return sorted(@g {clause})",
                f"return [{value} {clause}]",
                f"return sum(1 {clause})",
                "",
            )[kind]
        ]

    def meaning(table: dict[str, int], k: int = 0) -> Any:
        kept = table
        if filtered:
            kept = {word: n for word, n in table.items() if found.holds(word if about_key else n, k)}
        if made:
            kept = {word: made.apply(n, k) for word, n in kept.items()}
        if kind == 5:
            return {n: sorted(word for word in kept if kept[word] == n) for n in kept.values()}
        return (kept, sum(kept.values()), sorted(kept), list(kept.values()), len(kept))[kind]

    arguments = ("table", "small") if "@k" in key else ("table",)
    return Sketch(key, key, body, arguments, meaning)


def pairs(draw: Draw) -> Sketch:
    """Two lists of numbers, or a list and something to look up in it."""
    rng = draw.rng
    kind = rng.randrange(4)
    if kind < 2:
        inside = kind == 0
        word = "also in" if inside else "not in"
        found = condition(Draw(rng, argument=False), "number", compound=0.1)
        test = f"@v {'in' if inside else 'not in'} @b"
        extra = rng.random() < 0.7
        key = f"returns the list of the numbers in `@x` that are {word} `@b`" + (f" and {found.say}" if extra else "")
        code = rng.choice(found.code)
        if " or " in code:
            code = f"({code})"
        test = f"{test} and {code}" if extra else test
        body = [f"return [@v for @v in @x if {test}]"]
        if rng.random() < 0.5:
            body = ["@r = []", "for @v in @x:", f"    if {test}:", "        @r.append(@v)", "return @r"]

        def shared(a: list[int], b: list[int]) -> Any:
            return [v for v in a if (v in b) == inside and (not extra or found.holds(v, 0))]

        return Sketch(key, key, body, ("numbers", "numbers"), shared)
    p, q = rng.randint(1, 9), rng.randint(1, 9)
    if kind == 2:
        first = "each number in `@x`" if p == 1 else f"{p} times each number in `@x`"
        second = "the number at the same place in `@b`" if q == 1 else f"{q} times the number at the same place in `@b`"
        sign, sound = rng.choice((("+", "plus"), ("-", "minus")))
        key = f"returns the list of {first} {sound} {second}, up to the shorter length"
        left, right = "@v" if p == 1 else f"{p} * @v", "@w" if q == 1 else f"{q} * @w"
        body = [f"return [{left} {sign} {right} for @v, @w in zip(@x, @b)]"]
        if rng.random() < 0.5:
            body = ["@r = []", "for @v, @w in zip(@x, @b):", f"    @r.append({left} {sign} {right})", "return @r"]
        factor = q if sign == "+" else -q
        return Sketch(
            key, key, body, ("numbers", "numbers"),
            lambda a, b: [p * v + factor * w for v, w in zip(a, b, strict=False)],
        )  # fmt: skip
    comparisons: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
        (">", "greater", lambda v, w: v > w),
        ("<", "less", lambda v, w: v < w),
    )
    sign, sound, holds = rng.choice(comparisons)
    amount = rng.randint(0, 9)
    than = "`@b` at the same place" + (f" plus {amount}" if amount else "")
    key = f"returns how many numbers in `@x` are {sound} than the number in {than}, up to the shorter length"
    limit = f"@w + {amount}" if amount else "@w"
    body = [f"return sum(1 for @v, @w in zip(@x, @b) if @v {sign} {limit})"]
    if rng.random() < 0.5:
        body = ["@r = 0", "for @v, @w in zip(@x, @b):", f"    if @v {sign} {limit}:", "        @r += 1", "return @r"]

    def counted(a: list[int], b: list[int]) -> int:
        return sum(holds(v, w + amount) for v, w in zip(a, b, strict=False))

    return Sketch(key, key, body, ("numbers", "numbers"), counted)


def common_divisor(draw: Draw) -> Sketch:
    """The greatest common divisor, changed a little: a loop that many programs share."""
    made = simple_number_change(Draw(draw.rng, argument=False))
    while " if " in made.code[-1]:
        made = simple_number_change(Draw(draw.rng, argument=False))
    key = f"finds the greatest common divisor of `@x` and `@b` and returns {made.noun.replace('%', 'it')}"
    body = ["while @b:", "    @x, @b = @b, @x % @b", f"return {made.code[0].replace('@v', '@x')}"]
    return Sketch(key, key, body, ("count", "count"), lambda a, b: made.apply(math.gcd(a, b), 0))


_KEYS = ("top", "low", "high", "many", "few", "mark", "bonus", "gap", "peak", "extra", "main", "side", "good", "bad")


def reports(draw: Draw) -> Sketch:
    """A dict with two or three named facts, each about the elements that meet a condition of its own."""
    rng = draw.rng
    kind, items = rng.choice((("number", "numbers"), ("number", "numbers"), ("word", "words")))
    names = rng.sample(_KEYS, rng.choice((2, 2, 3)) if draw.wide else 2)
    founds = [condition(draw, kind, compound=0.08) for _ in names]
    facts = [rng.choice(("sum", "count", "list") if kind == "number" else ("count", "list")) for _ in names]
    said = []
    for index, (name, fact, found) in enumerate(zip(names, facts, founds, strict=True)):
        subject = f"the {items} in `@x` that" if index == 0 else "those that"
        said.append(f'"{name}" (the {fact} of {subject} {found.say})')
    key = f"returns a dict with the keys {', '.join(said[:-1])} and {said[-1]}"
    body: list[str] = []
    style = rng.randrange(3)
    parts = list(zip(names, facts, (rng.choice(found.code) for found in founds), strict=True))
    pairs = "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
    if style == 0:
        body = [f"{name} = {'[]' if fact == 'list' else 0}" for name, fact, _ in parts] + ["for @v in @x:"]
        for name, fact, test in parts:
            grow = {"sum": f"{name} += @v", "count": f"{name} += 1", "list": f"{name}.append(@v)"}[fact]
            body += [f"    if {test}:", f"        {grow}"]
        body.append(f"return {pairs}")
    else:
        for name, fact, test in parts:
            clause = f"@v for @v in @x if {test}"
            code = {"sum": f"sum({clause})", "count": f"len([{clause}])", "list": f"[{clause}]"}[fact]
            body.append(f"{name} = {code}" if style == 1 else f'@r["{name}"] = {code}')
        body = [*body, f"return {pairs}"] if style == 1 else ["@r = {}", *body, "return @r"]

    def meaning(values: list[Any], k: int = 0) -> dict[str, Any]:
        report: dict[str, Any] = {}
        for name, fact, found in zip(names, facts, founds, strict=True):
            kept = [value for value in values if found.holds(value, k)]
            report[name] = sum(kept) if fact == "sum" else len(kept) if fact == "count" else kept
        return report

    arguments = (items, "small") if "@k" in key else (items,)
    return Sketch(key, key, body, arguments, meaning)
