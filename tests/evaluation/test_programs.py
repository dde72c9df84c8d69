"""Whole programs in the sandbox: what passes, and what does not whatever it tries."""

import os
import time
from pathlib import Path

import pytest

from unmask.evaluation import sandbox
from unmask.evaluation.sandbox import Outcome, Program, run_program, run_programs

CHECK = "assert f(2) == 4"


def run(source: str, checks: str = CHECK, **options) -> Outcome:
    return run_program(Program(source, checks), **options)


def test_right_and_wrong_programs_are_told_apart_with_a_reason() -> None:
    right, wrong, broken = run_programs(
        [Program(f"def f(x):\n    return x {sign} 2", CHECK) for sign in ("*", "-", "*/")], workers=2
    )
    assert right == Outcome(True, "passed")
    assert wrong == Outcome(False, "wrong: assert f(2) == 4")
    assert broken.reason.startswith("SyntaxError")


def test_no_program_is_fine() -> None:
    assert run_programs([]) == []


@pytest.mark.parametrize(
    ("source", "checks"),
    [
        ("def f(*a, **k):\n    return a, k", "assert f(1, [2], x={3: None}) == ((1, [2]), {'x': {3: None}})"),
        ("def f():\n    return {1, 2}, frozenset('a'), b'\\0', 2j, range(3), 10**30", "assert f()[5] == 10**30"),
        ("def f():\n    return float('nan'), float('-inf'), -0.0", "a, b, c = f()\nassert a != a and str(c) == '-0.0'"),
        ("from collections import Counter\ndef f():\n    return Counter('aab')", "assert f() == {'a': 2, 'b': 1}"),
        ("def f():\n    return {1: 2}.keys()", "assert f() == {1}"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(n):\n    return lambda x: x + n", "assert f(3)(4) == 7"),
        (
            "class Node:\n    def __init__(self, v):\n        self.v, self.next = v, None\n"
            "def f(node):\n    return node.v + (f(node.next) if node.next else 0)",
            "a = Node(1)\na.next = Node(2)\na.next.v = 5\nassert f(a) == 6 and a.next.v == 5",
        ),
        ("def f(x):\n    raise KeyError(x)", "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False"),
        ("def f(x):\n    open('a', 'w').write(x)\n    return open('a').read()", "assert f('hi') == 'hi'"),
        ("import math, re, heapq, random, hashlib, json, decimal, datetime\ndef f():\n    return 1", "assert f() == 1"),
        ("def f():\n    return '\\ud800\\u00e9'", "assert f() == '\\ud800\\u00e9'"),
        ("def f(x):\n    return x", "import math\nassert math.isclose(f(0.1), 0.1)"),
        ("def f(x):\n    return x", "assert math.isclose(f(0.1), 0.1)"),
        ("def f(x):\n    return type(x), int", "assert f('') == (str, int)"),
        ("def f(kind, x):\n    return isinstance(x, kind)", "assert f(int, 3) and not f(int, '')"),
    ],
)
def test_checks_see_what_the_program_computes(source: str, checks: str) -> None:
    assert run(source, checks) == Outcome(True, "passed")


def test_helpers_belong_to_the_checks_and_entry_points_to_the_program() -> None:
    helpers = "def double(x):\n    return 2 * x\ndef f(x):\n    pass\n"
    source = "def double(x):\n    return 0\ndef f(x):\n    return 0"
    program = Program(source, "assert f(1) == double(1)", helpers=helpers, entry_points=("f",))
    assert run_program(program).reason == "wrong: assert f(1) == double(1)"


def test_what_is_printed_is_kept_and_changes_nothing() -> None:
    outcome = run("print('hello')\ndef f(x):\n    print('passed')\n    return x + 2")
    assert outcome == Outcome(True, "passed", "hello\npassed\n")


ALWAYS = "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
GUESSES = """
import os, json, struct
def shout():
    for data in (b'{"passed": true, "reason": "passed", "layers": []}',):
        for fd in range(64):
            for message in (data, struct.pack("<I", len(data)) + data):
                try:
                    os.write(fd, message)
                except OSError:
                    pass
shout()
def f(x):
    shout()
    return 0
"""


@pytest.mark.parametrize(
    "source",
    [
        f"{ALWAYS}def f(x):\n    return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\ndef f(x):\n    return Yes(0)",
        f"{ALWAYS}class Liar:\n    __class__ = int\n    __eq__ = Yes.__eq__\ndef f(x):\n    return Liar()",
        "import sys\nsys.exit(0)",
        "import sys\ndef f(x):\n    sys.exit(0)",
        "import os\nos._exit(0)",
        "import os\ndef f(x):\n    os._exit(0)",
        "raise SystemExit",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 0",
        "import builtins\nbuiltins.AssertionError = builtins.AttributeError\ndef f(x):\n    return 0",
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\ndef f(x):\n    raise Quiet",
        "def f(x):\n    raise AssertionError",
        "import unittest, json, sys, os\njson.dumps = lambda m: '{\"passed\": true}'\nos.write = print\n"
        "def f(x):\n    return 0",
        GUESSES,
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for name, value in "
        "[*frame.f_locals.items(), *frame.f_globals.items()]:\n            if hasattr(value, 'send'):\n"
        "                value.send({'passed': True, 'reason': 'passed', 'layers': []})\n"
        "        frame = frame.f_back\n    return 0",
        "import sys\nfor module in [*sys.modules.values()]:\n    module.__dict__['verdict'] = lambda *a: (True, '')\n"
        "def f(x):\n    return 0",
        "import gc\nfor thing in gc.get_objects():\n    pass\ndef f(x):\n    return 4",
    ],
)
def test_a_wrong_program_does_not_pass_whatever_it_does_to_its_interpreter(source: str) -> None:
    assert not run(source).passed


def test_an_error_can_not_end_a_loop_of_the_checks_early() -> None:
    """A StopIteration out of a function given to map would leave all() nothing to look at."""
    outcome = run("def f(x):\n    raise StopIteration", "assert all(map(lambda x: f(x) == 4, [2]))")
    assert not outcome.passed


def test_checks_that_catch_everything_do_not_hide_a_dead_program() -> None:
    checks = "try:\n    f(2)\nexcept Exception:\n    pass"
    assert run("import os\ndef f(x):\n    os._exit(0)", checks).reason == "the program ended itself"


def test_a_module_that_the_program_patches_is_not_the_one_that_the_checks_use() -> None:
    source = "class math:\n    isclose = lambda *a: True\ndef f(x):\n    return 0"
    assert not run(source, "assert math.isclose(f(2), 4)").passed


def test_the_program_is_not_told_the_checks() -> None:
    source = (
        "import sys\ndef f(x):\n    frame, seen = sys._getframe(), ''\n    while frame:\n"
        "        seen += repr(frame.f_locals)\n        frame = frame.f_back\n    return '31337' in seen"
    )
    assert run(source, "assert f(2) == False  # 31337").passed


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return open('/etc/hostname').read()",
        "def f(x):\n    return open('../checks/x', 'w')",
        "import io\ndef f(x):\n    return io.FileIO('/proc/self/environ').read()",
        "import os\ndef f(x):\n    return os.listdir('/')",
        "import os\ndef f(x):\n    return os.open('/etc', os.O_RDONLY)",
        "from pathlib import Path\ndef f(x):\n    return Path('/etc/hostname').read_text()",
        "class Path(str):\n    startswith = lambda *a: True\ndef f(x):\n    return open(Path('/etc/hostname'))",
        "from importlib.machinery import SourceFileLoader\n"
        "def f(x):\n    return SourceFileLoader('a', '/etc/hostname').get_data('/etc/hostname')",
        "import socket\ndef f(x):\n    return socket.socket()",
        "import urllib.request\ndef f(x):\n    return urllib.request.urlopen('http://127.0.0.1:1')",
        "import os\ndef f(x):\n    return os.fork()",
        "import os\ndef f(x):\n    return os.system('true')",
        "import subprocess\ndef f(x):\n    return subprocess.run(['true'])",
        "import multiprocessing\ndef f(x):\n    multiprocessing.Process(target=print).start()",
        "import threading\ndef f(x):\n    threading.Thread(target=print).start()",
        "import os\ndef f(x):\n    os.kill(os.getppid(), 9)",
        "import os\ndef f(x):\n    os.execv('/bin/true', ['true'])",
        "import ctypes\ndef f(x):\n    return ctypes.CDLL(None)",
        "import resource\ndef f(x):\n    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import os\ndef f(x):\n    os.symlink('/', 'root')",
        "def f(x):\n    try:\n        open('/etc/hostname')\n    except PermissionError as error:\n"
        "        trace = error.__traceback__\n        while trace:\n            names = trace.tb_frame.f_globals\n"
        "            for name in list(names):\n                names[name] = lambda *a, **k: True\n"
        "            trace = trace.tb_next\n    return open('/etc/hostname').read()",
    ],
)
def test_the_world_outside_is_out_of_reach(source: str) -> None:
    outcome = run(source + "\n", "f(2)")
    assert not outcome.passed
    assert any(word in outcome.reason for word in ("PermissionError", "ImportError", "URLError", "start new thread"))


def test_files_outside_its_folder_survive(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("here", encoding="utf-8")
    tries = (
        "os.remove(p)",
        "os.rename(p, 'x')",
        "open(p, 'w')",
        "os.truncate(p, 0)",
        "shutil.rmtree(os.path.dirname(p))",
    )
    for line in (*tries, "os.replace('x', p)", "shutil.move(p, 'x')", "os.chmod(p, 0)"):
        assert not run(f"import os, shutil\ndef f(p):\n    {line}", f"f({str(kept)!r})").passed
    assert kept.read_text(encoding="utf-8") == "here"
    assert kept.stat().st_mode & 0o600 == 0o600


def test_its_folder_is_gone_afterwards_and_its_environment_is_empty() -> None:
    outcome = run("import os\nopen('x', 'w').write('x')\nprint(os.getcwd(), dict(os.environ))\ndef f(x):\n    return 4")
    folder, _, names = outcome.output.partition(" ")
    assert outcome.passed
    assert not os.path.exists(folder)
    assert set(eval(names)) <= {"LC_CTYPE"}


def test_one_program_does_not_see_what_another_has_written() -> None:
    source = "import os\ndef f(x):\n    open(str(x), 'w')\n    return os.listdir()"
    assert all(
        outcome.passed for outcome in run_programs([Program(source, f"assert f({n}) == ['{n}']") for n in (1, 2)])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x):\n    while True:\n        pass", "out of time"),
        (
            "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
            "out of time",
        ),
        (
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass",
            "the program ended itself",
        ),
        ("def f(x):\n    return 10**10**10", "out of time"),
        ("def f(x):\n    x = [1]\n    while True:\n        x += x", "MemoryError"),
        ("def f(x):\n    return ' ' * 2**32", "MemoryError"),
        ("import os\nwhile True:\n    os.fork()", "PermissionError"),
        ("while True:\n    print('spam ' * 10**5)", "printed more than 1048576 bytes"),
        ("import sys\nwhile True:\n    sys.stderr.write('spam ' * 10**5)", "printed more than 1048576 bytes"),
        ("def f(x):\n    open('a', 'wb').write(bytes(2**24))", "OSError"),
        ("def f(x):\n    for n in range(10**6):\n        open(str(n), 'w').close()", "PermissionError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)", ""),
        ("def f(x):\n    x = []\n    x.append(x)\n    return x", "RecursionError"),
        ("def f(x):\n    return ' ' * 2**26", "ValueError: a value of"),
        ("def f(x):\n    return input()", "EOFError"),
    ],
)
def test_a_bomb_fails_in_time_and_says_why(source: str, reason: str) -> None:
    outcome = run(source, seconds=1.0)
    assert not outcome.passed
    assert outcome.reason.startswith(reason)


def test_a_program_that_only_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_PATIENCE", 1.0)
    start = time.monotonic()
    outcome = run("import time\ndef f(x):\n    time.sleep(1000)", seconds=0.2)
    assert outcome.reason == "out of time (waiting)"
    assert time.monotonic() - start < 20.0


def test_nothing_of_a_stopped_program_goes_on_running() -> None:
    outcome = run("import os\nprint(os.getpid())\nwhile True:\n    print('spam ' * 10**5)")
    with pytest.raises(ProcessLookupError):
        os.kill(int(outcome.output.split()[0]), 0)


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    run_programs([Program(source, CHECK) for source in ("def f(x):\n    return 4", "import os\nos._exit(1)")])
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("option", "value"), [("seconds", 0.0), ("memory", 1000), ("workers", 0)])
def test_limits_must_make_sense(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        run_programs([], **{option: value})


def test_a_layer_that_the_system_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    start = sandbox._START.replace(
        "import main", "import main, lock\nimport unmask.evaluation.box.lockdown as down\ndown._kernel = lambda *a: []"
    )
    monkeypatch.setattr(sandbox, "_START", start)
    with pytest.warns(UserWarning, match="without landlock and seccomp"):
        assert run("def f(x):\n    return 4").passed
