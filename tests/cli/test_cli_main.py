"""The command as a whole: help, lazy parts, and real processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import CHECKPOINT, invoke, refused

import unmask

PACKAGE = Path(unmask.__file__).parent


def test_help_names_every_command() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        for command in ("generate", "demo", "show", "list", "inspect", "bench", "train"):
            assert f" {command} " in result.stdout


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"unmask {unmask.__version__}\n")


def test_an_unknown_command_is_one_line() -> None:
    refused(invoke("generat"), "generat", "unmask --help")


def test_help_needs_no_torch() -> None:
    """The package itself is left out: what `import unmask` imports is not the command's doing."""
    code = f"""
import sys, types
package = types.ModuleType("unmask")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["unmask"] = package
from unmask.cli.main import app
calls = ["--help"], ["generate", "--help"], ["generate", "x", "--length", "0"], ["show", "--help"], ["list", "nothing"]
for arguments in calls:
    try:
        app(arguments)
    except SystemExit:
        pass
assert not {{"torch", "transformers", "tokenizers", "numpy"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["bench", "train"])
def test_a_broken_command_harms_no_other(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setitem(sys.modules, f"unmask.cli.{command}", None)
    assert invoke("--help").exit_code == 0
    assert invoke("list", "caches").exit_code == 0
    assert isinstance(invoke(command).exception, ModuleNotFoundError)


def test_commands_elsewhere_get_their_whole_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    inner = typer.Typer()

    @inner.callback()
    def root() -> None: ...

    @inner.command()
    def sft(data: list[str], out: str = "", resume: bool = False) -> None:
        seen.append((data, out, resume))
        raise typer.Exit(7)

    monkeypatch.setattr("unmask.cli.train.train_app", inner)
    result = invoke("train", "sft", "a", "--out", "x", "b", "--resume")
    assert (result.exit_code, seen) == (7, [(["a", "b"], "x", True)])
    assert "unmask train sft" in invoke("train", "sft", "--help").stdout
    refused(invoke("train", "sft", "--nope"), "--nope")


def test_bench_is_mounted() -> None:
    assert "--decoder" in invoke("bench", "--help").stdout
    refused(invoke("bench", "--tasks", "chess"), "no task")


@pytest.mark.slow
def test_a_process_keeps_stdout_pure(tmp_path: Path) -> None:
    """A warning, a watch and a summary all at once, in a real process."""
    command = [sys.executable, "-m", "unmask", "generate", "-", "--model", CHECKPOINT, "--length", "600", "--json"]
    command += ["--watch", "--decoder", "low-confidence(steps=19)", "--trace", str(tmp_path / "trace")]
    done = subprocess.run(command, input="sort", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    warned, *steps = done.stderr.splitlines()
    assert warned.startswith("warning: prompt 0 and its answer take") and "512" in warned
    assert len(steps) == found["nfe"] + 1
    assert (tmp_path / "trace").is_file()


@pytest.mark.slow
def test_a_process_ends_with_2_and_one_line() -> None:
    command = [sys.executable, "-m", "unmask", "generate", "x", "--decoder", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('error: no decoder named "nonsense"') and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1 and errors == ""
