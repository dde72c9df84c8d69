"""The picture of a report."""

import sys
from pathlib import Path

import pytest

from bench.test_bench_report import TWO_PROBLEMS
from unmask.bench.plot import check_plot, draw
from unmask.bench.report import report
from unmask.errors import RequestError


def test_both_panels_and_every_method_have_their_names(tmp_path: Path) -> None:
    draw(report(TWO_PROBLEMS), tmp_path / "two.svg")
    drawn = (tmp_path / "two.svg").read_text(encoding="utf-8")
    for text in ("tokens per forward pass", "tokens per second", "% right", "words, 2 problems"):
        assert f"<!-- {text} -->" in drawn
    for method in ("1 token/step", "threshold 0.9", "mine"):
        assert drawn.count(f"<!-- {method} -->") == 1, "the legend"


def test_a_picture_of_dots_is_written_as_well(tmp_path: Path) -> None:
    draw(report(TWO_PROBLEMS), tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


def test_other_kinds_of_files_are_refused_before_the_run() -> None:
    with pytest.raises(RequestError, match=r'a file ending in .svg, .png, .pdf: got "two.txt"'):
        check_plot(Path("two.txt"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RequestError, match=r'pip install "unmask\[viz\]"'):
        check_plot(Path("two.svg"))
