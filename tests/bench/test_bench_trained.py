"""The comparison of trained variants: every method on its own model, on the same problems, in one run."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import unmask
from conftest import REFERENCE
from unmask.bench import trained
from unmask.bench.contestants import Contestant, line_up, parse
from unmask.bench.report import cells, markdown, report
from unmask.bench.runner import bench
from unmask.bench.trained import D2F, DPARALLEL, TWIN, WINO_PLUS, StepCost, step_costs, with_step_costs
from unmask.cli.bench import bench as command
from unmask.errors import RequestError
from unmask.evaluation.tasks import Problem
from unmask.models.predictor import BackbonePredictor
from unmask.models.tiny import tiny_backbone, tiny_facts

app = typer.Typer()
app.command()(command)
ATTENTION = {D2F: "block_causal", DPARALLEL: "bidirectional", WINO_PLUS: "bidirectional", TWIN: "causal"}


def variant(name: str) -> unmask.Model:
    """The reference checkpoint with the attention that a variant has, under the variant's name."""
    loaded = unmask.load(REFERENCE / "ckpt" / "llada", device="cpu", attention=ATTENTION.get(name))  # type: ignore[arg-type]
    return replace(loaded, source=name)


def tiny(attention: str) -> unmask.Model:
    backbone = tiny_backbone(attention=attention)
    facts = tiny_facts(backbone, shift=int(attention == "causal"))
    text = unmask.load(REFERENCE / "ckpt" / "llada", device="cpu").text
    return unmask.Model(BackbonePredictor(backbone, facts), facts, text, attention, torch.device("cpu"))


@pytest.fixture(scope="module")
def models() -> dict[str, unmask.Model]:
    return {name: variant(name) for name in ("builtin", *ATTENTION)}


def problems(count: int = 2) -> list[Problem]:
    return [Problem("sums", f"{n}+1=", str(n + 1), str(n)) for n in range(count)]


def run(models: dict[str, unmask.Model], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Result:
    monkeypatch.setattr("unmask.cli.bench.load", lambda name, **options: models[name])
    return CliRunner().invoke(app, ["--suite", "builtin-training", "--length", "8", *map(str, arguments)])


def test_every_contestant_runs_on_the_model_it_names(models: dict[str, unmask.Model]) -> None:
    others = {name: models[name] for name in ATTENTION}
    rows = list(bench(models["builtin"], problems(), trained.CONTESTANTS, length=8, others=others))
    ran_on = {row.method: row.model for row in rows}
    assert ran_on == {"1 token/step": "builtin", "threshold 0.9": "builtin"} | {
        one.name: one.model or "builtin" for one in trained.CONTESTANTS
    }
    assert {row.problem for row in rows if row.method == "D2F"} == {row.problem for row in rows} == {0, 1}
    twin = next(row for row in rows if row.method == "autoregressive")
    assert twin.rows_computed == twin.prompt_tokens + twin.nfe - 1, "a row per token once the prompt is stored"


def test_all_the_methods_of_the_list_are_there_and_go_with_their_models(models: dict[str, unmask.Model]) -> None:
    facts = {name: models[name].facts for name in ATTENTION}
    lined = line_up(trained.CONTESTANTS, models["builtin"].facts, facts)
    assert len(lined) == 2 + len(trained.CONTESTANTS), "none is dropped as the same as another"
    assert {one.model for one in trained.CONTESTANTS} == {None, *ATTENTION}
    assert trained.PROBLEMS >= 500 and trained.TASKS == ("functions",)


def test_the_same_method_on_two_models_is_two_rows_with_ratios_to_the_base(models: dict[str, unmask.Model]) -> None:
    contestant = Contestant("threshold 0.9", "threshold(threshold=0.9)", model=WINO_PLUS)
    clock = itertools.count()
    rows = bench(
        models["builtin"],
        problems(1),
        [contestant],
        length=8,
        others={WINO_PLUS: models[WINO_PLUS]},
        clock=lambda: float(next(clock)),
    )
    whole = report(list(rows))
    assert [(one.method, one.model, one.baseline) for one in whole.summaries] == [
        ("1 token/step", "builtin", "A"),
        ("threshold 0.9", "builtin", "B"),
        ("threshold 0.9", WINO_PLUS, ""),
    ]
    last = whole.summaries[2]
    assert last.nfe_over["B"] == last.tokens_per_second_over["B"] == 1.0, "it is the same network here"
    assert [cells(one, whole)[0].strip() for one in whole.summaries] == [
        "A 1 token/step",
        "B threshold 0.9",
        f"threshold 0.9 on {WINO_PLUS}",
    ]
    assert "on NAME: a method that runs on a model of its own" in markdown(whole)


def test_a_method_may_name_its_model_on_the_command_line() -> None:
    assert parse("threshold(threshold=0.7) @ dual @ builtin:wino-plus") == Contestant(
        "threshold(threshold=0.7) @ dual", "threshold(threshold=0.7)", cache="dual", model="builtin:wino-plus"
    )
    with pytest.raises(RequestError, match="has two models"):
        parse("threshold @ builtin:d2f @ builtin:ar")


def test_steps_are_timed_over_the_slots_they_compute() -> None:
    """On a clock on which every reading is a second later, every step takes one."""
    clock = itertools.count()
    costs = step_costs(
        tiny("causal"), tiny("block_causal"), slots=(1, 16), cached=24, rounds=2, clock=lambda: float(next(clock))
    )
    assert costs == [StepCost(1, 24, 1.0, 1.0), StepCost(16, 24, 1.0, 1.0)]


def test_one_command_compares_them_and_draws_the_picture(
    models: dict[str, unmask.Model], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trained, "CACHED", 20)
    costs = [StepCost(1, 20, 0.002, 1.0), StepCost(32, 20, 0.005, 2.5), StepCost(64, 20, 0.008, 4.0)]
    monkeypatch.setattr(trained, "step_costs", lambda twin, blocks: costs if twin is models[TWIN] else [])
    picture = tmp_path / "variants.svg"
    result = run(models, monkeypatch, "--problems", "1", "--json", "--plot", picture)
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert {one["task"] for one in whole["summaries"]} == {"functions"}
    assert len(whole["summaries"]) == 2 + len(trained.CONTESTANTS)
    assert whole["facts"]["model"] == "builtin"
    assert [one["over_one"] for one in whole["facts"]["step_costs"]] == [1.0, 2.5, 4.0]
    assert any("over 32 slots 2.50 times and 64 slots 4.00 times as much" in note for note in whole["notes"])
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml") and "autoregressive on builtin:ar" in drawn


def test_step_costs_are_figures_of_the_report(models: dict[str, unmask.Model]) -> None:
    rows = list(bench(models["builtin"], problems(1), length=8))
    whole = with_step_costs(report(rows), [StepCost(1, 160, 0.001, 1.0), StepCost(32, 160, 0.002, 2.0)])
    assert whole.to_dict()["facts"]["step_costs"][1] == {"slots": 32, "cached": 160, "seconds": 0.002, "over_one": 2.0}
    assert "over one slot 1.00 ms, over 32 slots 2.00 times as much" in markdown(whole)
