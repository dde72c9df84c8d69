"""Runs code that a model wrote, against test cases, in processes that can do nothing else.

Two ways. `run_functions` is for small functions: an isolated Python process refuses everything but plain computation
(no imports, no private attributes, a short list of builtins) and checks what they return.

`run_programs` is for whole programs. One process holds the program, another runs the checks; plain values travel
between them, and only the second can give a verdict. So nothing the program does to its own interpreter (exit, patch
built-ins, walk frames or the heap, write to any descriptor, return objects that equal everything) makes it pass: it
can only answer calls with values, without being told which are expected. Both processes run isolated, in a session and
a temporary folder of their own, without environment, and lock themselves down (`box/lockdown.py`): limits on time,
memory, files and processes; no network; no files but the folder and, for reading, the standard library.

What it does not hold against: a bug in the kernel or in the interpreter that lets native code out of Landlock and
seccomp; without these two (macOS, or a Linux that has switched them off; a warning says so) a program that breaks out
of the interpreter's audit hook is held by limits alone, and they do not bind root. It can see whether a file exists,
its size and its dates, read what else is installed beside the standard library, and use up its share of the CPU. A
checked function that changes its arguments in place changes copies; threads are not available; on Windows there is no
sandbox. If the code is the work of an enemy rather than of a model, use a virtual machine.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import RequestError

_CHILD = Path(__file__).with_name("_sandbox_child.py")
_PACKAGE = Path(__file__).parent
# Imports one program of the box without the packages above it, which import all of unmask.
_START = (
    "import sys, types\n"
    "for name, path in (('unmask', sys.argv[1] + '/..'), ('unmask.evaluation', sys.argv[1])):\n"
    "    sys.modules[name] = types.ModuleType(name)\n"
    "    sys.modules[name].__path__ = [path]\n"
    "from unmask.evaluation.box.{program} import main\n"
    "main(*map(int, sys.argv[2:-3]), sys.argv[-3], float(sys.argv[-2]), int(sys.argv[-1]))\n"
)
_LAYERS = ("limits", "landlock", "seccomp", "audit")
MOST_OUTPUT = 2**20  # bytes; a program that prints more is stopped
KEPT_OUTPUT = 4000  # bytes

# Wall seconds without a verdict, on top of ten times the CPU seconds: a starting process on a busy machine needs some.
_PATIENCE = 20.0

Checks = Sequence[tuple[tuple[Any, ...], Any]]


def run_functions(
    sources: Sequence[str], entry_points: Sequence[str], checks: Sequence[Checks], *, seconds: float = 1.0
) -> list[bool]:
    """Whether each function passes all of its checks.

    Args:
        sources: Python code, each with one function to call.
        entry_points: names of these functions.
        checks: for each function, pairs of arguments and expected value, made of plain literals.
        seconds: CPU time for one function with all of its checks; more is a failure.

    Returns:
        One verdict a source. Code that is refused, raises, runs out of time or memory, or ends its process
        does not pass.

    Raises:
        ValueError: if the three sequences differ in length, or seconds is not positive.
    """
    if not len(sources) == len(entry_points) == len(checks):
        lengths = f"{len(sources)} sources, {len(entry_points)} entry points and {len(checks)} lists of checks"
        raise ValueError(f"run_functions needs one of each, got {lengths}")
    if seconds <= 0.0:
        raise ValueError(f"seconds must be greater than 0, got {seconds}")
    work = [(source, name, list(cases)) for source, name, cases in zip(sources, entry_points, checks, strict=True)]
    verdicts: list[bool] = []
    while len(verdicts) < len(work):
        verdicts += _run_child(work[len(verdicts) :], seconds)
        if len(verdicts) < len(work):
            verdicts.append(False)  # the first one without a verdict ended the process
    return verdicts


def _run_child(work: list[tuple[str, str, list[Any]]], seconds: float) -> list[bool]:
    """Verdicts up to the end of the work or of the process, whichever comes first."""
    reader, writer = os.pipe()
    command = [sys.executable, "-I", "-S", "-B", str(_CHILD), str(writer), str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            pass_fds=(writer,),
        )
        os.close(writer)
        try:
            assert child.stdin is not None, "the process was started with a pipe as input"
            try:
                child.stdin.write(ascii(work).encode("ascii"))
                child.stdin.close()
            except BrokenPipeError:
                return []
            return _listen(reader, len(work), 10.0 * seconds + _PATIENCE)
        finally:
            os.close(reader)
            child.kill()
            child.wait()


def _listen(reader: int, expected: int, patience: float) -> list[bool]:
    """Read one byte a verdict until all are there, the pipe closes or nothing comes for too long (seconds)."""
    verdicts: list[bool] = []
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while len(verdicts) < expected and selector.select(patience):
            received = os.read(reader, 4096)
            if not received:
                break
            verdicts += [byte == ord("1") for byte in received]
    return verdicts


@dataclass(frozen=True, slots=True)
class Program:
    """Code of a model with checks of its task.

    Args:
        source: the untrusted program.
        checks: Python that raises if the program is wrong; names that it does not define itself are the program's.
        helpers: Python that comes with the problem and that the checks may use.
        entry_points: names that are the program's even if the helpers define them.
    """

    source: str
    checks: str
    helpers: str = ""
    entry_points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    Args:
        passed: whether the checks ran to their end.
        reason: "passed", or why not, in one line.
        output: what the program printed, the first 4000 bytes.
    """

    passed: bool
    reason: str
    output: str = ""


def run_programs(
    programs: Sequence[Program], *, seconds: float = 5.0, memory: int = 2**29, workers: int = 1
) -> list[Outcome]:
    """Run each program and its checks.

    Args:
        programs: what to run.
        seconds: CPU time of one program with its checks. Waiting is limited, too: to ten times that, and 20 seconds.
        memory: address space of a process, bytes.
        workers: programs that run at a time.

    Returns:
        One outcome a program, in order.

    Raises:
        RequestError: on a system where code cannot be locked up.
        ValueError: if seconds, memory or workers is too small.
    """
    if seconds <= 0.0:
        raise ValueError(f"seconds must be greater than 0, got {seconds}")
    if memory < 2**26:
        raise ValueError(f"memory must be at least {2**26} bytes (64 MiB), got {memory}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if os.name != "posix":
        raise RequestError(f"code of a model runs on Linux and macOS only: this is {sys.platform}")
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda program: _run(program, seconds, memory), programs))
    missing = [layer for layer in _LAYERS if any(layer not in layers for _, layers in found if layers is not None)]
    if missing:
        warnings.warn(
            f"the sandbox runs without {' and '.join(missing)} on this system; run code of a model that you trust, or "
            "use a container",
            stacklevel=2,
        )
    return [outcome for outcome, _ in found]


def run_program(program: Program, *, seconds: float = 5.0, memory: int = 2**29) -> Outcome:
    """`run_programs` for one."""
    return run_programs([program], seconds=seconds, memory=memory)[0]


def _run(program: Program, seconds: float, memory: int) -> tuple[Outcome, list[str] | None]:
    """What became of a program, and the layers that held it; None if nobody could say."""
    ends: list[int] = []
    with tempfile.TemporaryDirectory() as place:
        room = Path(place).resolve()
        for name in ("program", "checks"):
            (room / name).mkdir()
        questions, answers, result, output = (_pipe(ends) for _ in range(4))
        started: list[subprocess.Popen[bytes]] = []
        try:
            theirs, its = (questions[0], answers[1]), (answers[0], questions[1], result[1])
            started.append(_start("candidate", theirs, room / "program", seconds, memory, output[1]))
            started.append(_start("checker", its, room / "checks", seconds + 1.0, memory, subprocess.DEVNULL))
            for end in (*theirs, *its, output[1]):
                os.close(end)
                ends.remove(end)
            job = {field: getattr(program, field) for field in Program.__slots__}
            assert started[1].stdin is not None, "the checker was started with a pipe as input"
            with suppress(BrokenPipeError):
                started[1].stdin.write(json.dumps(job).encode("ascii"))
                started[1].stdin.close()
            said, printed, stopped = _collect(result[0], output[0], 10.0 * seconds + _PATIENCE)
        finally:
            _stop(started)
            for end in ends:
                os.close(end)
        return _outcome(said, printed, stopped, started[0].returncode, started[1].returncode)


def _pipe(ends: list[int]) -> tuple[int, int]:
    pair = os.pipe()
    ends += pair
    return pair


def _start(
    program: str, descriptors: tuple[int, ...], folder: Path, seconds: float, memory: int, output: int
) -> subprocess.Popen[bytes]:
    words = [str(_PACKAGE), *map(str, descriptors), str(folder), str(seconds), str(memory)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _START.replace("{program}", program), *words],
        stdin=subprocess.PIPE if program == "checker" else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=folder,
        env={},
        pass_fds=descriptors,
        start_new_session=True,
    )


def _collect(result: int, output: int, patience: float) -> tuple[bytes, bytes, str]:
    """Read verdict and output until the verdict is there; gives both, and why reading stopped early, if it did."""
    said, printed, count = b"", b"", 0
    deadline = time.monotonic() + patience
    with selectors.DefaultSelector() as selector:
        selector.register(result, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while True:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return said, printed, "out of time (waiting)"
            for key, _ in ready:
                part = os.read(key.fd, 2**16)
                if key.fd == result and part:
                    said += part
                elif key.fd == result:
                    os.set_blocking(output, False)
                    with suppress(BlockingIOError):  # what was printed before the verdict is in the pipe by now
                        printed += os.read(output, KEPT_OUTPUT - len(printed)) if len(printed) < KEPT_OUTPUT else b""
                    return said, printed, ""
                elif not part:
                    selector.unregister(output)
                else:
                    count += len(part)
                    printed += part[: KEPT_OUTPUT - len(printed)]
                    if count > MOST_OUTPUT:
                        return b"", printed, f"printed more than {MOST_OUTPUT} bytes"


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    """End the processes and everything in their sessions."""
    for process in started:
        with suppress(ProcessLookupError, PermissionError):
            # one that has ended by itself is a zombie until the wait below, so its number is still its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


def _outcome(
    said: bytes, printed: bytes, stopped: str, program_code: int, checker_code: int
) -> tuple[Outcome, list[str] | None]:
    output = printed.decode("utf-8", "replace")
    if stopped:
        return Outcome(False, stopped, output), None
    try:
        verdict = json.loads(said)
    except ValueError:
        reason = "out of time" if checker_code == -signal.SIGXCPU else "the checks ended without a verdict"
        return Outcome(False, reason, output), None
    passed, reason, layers = verdict["passed"], verdict["reason"], verdict["layers"]
    if reason == "ended":
        reason = "out of time" if program_code == -signal.SIGXCPU else "the program ended itself"
    return Outcome(passed, reason, output), layers or None
