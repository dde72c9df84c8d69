"""The program that the sandbox starts: checks and runs functions, and writes one byte a function to a private pipe.

It runs as a script in isolated mode and imports the standard library only. The code it runs is untrusted: it can
reach no module, no file and no attribute that starts with an underscore, because a syntax tree with anything outside
the lists below is refused.
"""

import ast
import copy
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

MEMORY_BYTES = 512 * 2**20

_NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For,
    ast.While, ast.If, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Delete, ast.Raise, ast.Try, ast.ExceptHandler,
    ast.Assert, ast.Nonlocal, ast.Global, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp,
    ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Yield,
    ast.YieldFrom, ast.Compare, ast.Call, ast.keyword, ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute,
    ast.Subscript, ast.Starred, ast.Name, ast.List, ast.Tuple, ast.Slice, ast.expr_context, ast.boolop, ast.operator,
    ast.unaryop, ast.cmpop,
)  # fmt: skip
# str.format reads attributes of its arguments by name, which the check of the syntax tree cannot see.
_ATTRIBUTES = {
    name for kind in (str, list, dict, set, tuple, int, float) for name in dir(kind) if not name.startswith("_")
} - {"format", "format_map"}
_BUILTINS = (
    abs, all, any, bool, chr, dict, divmod, enumerate, filter, float, frozenset, int, isinstance, iter, len, list, map,
    max, min, next, ord, pow, range, repr, reversed, round, set, sorted, str, sum, tuple, zip,
    Exception, ArithmeticError, IndexError, KeyError, StopIteration, TypeError, ValueError, ZeroDivisionError,
)  # fmt: skip


class Refused(Exception):
    """Code that uses something outside the lists."""


class TimeUp(BaseException):
    """A function that used up its time."""


def _discard(*values: Any, **options: Any) -> None:
    """Stands in for print."""


def check(tree: ast.Module) -> None:
    """Refuse a tree that uses anything outside the lists.

    Raises:
        Refused: if it does.
    """
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise Refused(type(node).__name__)
        if isinstance(node, ast.Attribute) and node.attr not in _ATTRIBUTES:
            raise Refused(node.attr)
        names = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        if isinstance(node, ast.Global | ast.Nonlocal):
            names += node.names
        # Only the value of a constant may contain such text; everywhere else a string is an identifier.
        if not isinstance(node, ast.Constant) and any("__" in name for name in names):
            raise Refused("a name with two underscores")


def same(got: Any, expected: Any) -> bool:
    """Whether two values are equal and of the same type all the way down; an int may equal a float."""
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return type(got) in (int, float) and bool(got == expected)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same, got, expected))
    if isinstance(expected, dict):
        # The keys are compared with their types: True and 1 are one key to a dict.
        return {(type(key), key) for key in got} == {(type(key), key) for key in expected} and all(
            same(got[key], value) for key, value in expected.items()
        )
    return bool(got == expected)


def passes(source: str, entry_point: str, checks: Any) -> bool:
    """Whether the function in the source returns what every check expects."""
    tree = ast.parse(source)
    check(tree)
    builtins: dict[str, Any] = {part.__name__: part for part in _BUILTINS}
    namespace: dict[str, Any] = {"__builtins__": builtins | {"print": _discard}, "__name__": "answer"}
    exec(compile(tree, "answer", "exec"), namespace)
    function = namespace[entry_point]
    return all(same(function(*copy.deepcopy(arguments)), expected) for arguments, expected in checks)


def _limits() -> Callable[[float], None]:
    """Limit memory, files and processes for good; returns what moves the limit of CPU time ahead."""
    try:
        import resource
    except ImportError:  # not on Windows, where only the parent's watch remains
        return lambda seconds: None

    for name, limit in (("AS", MEMORY_BYTES), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        except (AttributeError, ValueError, OSError):
            continue  # a system that lacks this limit keeps the others

    def allow(seconds: float) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        spent = usage.ru_utime + usage.ru_stime
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent + seconds) + 2, hard))

    return allow


def main() -> None:
    """Read the functions from standard input and write "1" or "0" for each to the pipe."""
    pipe, seconds = int(sys.argv[1]), float(sys.argv[2])
    work = ast.literal_eval(sys.stdin.read())
    allow = _limits()
    running = False

    def stop(number: int, frame: FrameType | None) -> None:
        if running:
            raise TimeUp

    signal.signal(signal.SIGPROF, stop)
    for source, entry_point, checks in work:
        # CPU time, not wall time: the code cannot sleep or wait, and a busy machine must not fail it. The alarm
        # repeats, in case the code catches the first one; inside one long C call no alarm is heard, and the system ends
        # this process.
        allow(seconds)
        verdict = False
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
            running = True
            verdict = passes(source, entry_point, checks)
        except (Exception, TimeUp):
            verdict = False
        finally:
            running = False
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        os.write(pipe, b"1" if verdict else b"0")


if __name__ == "__main__":
    main()
