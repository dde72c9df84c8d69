"""The command, on the reference checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import unmask
from unmask.bench import runner
from unmask.cli.bench import bench
from unmask.errors import RequestError, UnmaskError

CHECKPOINT = str(Path(__file__).parents[1] / "data" / "reference" / "ckpt" / "llada")
app = typer.Typer()
app.command()(bench)


@pytest.fixture(autouse=True)
def loaded_once(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, *, device: str, dtype: str, attention: str | None, adapter: str | None) -> unmask.Model:
        assert (name, device, dtype, attention, adapter) == (CHECKPOINT, "auto", "auto", None, None)
        return llada

    monkeypatch.setattr("unmask.cli.bench.load", load)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "sums.jsonl"
    records = [{"prompt": f"{n}+1=", "answer": str(n + 1), "task": "sums"} for n in range(3)]
    file.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["--model", CHECKPOINT, "--length", "4", *map(str, arguments)])


def test_the_table_has_both_baselines_and_the_methods_asked_for(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(
        "--data", data, "--problems", "2", "--decoder", "factor @ dual", "--decoder", "threshold", "--repeats", "2"
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "may differ at 8B" in " ".join(result.stdout.split())
    title = [line.strip() for line in lines].index("sums, 2 problems")
    methods = [line[:15].rstrip() for line in lines[title + 2 : title + 6]]
    assert methods == ["A 1 token/step", "B threshold 0.9", "  factor @ dual", ""]
    assert max(map(len, lines)) <= 80
    assert result.stderr == ""


def test_drift_is_a_column_on_request(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    result = run("--data", data, "--problems", "1", "--decoder", "threshold @ dual", "--drift", "--json", "--out", out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [summary["drift"] for summary in json.loads(result.stdout)["summaries"]] == [row["drift"] for row in rows]
    assert [type(row["drift"]) for row in rows] == [float] * 3


def test_json_and_rows_agree(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    result = run("--data", data, "--problems", "2", "--grid", "table", "--json", "--out", out, "--seed", "5")
    whole = json.loads(result.stdout)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(whole["summaries"]) == 6  # 4 and 8 tokens per step are the same plan for 4 slots
    assert len(rows) == 2 * 6
    for summary in whole["summaries"]:
        mine = [row for row in rows if row["method"] == summary["method"]]
        assert summary["nfe"] == sum(row["nfe"] for row in mine) / 2
        assert [row["seed"] for row in mine] == [5, 6]
    assert result.stderr == ""


def test_an_interrupted_run_keeps_its_rows_and_shows_them(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = runner.bench

    def stopped(*arguments: Any, **options: Any) -> Iterator[runner.Row]:
        rows = original(*arguments, **options)
        for _ in range(3):
            yield next(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "bench", stopped)
    out = tmp_path / "rows.jsonl"
    result = run("--data", data, "--out", out)
    assert result.exit_code == 130
    assert len(out.read_text(encoding="utf-8").splitlines()) == 3
    assert "sums, 1 problem" in result.stdout
    assert "interrupted after 3 of 6 answers" in result.stderr


def test_the_builtin_suite_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("--tasks", "sudoku", "--problems", "1", "--markdown")
    assert result.exit_code == 0, result.output
    assert "**sudoku, 1 problem**" in result.stdout and "| A 1 token/step | 0.0 |" in result.stdout


def test_threads_are_set(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    run("--data", data, "--problems", "1", "--threads", "2")
    assert asked == [2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--json", "--markdown"], "--json or --markdown"),
        (["--suite", "builtin", "--data", "x"], "--suite or --data"),
        (["--suite", "gsm"], 'no suite named "gsm"'),
        (["--data", "absent.jsonl"], "no such file: absent.jsonl"),
        (["--tasks", "word"], 'no task named "word"'),
        (["--grid", "all"], 'no grid named "all"'),
        (["--decoder", "factor @ duel"], 'Did you mean "dual"'),
        (["--cache", "dual"], "the baselines keep theirs"),
        (["--out", "absent/rows.jsonl", "--tasks", "sudoku", "--problems", "1"], "cannot write"),
        (["--decoder", "thresold"], 'Did you mean "threshold"'),
        (["--decoder", "factor(factr=1.0)"], 'Did you mean "factor"'),
        (["--decoder", "factor", "--schedule", "hole"], 'Did you mean "whole"'),
    ],
)
def test_a_mistake_is_an_unmask_error(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UnmaskError) and complaint in str(result.exception)
    assert result.stdout == ""


def test_a_schedule_for_all_spares_the_baselines(data: Path) -> None:
    result = run("--data", data, "--problems", "1", "--json", "--decoder", "factor", "--schedule", "whole")
    schedules = [summary["schedule"] for summary in json.loads(result.stdout)["summaries"]]
    assert schedules == ["sequential", "sequential", "whole"]
    assert not isinstance(result.exception, RequestError)
