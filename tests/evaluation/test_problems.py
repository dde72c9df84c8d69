"""Problems from files: what is read, what is refused and where the message points."""

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import RequestError, UnknownNameError
from unmask.evaluation.problems import EXACT, file_problems, grade, grader, suite_problems
from unmask.evaluation.tasks import SUITE, is_held_out

SUDOKUS = Path(__file__).parents[1] / "data" / "sudoku_sample.jsonl"
DOUBLE = {"prompt": "Write f(x).", "entry_point": "f", "checks": [[[2], 4], [[0], 0]]}


def written(folder: Path, *records: Any) -> Path:
    file = folder / "mine.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_line_without_a_task_is_graded_by_exact_match(tmp_path: Path) -> None:
    problems = file_problems(
        written(tmp_path, {"prompt": "1+1=", "answer": " 2\n"}, "", {"prompt": "p", "answer": "q"})
    )
    assert [(one.task, one.prompt, grader(one)) for one in problems] == [(EXACT, "1+1=", EXACT), (EXACT, "p", EXACT)]
    assert grade(problems, ["2 ", "Q"]) == [True, False]


def test_each_line_is_graded_by_its_own_task(tmp_path: Path) -> None:
    words = {"prompt": "How many?", "answer": "1 + 1 = 2\n#### 2", "task": "words"}
    other = {"prompt": "p", "answer": "q", "task": "sorting"}
    problems = file_problems(written(tmp_path, DOUBLE, words, other))
    assert [grader(one) for one in problems] == ["checks", "words", EXACT]
    right = ["```python\ndef f(x):\n    return 2 * x\n```", "so #### 3\n#### 2", "q"]
    assert grade(problems, right) == [True, True, True]
    assert grade(problems, ["def f(x):\n    return x * x * x", "#### 3", "Q"]) == [False, False, False]


def test_a_sudoku_file_is_known_by_its_fields() -> None:
    problems = file_problems(SUDOKUS, count=3)
    assert [one.task for one in problems] == ["sudoku"] * 3
    assert grade(problems, [problems[0].answer, problems[0].answer, ""]) == [True, False, False]


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"prompt": "2", "answer": "b"}', encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('\ufeff{"prompt": "1", "answer": "a\u2028"}\n', encoding="utf-8")
    assert [one.prompt for one in file_problems(tmp_path)] == ["1", "2"]


def test_tasks_and_count_choose_from_a_file(tmp_path: Path) -> None:
    records = [{"prompt": f"{task}{n}", "answer": "1", "task": task} for n in range(3) for task in "xyz"]
    file = written(tmp_path, *records)
    assert [one.prompt for one in file_problems(file, ["x", "z"], 2)] == ["x0", "x1", "z0", "z1"]
    with pytest.raises(RequestError, match="no problem of the tasks w; its tasks: x, y, z"):
        file_problems(file, ["w"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "p", "answer": ', "not JSON"),
        ("[1]", r"wants a JSON object, got \[1\]"),
        ({"prompt": "p"}, 'wants a text in "answer", got the fields prompt'),
        ({"answer": "a"}, 'wants a text in "prompt", got the fields answer'),
        ({"prompt": "p", "answer": 5}, 'wants a text in "answer", got 5'),
        ({"prompt": "", "answer": "a"}, "wants a text in \"prompt\", got ''"),
        ({"prompt": "p", "answer": "a", "task": None}, 'wants a text in "task", got None'),
        ({**DOUBLE, "checks": []}, r'"checks" wants a list of \[\[arguments\], value\]'),
        ({**DOUBLE, "checks": [[2, 4]]}, r"got \[\[2, 4\]\]"),
        ({**DOUBLE, "entry_point": ""}, 'wants a text in "entry_point"'),
        ({"prompt": "p", "answer": "a", "task": "functions"}, 'needs "checks" and "entry_point"'),
        ({"prompt": "p", "answer": "no number", "task": "words"}, 'none that the task "words" accepts'),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: Any, complaint: str) -> None:
    file = written(tmp_path, {"prompt": "p", "answer": "a"}, "", line)
    with pytest.raises(RequestError, match=complaint) as caught:
        file_problems(file)
    assert str(caught.value).startswith(f"{file}, line 3: ")


def test_a_bad_sudoku_is_refused_with_file_and_line(tmp_path: Path) -> None:
    good = SUDOKUS.read_text(encoding="utf-8").splitlines()[0]
    for bad in ('{"input": 5, "output": "1"}', '{"input": "1003\\n0300\\n3210\\n4132", "output": "1111"}'):
        file = written(tmp_path, good, bad)
        with pytest.raises(RequestError, match=r"mine\.jsonl, line 2: "):
            file_problems(file)


def test_files_with_nothing_in_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is empty"):
        file_problems(written(tmp_path, "", " "))
    with pytest.raises(RequestError, match="no such file"):
        file_problems(tmp_path / "absent.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"no \.jsonl file"):
        file_problems(tmp_path / "empty")
    (tmp_path / "mine.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read as UTF-8"):
        file_problems(tmp_path / "mine.jsonl")


def test_the_suite_gives_held_out_problems_of_the_wanted_tasks() -> None:
    problems = suite_problems("builtin", ["words", "sudoku"], 3)
    assert [one.task for one in problems] == ["words"] * 3 + ["sudoku"] * 3
    assert all(is_held_out(one.key) for one in problems)
    assert (
        problems
        == suite_problems("builtin", ["words", "sudoku"], 3)
        != suite_problems("builtin", ["words", "sudoku"], 3, seed=1)
    )
    assert {one.task for one in suite_problems("builtin", [], 1)} == set(SUITE)
    with pytest.raises(UnknownNameError, match='no suite named "gsm"'):
        suite_problems("gsm", [], 1)
    with pytest.raises(UnknownNameError, match='Did you mean "words"'):
        suite_problems("builtin", ["word"], 1)
    with pytest.raises(RequestError, match="problems must be at least 1"):
        suite_problems("builtin", [], 0)
