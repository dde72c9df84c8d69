"""The reference checkpoint, loaded once for all commands."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import unmask
from unmask.cli.main import app

CHECKPOINT = str(Path(__file__).parents[1] / "data" / "reference" / "ckpt" / "llada")
Invoke = Callable[..., Result]


@pytest.fixture
def checkpoint(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that loads at once."""
    real = unmask.load

    def load(name: str, **options: object) -> unmask.Model:
        plain = name == CHECKPOINT and set(options.values()) <= {"auto"}
        return llada if plain else real(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("unmask.loading.load", load)
    return CHECKPOINT


@pytest.fixture
def invoke() -> Invoke:
    """Run the command in this process."""

    def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
