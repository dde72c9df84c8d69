import time

import pytest

from unmask.evaluation.sandbox import run_functions

ONE = [((), 1)]
STUBBORN = """
def f():
    while True:
        try:
            while True:
                pass
        except:
            pass
"""


def runs(source: str, checks=ONE, **options) -> bool:
    return run_functions([source], ["f"], [checks], **options)[0]


def test_right_and_wrong_functions_are_told_apart() -> None:
    sources = ["def f(x):\n    return x + 1", "def f(x):\n    return x - 1", "def g(x):\n    return x + 1"]
    assert run_functions(sources, ["f"] * 3, [[((1,), 2), ((5,), 6)]] * 3) == [True, False, False]


def test_nothing_to_run_is_fine() -> None:
    assert run_functions([], [], []) == []


def test_ordinary_python_is_allowed() -> None:
    source = (
        "def f():\n    seen = {}\n    for i, c in enumerate('abca'):\n        seen.setdefault(c, []).append(i)\n"
        "    print(f'{seen!r:>20}')\n    try:\n        return seen['z']\n    except KeyError:\n"
        "        return max((lambda v: len(v))(v) for v in seen.values()) - 1"
    )
    assert runs(source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef f():\n    return 1",
        "def f():\n    from os import system\n    return 1",
        "def f():\n    __import__('os')\n    return 1",
        "def f():\n    open('x', 'w')\n    return 1",
        "def f():\n    eval('1')\n    return 1",
        "def f():\n    getattr(1, 'real')\n    return 1",
        "def f():\n    globals()\n    return 1",
        "def f():\n    ().__class__\n    return 1",
        "def f():\n    f.__globals__\n    return 1",
        "def f():\n    (i for i in []).gi_frame.f_back\n    return 1",
        "def f():\n    '{0.__class__}'.format(1)\n    return 1",
        "def f():\n    __builtins__\n    return 1",
        "def f(__x=1):\n    return 1",
        "def f(*__x):\n    return 1",
        "class A:\n    pass\ndef f():\n    return 1",
        "def f():\n    global __builtins__\n    return 1",
        "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError as __e:\n        pass\n    return 1",
        "@print\ndef f():\n    return 1",
        "async def f():\n    return 1",
        "def f():\n    return int.mro()",
        "def f(:\n    return 1",
        "\0",
        "(" * 5000,
        "def f():\n    return " + "-" * 100_000 + "1",
    ],
)
def test_forbidden_or_broken_code_does_not_pass(source: str) -> None:
    assert not runs(source)


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        ("1", 1, True),
        ("1.0", 1, True),
        ("1", 1.0, True),
        ("True", 1, False),
        ("1", True, False),
        ("(1, 2)", [1, 2], False),
        ("[1, 2]", (1, 2), False),
        ("[(1, 2)]", [[1, 2]], False),
        ("{True: 2}", {1: 2}, False),
        ("{2: 3, 1: 2}", {1: 2, 2: 3}, True),
        ("{1: [True]}", {1: [1]}, False),
        ("{1, 2}", {1, 2}, True),
        ("None", None, True),
        ("0", None, False),
        ("''", "", True),
        ("range(3)", [0, 1, 2], False),
    ],
)
def test_values_are_compared_with_their_types(got: str, expected: object, equal: bool) -> None:
    assert runs(f"def f():\n    return {got}", [((), expected)]) is equal


def test_printed_output_can_not_pass_for_a_verdict() -> None:
    assert run_functions(
        ["print('1' * 9)\ndef f():\n    return 2", "def f():\n    return 2"], ["f"] * 2, [ONE] * 2
    ) == [
        False,
        False,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [
        "def f():\n    while True:\n        pass",
        STUBBORN,
        "def f():\n    return 10**10**10",
        "def f():\n    return [0] * 10**10",
        "def f():\n    x = [1]\n    while True:\n        x += x",
        "def f():\n    return f()",
        "def f():\n    return 'a' * 10**9",
        "def f():\n    return sum(range(10**12))",
        "while True:\n    pass",
    ],
)
def test_a_bomb_fails_and_its_neighbours_still_run(bomb: str) -> None:
    good = "def f():\n    return 1"
    start = time.monotonic()
    assert run_functions([good, bomb, good], ["f"] * 3, [ONE] * 3, seconds=0.3) == [True, False, True]
    assert time.monotonic() - start < 20.0


def test_functions_do_not_see_each_other() -> None:
    sources = ["len = 3\nx = 1\ndef f():\n    return 1", "def f():\n    return x", "def f():\n    return len([0])"]
    assert run_functions(sources, ["f"] * 3, [ONE] * 3) == [True, False, True]


def test_text_beyond_ascii_arrives_unchanged() -> None:
    text = "\u00e9\u4e2d\U0001f600"
    assert runs(f"def f(x):\n    return x + {text!r}", [((text,), text + text)])


def test_the_three_sequences_must_match() -> None:
    with pytest.raises(ValueError, match="1 sources, 0 entry points"):
        run_functions(["x"], [], [])


def test_the_time_must_be_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        run_functions(["x"], ["f"], [ONE], seconds=0.0)
