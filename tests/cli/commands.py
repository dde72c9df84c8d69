"""Runs the command in this process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from unmask.cli.main import app

CHECKPOINT = str(Path(__file__).parents[1] / "data" / "reference" / "ckpt" / "llada")


def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """What `unmask ARGUMENTS` prints and how it ends."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="unmask")


def refused(result: Result, *words: str) -> None:
    """Exit code 2, nothing on stdout, and on stderr exactly one line, which holds these words."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
