"""Runs functions that a model wrote, against test cases, in a process that can do nothing else.

The code is untrusted. A separate isolated Python process refuses everything but plain computation (no imports, no
private attributes, a short list of builtins) and has limits on time, memory, files and processes. It is a guard against
what small models write by accident and a fair one against malice; it is no container.
"""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("_sandbox_child.py")

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
