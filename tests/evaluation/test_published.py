"""Published tasks: sources, prompts, names, the grading interface."""

import gzip
import json
import random
import sys
import types
from pathlib import Path

import pytest

from unmask.errors import RequestError, UnknownNameError
from unmask.evaluation.grading import grade, grade_all
from unmask.evaluation.tasks import PUBLISHED, TASKS, Published, find_task
from unmask.evaluation.tasks.sources import Hub

RECORDS = Path(__file__).parents[1] / "data" / "tasks"
GPQA = {"Question": "Q?", "Correct Answer": "a", "Incorrect Answer 1": "b", "Incorrect Answer 2": "c"} | {
    "Incorrect Answer 3": "d"
}
SOURCES = {
    "gsm8k": RECORDS / "gsm8k_test.jsonl",
    "humaneval": RECORDS / "HumanEval.jsonl",
    "mbpp": RECORDS / "mbpp.jsonl",
    "mbpp-sanitized": RECORDS / "sanitized-mbpp.jsonl",
    "countdown": RECORDS,
    "sudoku-4x4": RECORDS.parent / "sudoku_sample.jsonl",
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_task_goes_by_its_name_and_says_what_it_is(name: str) -> None:
    task = find_task(name)
    assert task.name == name
    assert isinstance(task, Published)
    assert task.length > 0
    assert (type(task).__doc__ or "").strip()
    assert name not in TASKS


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_problems_of_a_file_have_distinct_keys_and_prompts_that_hold_them(name: str) -> None:
    task = find_task(name)
    problems = task.problems(SOURCES[name])
    assert len({problem.key for problem in problems}) == len(problems)
    for problem in problems:
        assert problem.task == name
        assert problem.prompt.strip() in task.prompt(problem).text
        assert problem.answer
        assert not task.runs_code or task.program(problem, problem.answer).source


@pytest.mark.parametrize("name", ["gsm8k", "countdown", "sudoku-4x4"])
def test_the_answers_of_real_records_are_right_and_changed_ones_are_not(name: str) -> None:
    problems = find_task(name).problems(SOURCES[name])
    assert all(grade_all(name, problems, [problem.answer for problem in problems]))
    digits = str.maketrans("0123456789", "1234567890")
    assert not any(grade_all(name, problems, [problem.answer.translate(digits) for problem in problems]))


def test_examples_stand_before_the_question_in_every_style() -> None:
    problem = find_task("gsm8k").problems(SOURCES["gsm8k"])[0]
    chat = find_task("gsm8k(shots=2)").prompt(problem)
    assert [message["role"] for message in chat.messages] == ["user"]
    assert not chat.raw
    assert chat.text.count("Question:") == 3
    assert chat.text.count("####") == 2
    assert chat.text.endswith(f"Question: {problem.prompt}\nAnswer:")
    raw = find_task("gsm8k(shots=2, style='raw')").prompt(problem)
    assert raw.raw
    assert raw.text == chat.text
    turns = find_task("gsm8k(shots=2, style='turns')").prompt(problem)
    assert [message["role"] for message in turns.messages] == ["user", "assistant"] * 2 + ["user"]
    assert turns.messages[1]["content"].rstrip()[-2:].isdigit()


def test_no_example_is_the_question_itself() -> None:
    task = find_task("mbpp(part='all')")
    example = task.examples(task.problems(SOURCES["mbpp"])[0])[0]
    assert task.prompt(example).text.count(example.prompt) == 1


def test_humaneval_goes_on_behind_the_docstring_in_raw_style() -> None:
    problem = find_task("humaneval").problems(SOURCES["humaneval"])[0]
    assert find_task("humaneval(style='raw')").prompt(problem).text == problem.prompt
    assert "```python" in find_task("humaneval").prompt(problem).text


def test_a_wrong_field_is_refused() -> None:
    for spec, said in (
        ("gsm8k(shots=9)", "from 0 to 8"),
        ("gsm8k(shots=-1)", "from 0 to 8"),
        ("sudoku-4x4(shots=99)", "from 0 to 16"),
        ("humaneval(shots=1)", "from 0 to 0"),
        ("gsm8k(style='song')", "style"),
        ("gsm8k(shot=1)", 'Did you mean "shots"'),
        ("mbpp(part='some')", "part"),
    ):
        with pytest.raises(RequestError, match=said.replace("(", r"\(")):
            find_task(spec)


def test_an_unknown_task_is_refused_with_all_names() -> None:
    with pytest.raises(UnknownNameError, match='Did you mean "gsm8k"') as error:
        find_task("gsm8(shots=1)")
    assert "sudoku-4x4" in str(error.value)
    assert "functions" in str(error.value)


def test_generated_tasks_are_found_and_graded_the_same_way() -> None:
    problem = TASKS["sudoku"].sample(random.Random(0))
    assert grade("sudoku", problem, problem.answer).passed
    assert grade("sudoku", problem, "1234").reason == "wrong"


def test_grading_wants_problems_of_the_task_and_one_text_each() -> None:
    problems = find_task("gsm8k").problems(SOURCES["gsm8k"])
    with pytest.raises(RequestError, match="a problem of gsm8k cannot be graded as countdown"):
        grade("countdown", problems[0], "")
    with pytest.raises(ValueError, match="10 problems and 1 texts"):
        grade_all("gsm8k", problems, [""])


def test_a_limit_keeps_the_first_problems() -> None:
    task = find_task("gsm8k")
    assert task.problems(SOURCES["gsm8k"], limit=3) == task.problems(SOURCES["gsm8k"])[:3]


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    text = SOURCES["gsm8k"].read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    (tmp_path / "a.jsonl").write_text(text + "\n", encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    found = [find_task("gsm8k").problems(path) for path in sorted(tmp_path.iterdir())]
    assert len(found) == 3
    assert all(one == found[0] for one in found)
    head, row = ",".join(GPQA), ",".join(GPQA.values())
    (tmp_path / "gpqa_diamond.csv").write_text(f"{head}\n{row}\n", encoding="utf-8")
    assert len(find_task("gpqa").problems(tmp_path)) == 1


def test_parquet_is_read_where_pyarrow_is_installed(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [json.loads(line) for line in SOURCES["gsm8k"].read_text(encoding="utf-8").splitlines()]
    table = __import__("pyarrow").Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "test.parquet")
    assert find_task("gsm8k").problems(tmp_path) == find_task("gsm8k").problems(SOURCES["gsm8k"])


def test_a_folder_gives_the_files_that_fit_the_task(tmp_path: Path) -> None:
    rows = SOURCES["gsm8k"].read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(rows[:7]), encoding="utf-8")
    (tmp_path / "data" / "test.jsonl").write_text("".join(rows[7:]), encoding="utf-8")
    assert len(find_task("gsm8k").problems(tmp_path)) == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"question": "?"}', "a.jsonl, record 1: no record of gsm8k: lacks the field 'answer'"),
        ("a.jsonl", '{"question": "?", "answer": "3"}', "no number behind ####"),
        ("a.jsonl", '{"question": "?"', "a.jsonl, line 1: not JSON"),
        ("a.jsonl", "[1]", "wants an object"),
        ("a.jsonl", "", "no problem of gsm8k"),
        ("a.txt", "", "is none of"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        find_task("gsm8k").problems(tmp_path / name)


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file or folder"):
        find_task("gsm8k").problems(tmp_path / "nothing")
    with pytest.raises(RequestError, match="no file"):
        find_task("gsm8k").problems(tmp_path)
    with pytest.raises(RequestError, match="on no hub"):
        find_task("countdown").problems()


def test_the_hub_is_read_with_the_datasets_library(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in SOURCES["gsm8k"].read_text(encoding="utf-8").splitlines()]
    asked = []
    library = types.ModuleType("datasets")
    library.load_dataset = lambda *a, **k: asked.append((a, k)) or rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert len(find_task("gsm8k").problems()) == 10
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]
    assert find_task("ifeval").hub == Hub("google/IFEval", None, "train")


def test_a_missing_datasets_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match="pip install datasets"):
        find_task("gsm8k").problems()
