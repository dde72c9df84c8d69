"""The process that runs the checks. It never runs a line of the code under test.

The checks see the program's functions as stand-ins that send their arguments to the other process and receive plain
values. Names in the checks are looked up here first: in the checks, in the helpers that come with the problem, among
the built-ins and in the standard library. So neither `==` nor `assert` nor a patched module of the other process has a
say in the verdict.
"""

import ast
import builtins
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from unmask.evaluation.box.lockdown import lock
from unmask.evaluation.box.wire import Closed, Wire, decode, encode

# An AssertionError is for the checks to raise, and a StopIteration would end a loop of theirs early.
_NOT_RAISED = (AssertionError, StopIteration, StopAsyncIteration)


class Ended(BaseException):
    """The program's process has gone. No Exception, because checks may catch those."""


class Program:
    """The other end of the wire."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.gone = wire, ""

    def ask(self, do: str, **rest: Any) -> Any:
        """Let the program do something; gives its value or raises what it raised."""
        try:
            self.wire.send({"do": do, **rest})
            reply = self.wire.receive()
            if not isinstance(reply, dict):
                raise Closed("no reply")
            if "raised" not in reply:
                return decode(reply.get("value"), self._found)
            known, name, said = reply["raised"]
        except Closed as error:
            self.gone = str(error)
            raise Ended(self.gone) from None
        except (ValueError, TypeError):
            self.gone = "no reply"
            raise Ended(self.gone) from None
        raise _raised(str(known), f"{name}: {said}".rstrip(": "))

    def on(self, do: str, target: list[Any], *given: Any, **named: Any) -> Any:
        """`ask` about something that the program holds."""
        values = [encode(one, _sent) for one in given]
        return self.ask(do, on=target, given=values, named={key: encode(one, _sent) for key, one in named.items()})

    def _found(self, data: list[Any]) -> "Held":
        if data[0] != "ref" or not isinstance(data[1], int):
            raise Closed("an unknown reference")
        return Held(self, ["ref", data[1]])


def _raised(kind: str, said: str) -> Exception:
    """The built-in error that the program has raised, or the one that its error derives from."""
    found = getattr(builtins, kind, None)
    error: Any = RuntimeError(said)
    if isinstance(found, type) and issubclass(found, Exception) and found not in _NOT_RAISED:
        with suppress(TypeError):  # some want more than a text
            error = found(said)
    error.from_program = said
    return error  # type: ignore[no-any-return]


class Held:
    """Stands for something that only the program's process has. Equal to itself alone."""

    __slots__ = ("_program", "_target")

    def __init__(self, program: Program, target: list[Any]) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_target", target)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._program.on("call", self._target, *given, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.on("get", self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.on("set", self._target, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._program.on("item", self._target, key)

    def __len__(self) -> int:
        length = self._program.on("length", self._target)
        if type(length) is not int:
            raise TypeError("a length that is no number")
        return length

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        items = self._program.on("items", self._target)
        if type(items) is not list:
            raise TypeError("no list of items")
        return iter(items)


def _sent(value: Any) -> list[Any]:
    if type(value) is Held:
        target: list[Any] = object.__getattribute__(value, "_target")
        return target
    raise TypeError(f"the checks pass a {type(value).__name__}, which cannot be sent to the program")


def _namespace(job: dict[str, Any], program: Program) -> dict[str, Any]:
    """Everything the checks can see."""
    names: dict[str, Any] = {"__name__": "checks"}
    exec(compile(job["helpers"], "helpers", "exec"), names)
    tree = ast.parse(job["checks"])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for name in used:
        if name in job["entry_points"]:
            names[name] = Held(program, ["name", name])
        elif name in names or name in made or hasattr(builtins, name):
            continue
        elif name in sys.stdlib_module_names:
            names[name] = importlib.import_module(name)
        else:
            names[name] = Held(program, ["name", name])
    return names


def _said(error: BaseException, checks: str) -> str:
    """Why the checks did not run to their end, in one line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "checks"]
    line = checks.splitlines()[lines[-1] - 1].strip() if lines and lines[-1] else ""
    if isinstance(error, AssertionError):
        return f"wrong: {line}"
    from_program = getattr(error, "from_program", None)
    return f"{from_program or f'{type(error).__name__}: {error}'} at {line}"


def verdict(job: dict[str, Any], program: Program) -> tuple[bool, str]:
    """Run the program, then the checks; gives whether they ran to their end, and why not."""
    try:
        try:
            program.ask("run", source=job["source"])
        except Exception as error:
            return False, str(getattr(error, "from_program", error))
        try:
            exec(compile(job["checks"], "checks", "exec"), _namespace(job, program))
        except Exception as error:
            return False, _said(error, job["checks"])
    except Ended:
        pass
    if program.gone:
        return False, "ended"
    return True, "passed"


def main(reader: int, writer: int, result: int, folder: str, seconds: float, memory: int) -> None:
    """Read a job from standard input and write a verdict to the pipe `result`."""
    job = json.loads(sys.stdin.read())
    program = Program(Wire(reader, writer))
    lock(folder, seconds=seconds, memory=memory)
    try:
        layers = program.wire.receive()
    except Closed:
        layers = []
    passed, reason = verdict(job, program)
    data = json.dumps({"passed": passed, "reason": reason[:1000], "layers": layers}).encode("ascii")
    os.write(result, data)
