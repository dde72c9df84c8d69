"""`unmask demo` on a model that knows nothing."""

from dataclasses import replace

import pytest
from commands import invoke, refused

import unmask
from unmask.cli import demo
from unmask.evaluation.tasks import SUITE
from unmask.models.predictor import BackbonePredictor


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LENGTH", 8)


@pytest.fixture
def wide(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reference model spells prompts letter by letter, which takes more context than it was made for."""
    assert isinstance(llada.predictor, BackbonePredictor)
    facts = replace(llada.facts, max_length=4096)
    model = replace(llada, facts=facts, predictor=BackbonePredictor(llada.predictor.backbone, facts))
    monkeypatch.setattr("unmask.loading.load", lambda name, **_: model)
    return "wide"


def test_a_problem_of_every_task_then_a_table(wide: str) -> None:
    result = invoke("demo", "--model", wide, "--problems", 3)
    assert result.exit_code == 0, (result.output, result.exception)
    for number, task in enumerate(SUITE, start=1):
        assert f"{number}/{len(SUITE)} {task}\n" in result.stdout
    assert sum(line.startswith(("  right", "  wrong")) for line in result.stdout.splitlines()) == len(SUITE)
    head, _, table = result.stdout.rpartition("threshold 0.9\n")
    assert head.endswith("1 token/step  ")
    lines = table.splitlines()
    for number, words in enumerate([*(f"right answers, {task}" for task in SUITE), "right answers, all tasks"]):
        assert lines[number].startswith(words) and lines[number].count("/") == 2
    for words in ("accuracy", "forward passes (NFE)", "rows computed", "tokens per second"):
        assert f"\n{words}  " in table
    assert "x fewer passes, " in table
    assert max(map(len, lines)) <= 80


def test_watching_only(wide: str) -> None:
    result = invoke("demo", "--model", wide, "--problems", 0)
    assert result.exit_code == 0 and "1 token/step" not in result.stdout


def test_a_slow_machine_compares_fewer(wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PATIENCE", 0.0)
    result = invoke("demo", "--model", wide, "--problems", 2 * len(SUITE))
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"Slow machine: 1 of {2 * len(SUITE)} problems" in result.stdout


def test_a_missing_model_is_one_line() -> None:
    refused(invoke("demo", "--model", "/nowhere"), "no checkpoint")
