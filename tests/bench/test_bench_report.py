"""The arithmetic of the table, by hand."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unmask.bench.contestants import Baseline
from unmask.bench.report import ALL, RowFile, markdown, ratio, report, short, tables, wilson
from unmask.bench.runner import Row
from unmask.errors import RequestError

METHODS: dict[str, Baseline] = {"1 token/step": "A", "threshold 0.9": "B", "mine": ""}


def row(method: str, problem: int = 0, **fields: Any) -> Row:
    useful, nfe = fields.pop("useful", 8), fields.pop("nfe", 10)
    seconds, ended = fields.pop("seconds", 1.0), fields.pop("ended", True)
    values: dict[str, Any] = {
        "started": "2026-01-01T00:00:00+00:00",
        "task": "words",
        "problem": problem,
        "key": str(problem),
        "prompt_hash": "0",
        "prompt_tokens": 20,
        "template": "chat",
        "few_shot": 0,
        "grader": "words",
        "method": method,
        "baseline": METHODS[method],
        "repeat": 0,
        "batch": problem,
        "batch_rows": 1,
        "answer": "1\n2",
        "correct": True,
        "useful_tokens": useful,
        "decided_tokens": useful + ended,
        "nfe": nfe,
        "tpf": (useful + ended) / nfe,
        "rows_computed": 52 * nfe,
        "seconds": seconds,
        "batch_seconds": seconds,
        "tokens_per_second": useful / seconds,
        "finish_reason": "stop" if ended else "length",
        "changed": False,
        "drift": None,
        "decoder": method,
        "schedule": "sequential",
        "cache": "none",
        "sampling": "sampling",
        "stop": "stop",
        "guidance": 0.0,
        "length": 32,
        "batch_size": 1,
        "seed": 0,
        "config_hash": "0",
        "model": "some/model",
        "weights_hash": None,
        "parameters": 2_840_000,
        "dtype": "float32",
        "device": "cpu",
        "hardware": "some processor",
        "threads": 1,
        "versions": {},
    }
    return Row(**(values | fields))


# A: 4 + 8 useful tokens in 5 + 9 passes and 2 + 4 seconds; B: the same answers in 2 + 2 passes and 1 + 1 seconds.
TWO_PROBLEMS = [
    row("1 token/step", 0, useful=4, nfe=5, seconds=2.0),
    row("threshold 0.9", 0, useful=4, nfe=2, seconds=1.0),
    row("mine", 0, useful=4, nfe=1, seconds=0.25, correct=False),
    row("threshold 0.9", 1, useful=8, nfe=2, seconds=1.0),
    row("mine", 1, useful=8, nfe=1, seconds=0.25, ended=False),
    row("1 token/step", 1, useful=8, nfe=9, seconds=4.0),
]


def test_sums_are_divided_by_sums_and_ratios_by_both_baselines() -> None:
    a, b, mine = report(TWO_PROBLEMS).summaries
    assert [one.method for one in (a, b, mine)] == list(METHODS)
    assert (a.problems, a.correct, a.accuracy) == (2, 2, 1.0)
    assert (mine.problems, mine.correct, mine.accuracy, mine.ended) == (2, 1, 0.5, 0.5)
    assert (a.nfe, b.nfe, mine.nfe) == (7.0, 2.0, 1.0)
    assert (a.tpf, b.tpf, mine.tpf) == (14 / 14, 14 / 4, 13 / 2)
    assert (a.rows_computed, a.useful_tokens, a.seconds) == (52 * 7.0, 6.0, 3.0)
    assert (a.tokens_per_second, b.tokens_per_second, mine.tokens_per_second) == (2.0, 6.0, 24.0)
    assert mine.tokens_per_second_over == {"A": 12.0, "B": 4.0}
    assert mine.nfe_over == {"A": 1 / 7, "B": 0.5}
    assert a.tokens_per_second_over == {"A": 1.0, "B": 1 / 3}


def test_speed_is_the_median_over_whole_repeats() -> None:
    repeats = [
        row("mine", problem, repeat=repeat, useful=10, seconds=seconds)
        for repeat, seconds in enumerate((1.0, 5.0, 2.0))
        for problem in (0, 1)
    ]
    broken_off = [row("mine", 0, repeat=3, useful=10, seconds=100.0)]
    summary = report(repeats + broken_off).summaries[0]
    assert summary.tokens_per_second_by_repeat == [10.0, 2.0, 5.0]
    assert summary.tokens_per_second == 5.0
    assert (summary.problems, summary.nfe) == (2, 10.0)


def test_a_batch_counts_its_seconds_once() -> None:
    shared = {"batch": 0, "batch_rows": 2, "batch_size": 2, "seconds": 0.5, "batch_seconds": 1.0}
    whole = report([row("mine", 0, useful=4, **shared), row("mine", 1, useful=6, **shared)])
    assert whole.summaries[0].tokens_per_second == 10.0
    assert any("Batches of up to 2" in note for note in whole.notes)


def test_a_problem_that_was_broken_off_is_left_out() -> None:
    whole = report(TWO_PROBLEMS[:5])
    assert [one.problems for one in whole.summaries] == [1, 1, 1]
    assert [one.method for one in whole.summaries] == list(METHODS)


def test_without_a_figure_of_a_baseline_there_is_no_ratio() -> None:
    whole = report([row("1 token/step", useful=0), row("mine", useful=8)])
    mine = whole.summaries[1]
    assert mine.tokens_per_second_over == {"A": None} and mine.nfe_over == {"A": 1.0}
    with pytest.raises(RequestError, match="no rows"):
        report([])


def test_several_tasks_are_shown_one_by_one_and_then_together() -> None:
    rows = [*TWO_PROBLEMS, row("mine", 2, task="sudoku", nfe=4), row("threshold 0.9", 2, task="sudoku")]
    whole = report([*rows, row("1 token/step", 2, task="sudoku", correct=False)])
    assert whole.tasks == ["words", "sudoku", ALL]
    assert [one.problems for one in whole.of(ALL)] == [3, 3, 3]
    assert [one.nfe for one in whole.of(ALL)] == [8.0, 14 / 3, 2.0]
    assert [one.method for one in whole.of("sudoku")] == list(METHODS)


@pytest.mark.parametrize(
    ("correct", "problems", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 100, 0.7222, 0.8749)],
)
def test_the_wilson_interval_has_textbook_values(correct: int, problems: int, low: float, high: float) -> None:
    assert wilson(correct, problems) == pytest.approx((low, high), abs=1e-4)


def test_the_notes_say_what_matters() -> None:
    small = " ".join(report(TWO_PROBLEMS).notes)
    assert "one repeat" in small and "tokens/step" not in small
    assert "A model of this size (2.8 M parameters) is no LLaDA: the ranking of methods may differ at 8B." in small
    assert "no LLaDA" not in " ".join(report([row("mine", parameters=8_000_000_000)]).notes)
    changed = report([row("mine"), row("mine", repeat=1, changed=True)])
    assert changed.summaries[0].changed == 1
    assert any(note.startswith("1 answers of later repeats differ") for note in changed.notes)
    assert any("median of 2 repeats" in note for note in changed.notes)


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0.0, 0.617, 9.999, 58.83, 99.96, 1234.4, 12345.0, 4.5e6)] == [
        *("0.00", "0.62", "10.0", "58.8", "100", "1234", "12.3k", "4.50M")
    ]
    assert [ratio(value) for value in (None, 0.148, 12.34, 123.4)] == ["-", "0.15", "12.3", "123"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_marks_the_baselines(width: int) -> None:
    wide = [row(method, nfe=1234, useful=9999, rows_computed=9_990_000) for method in METHODS]
    console = Console(width=width, record=True, file=StringIO())
    for table in tables(report(wide)):
        console.print(table)
    lines = console.export_text().splitlines()
    assert lines[0].strip() == "words, 1 problem"
    assert " ".join(lines[1].split()) == "method % right (95 %) NFE /A /B TPF rows tok/s /A /B"
    assert [line.split()[0] for line in lines[2:5]] == ["A", "B", "mine"]
    assert len(lines) == 5 and all("9.99M" in line and "9999" in line for line in lines[2:])


def test_drift_is_the_mean_of_the_first_repeat_and_has_a_column_only_if_it_was_measured() -> None:
    measured = [
        *(row(method, 0, drift=drift) for method, drift in zip(METHODS, (0.0, 0.0, 0.25), strict=True)),
        *(row(method, 1, drift=drift) for method, drift in zip(METHODS, (0.0, 0.0, 0.05), strict=True)),
        *(row(method, 0, drift=0.9, repeat=1) for method in METHODS),
    ]
    whole = report(measured)
    assert [one.drift for one in whole.summaries] == pytest.approx([0.0, 0.0, 0.15])
    text = markdown(whole)
    assert "| /B | drift |\n" in text and "| 1.00 | 15.0 |\n" in text and "\n* drift: committed tokens" in text
    assert [one.drift for one in report(TWO_PROBLEMS).summaries] == [None] * 3
    assert "drift" not in markdown(report(TWO_PROBLEMS))


@pytest.mark.parametrize("width", [86, 120])
def test_the_table_with_drift_takes_six_columns_more(width: int) -> None:
    console = Console(width=width, record=True, file=StringIO())
    wide = [row(method, nfe=1234, useful=9999, rows_computed=9_990_000, drift=0.125) for method in METHODS]
    for table in tables(report(wide)):
        console.print(table)
    lines = console.export_text().splitlines()
    assert lines[1].split()[-1] == "drift" and all(line.split()[-1] == "12.5" for line in lines[2:5])
    assert len(lines) == 5


def test_the_table_as_markdown() -> None:
    text = markdown(report(TWO_PROBLEMS))
    assert "| A 1 token/step | 100.0 | 34-100 | 7.0 | 1.00 | 3.50 | 1.00 | 364 | 2.00 | 1.00 | 0.33 |\n" in text
    assert "| mine | 50.0 | 9-91 | 1.0 | 0.14 | 0.50 | 6.50 | 52.0 | 24.0 | 12.0 | 4.00 |\n" in text
    assert text.startswith("some/model on cpu, float32, 1 thread, length 32, batch size 1.\n\n**words, 2 problems**")
    assert "\n* A model of this size" in text


def test_the_report_is_json() -> None:
    whole = report(TWO_PROBLEMS).to_dict()
    assert json.loads(json.dumps(whole)) == whole
    assert whole["facts"]["repeats"] == 1 and whole["summaries"][2]["nfe_over"]["B"] == 0.5


def test_rows_are_on_disk_as_soon_as_they_are_added_and_older_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"older": 1}\n{"cut of', encoding="utf-8")
    with RowFile(file) as rows:
        rows.add(TWO_PROBLEMS[0])
        lines = file.read_text(encoding="utf-8").splitlines()
        assert lines[:2] == ['{"older": 1}', '{"cut of']
        assert json.loads(lines[2]) == TWO_PROBLEMS[0].to_dict()
        rows.add(TWO_PROBLEMS[1])
    assert len(file.read_text(encoding="utf-8").splitlines()) == 4
    with RowFile(file) as rows:
        rows.add(TWO_PROBLEMS[2])
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot write rows to .*absent"), RowFile(tmp_path / "absent" / "x"):
        pass


def test_an_interval_holds_its_share_whatever_the_rounding() -> None:
    for problems in range(1, 100):
        for correct in (0, problems // 2, problems):
            low, high = wilson(correct, problems)
            assert 0.0 <= low <= correct / problems <= high <= 1.0
