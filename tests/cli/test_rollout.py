"""`unmask rollout` on a model that knows nothing: its own answers are what counts as right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import CHECKPOINT, invoke, refused

import unmask
from unmask.cli import rollout
from unmask.training import rollouts
from unmask.training.rollouts import read_answers, read_index

DECODER, SCHEDULE = "wino(draft=0.2, verify=0.3)", "sequential(block_length=8)"
PROMPTS = ["Add 2 and 3.", "Add 4 and 1.", "Name a fish."]
OPTIONS = ["--model", CHECKPOINT, "--decoder", DECODER, "--schedule", SCHEDULE, "--length", 12, "--temperatures", "0"]


@pytest.fixture(scope="module")
def said(llada: unmask.Model) -> list[str]:
    answers = unmask.generate(llada, PROMPTS, decoder=DECODER, schedule=SCHEDULE, length=12)
    return [one.text for one in answers]


@pytest.fixture
def file(tmp_path: Path, said: list[str]) -> Path:
    """Two problems that the model solves, and one that it does not."""
    wanted = [said[0], "something else", said[2]]
    path = tmp_path / "problems.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in zip(PROMPTS, wanted, strict=True))
    )
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_stored_checked_counted_and_written(file: Path, said: list[str], tmp_path: Path) -> None:
    out, answers = tmp_path / "out", tmp_path / "answers.jsonl"
    result = invoke("rollout", "--out", out, "--prompts", file, "--answers", answers, *OPTIONS)
    assert result.exit_code == 0, (result.output, result.exception)
    first, second = result.stdout.splitlines()
    index = read_index(out)
    assert [line.correct for line in index] == [True, False, True]
    truncated = sum(line.truncated for line in index)
    wanted = f"{out}: 3 of 3 problems stored, 2 right, {truncated} truncated, 0 too long, 3 answers decoded, "
    assert first.startswith(wanted) and first.endswith(" s")
    assert second == f"{answers}: 2 right answers"
    kept = [{"prompt": PROMPTS[number], "answer": said[number]} for number in (0, 2)]
    assert sorted(lines(answers), key=str) == sorted(kept, key=str)
    assert len(read_answers(out)) == 2


def test_a_folder_is_gone_on_with_only_where_that_is_asked_for(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["rollout", "--out", out, "--prompts", file, *OPTIONS]
    assert invoke(*arguments).exit_code == 0
    refused(invoke(*arguments), "already holds rollouts")
    again = invoke(*arguments, "--resume")
    assert again.exit_code == 0 and "2 right" in again.stdout and "0 answers decoded" in again.stdout
    refused(invoke(*arguments, "--resume", "--seed", 1), "seed=0, not 1")


def test_ctrl_c_keeps_what_is_stored(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file of answers is interrupted; the first one stays, and the rest follows."""
    monkeypatch.setattr(rollout, "RolloutOptions", small_shards(rollout.RolloutOptions))
    out, whole, asked = tmp_path / "out", rollouts.complete, []

    def interrupted(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(rollouts, "complete", interrupted)
    arguments = ["rollout", "--out", out, "--prompts", file, "--batch-size", 1, *OPTIONS]
    stopped = invoke(*arguments)
    assert stopped.exit_code == 130 and "--resume" in stopped.stderr and stopped.stdout == ""
    assert len(read_index(out)) == 1
    assert invoke(*arguments, "--resume").exit_code == 0
    assert len(read_index(out)) == 3 and len(asked) == 4


def small_shards(options: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **more: options(*arguments, **more, shard_size=1)


def test_built_in_tasks_are_asked_in_their_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The excluded puzzle does not occur; a word problem never does."""
    asked: dict[str, Any] = {}

    def collect(model: object, problems: list[Any], folder: Path, options: Any, **_: Any) -> rollouts.Collected:
        asked.update(problems=problems, options=options)
        return rollouts.Collected(len(problems), 0, 0, 0, 0, 0)

    monkeypatch.setattr(rollout, "collect", collect)
    arguments = ["--tasks", "sudoku=0.5,words=1.5", "--problems", 40, "--temperatures", "0,0.5"]
    assert invoke("rollout", "--out", tmp_path, "--model", CHECKPOINT, *arguments).exit_code == 0
    problems = asked["problems"]
    tasks = [problem.task for problem in problems]
    assert len(tasks) == 40 and set(tasks) == {"sudoku", "words"} and tasks.count("words") > 20
    assert asked["options"] == rollouts.RolloutOptions(temperatures=(0.0, 0.5)), "the authors' method by default"
    (puzzle, *_) = [problem for problem in problems if problem.task == "sudoku"]
    known = tmp_path / "puzzles.jsonl"
    known.write_text(json.dumps({"input": puzzle.prompt.partition(":\n")[2], "output": puzzle.answer}) + "\n")
    assert puzzle.key in rollout.puzzle_keys("--exclude-sudoku", known)
    more = ["--exclude-sudoku", known]
    assert invoke("rollout", "--out", tmp_path, "--model", CHECKPOINT, *arguments, *more).exit_code == 0
    assert puzzle.key not in {problem.key for problem in asked["problems"]}
    assert invoke("rollout", "--out", tmp_path, "--model", CHECKPOINT, "--decoder", "threshold").exit_code == 0
    assert asked["options"].schedule is None and len(asked["problems"]) == rollout.DEFAULT_PROBLEMS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperatures", "0,warm"], ["--temperatures", "0,warm"]),
        (["--temperatures", "-1"], ["temperatures"]),
        (["--tasks", "sudoku"], ["--tasks", "task=share"]),
        (["--tasks", "sudoku=0"], ["--tasks", "positive"]),
        (["--tasks", "chess=1"], ["chess"]),
        (["--tasks", "sudoku=1", "--prompts", "x.jsonl"], ["--prompts", "not both"]),
        (["--prompts", "/nowhere/x.jsonl"], ["no such file", "/nowhere/x.jsonl"]),
        (["--exclude-sudoku", "/nowhere/x.jsonl"], ["--exclude-sudoku"]),
        (["--decoder", "wine"], ["wine"]),
        (["--schedule", "sequent"], ["sequent"]),
        (["--length", "0"], ["length"]),
        (["--seed", "-1"], ["seed"]),
        (["--answers", "/nowhere/x.jsonl"], ["/nowhere/x.jsonl"]),
        (["--model", "/nowhere"], ["no checkpoint"]),
        (["--device", "abacus"], ["abacus"]),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    refused(invoke("rollout", "--out", tmp_path / "out", *arguments), *words)
    assert not (tmp_path / "out").exists()


def test_a_bad_line_is_named_with_its_file(file: Path, tmp_path: Path) -> None:
    with file.open("a") as opened:
        opened.write('{"prompt": \n')
    refused(invoke("rollout", "--out", tmp_path / "out", "--prompts", file), "problems.jsonl, line 4")


def test_help_names_every_option() -> None:
    shown = invoke("rollout", "--help").stdout
    for option in ("--out", "--prompts", "--tasks", "--temperatures", "--resume", "--answers", "--exclude-sudoku"):
        assert option in shown
    assert "rollout" in invoke("--help").stdout
