"""Collecting trajectories: which answer is kept, what survives a kill, what is learned from."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path

import pytest

import unmask
from unmask.core.trajectory import Kind, Trajectory
from unmask.errors import RequestError
from unmask.evaluation.problems import file_problems
from unmask.evaluation.problems import grade as grade_file
from unmask.evaluation.tasks import Problem, is_held_out
from unmask.training import rollouts
from unmask.training.data import DataError
from unmask.training.replay import TrajectorySamples
from unmask.training.rollouts import (
    Collected,
    Rollout,
    RolloutOptions,
    collect,
    distinct_problems,
    read_answers,
    read_index,
    select,
)

OPTIONS = RolloutOptions(
    schedule="sequential(block_length=8)", length=16, temperatures=(0.0, 0.5, 1.0), batch_size=2, shard_size=3
)
PROBLEMS = [Problem("toy", number % 3 * "Now, " + f"Add {number} and 3.", "x", f"add {number}") for number in range(7)]


class Grader:
    """Accepts the answers to problem i from try i % 4 on, and remembers who was tried; try 3 never comes."""

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    def __call__(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[bool]:
        verdicts = []
        for problem in problems:
            self.tries[problem.key] = self.tries.get(problem.key, 0) + 1
            verdicts.append(self.tries[problem.key] > int(problem.key.split()[1]) % 4)
        return verdicts


class Killed(Exception):
    pass


def contents(folder: Path) -> dict[str, object]:
    """Everything in a folder, read."""
    read: dict[str, Callable[[Path], object]] = {
        ".safetensors": lambda path: {
            name: getattr(Trajectory.load(path), name).tolist()
            for name in ("row", "step", "kind", "slot", "token", "confidence", "passes")
        }
    }
    return {path.name: read.get(path.suffix, Path.read_text)(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, llada: unmask.Model) -> Path:
    folder = tmp_path_factory.mktemp("rollouts") / "whole"
    collect(llada, PROBLEMS, folder, OPTIONS, grade=Grader())
    return folder


def test_temperatures_are_tried_in_order_until_an_answer_is_right(llada: unmask.Model, tmp_path: Path) -> None:
    grader = Grader()
    done = collect(llada, PROBLEMS, tmp_path, OPTIONS, grade=grader)
    assert [grader.tries[problem.key] for problem in PROBLEMS] == [1, 2, 3, 3, 1, 2, 3]
    index = read_index(tmp_path)
    assert [line.key for line in index] == [problem.key for problem in PROBLEMS]
    assert [line.temperature for line in index] == [0.0, 0.5, 1.0, 1.0, 0.0, 0.5, 1.0]
    assert [line.correct for line in index] == [True, True, True, False, True, True, True]
    assert (done.stored, done.correct, done.answers) == (7, 6, 15)


def test_the_index_says_what_the_shards_hold(llada: unmask.Model, whole: Path) -> None:
    index = read_index(whole)
    assert [(line.shard, line.row) for line in index] == [
        (f"shard-{number // 3:05d}.safetensors", number % 3) for number in range(7)
    ]
    for number, line in enumerate(index):
        assert line.shard is not None and line.row is not None
        one = Trajectory.load(whole / line.shard).of_row(line.row)
        asked = llada.text.decode(one.start.tokens[0, : line.prompt_tokens].tolist())
        assert f"dd {number} and 3." in asked
        assert one.nfe(0) == line.steps
        final = one.final()
        decided = final.answer.index_fill(1, one.slot[one.kind == Kind.FILL], False)
        assert line.samples == len(final.committed_at[decided].unique())
        assert line.truncated == (line.tokens == 16)
        assert one.facts["decoder"].startswith("wino(draft=0.5, verify=0.8")
        (again,) = unmask.generate(
            llada,
            [PROBLEMS[number].prompt],
            decoder=OPTIONS.decoder,
            schedule=OPTIONS.schedule,
            length=16,
            temperature=line.temperature or 0.0,
            seed=number,
        )
        assert final.tokens[0, final.exists[0]].tolist() == again.canvas, "the same answer alone"


def test_progress_is_told_after_every_batch_and_every_shard(llada: unmask.Model, tmp_path: Path) -> None:
    seen: list[Collected] = []
    done = collect(llada, PROBLEMS, tmp_path, OPTIONS, grade=lambda asked, _: [True] * len(asked), progress=seen.append)
    assert [(one.answers, one.stored) for one in seen] == [
        (2, 0),
        (3, 0),
        (3, 3),
        (5, 3),
        (6, 3),
        (6, 6),
        (7, 6),
        (7, 7),
    ]
    assert seen[-1] == done
    assert done.total == 7


def kill_at(moment: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[[Collected], None]:
    """Dies in the second shard; the name says where."""
    write, save = rollouts._write, Trajectory.save

    def dying_write(path: Path, text: str, mode: str) -> None:
        if mode == "a" and '"add 3"' in text:
            if moment == "in the middle of a line":
                write(path, text[: len(text) // 2], "a")
            raise Killed
        write(path, text, mode)  # type: ignore[arg-type]

    def dying_save(self: Trajectory, path: Path) -> None:
        if path.name == "shard-00001.safetensors":
            path.with_name(path.name + ".part").write_bytes(b"half of a file")
            raise Killed
        save(self, path)

    def dying_progress(state: Collected) -> None:
        if moment == "between two batches" and state.stored == 3 and state.answers > 7:
            raise Killed

    if moment == "in the middle of a shard":
        monkeypatch.setattr(Trajectory, "save", dying_save)
    if moment in ("between a shard and its lines", "in the middle of a line"):
        monkeypatch.setattr(rollouts, "_write", dying_write)
    return dying_progress


@pytest.mark.parametrize(
    "moment",
    [
        "between two batches",
        "in the middle of a shard",
        "between a shard and its lines",
        "in the middle of a line",
    ],
)
def test_a_killed_collection_goes_on_and_ends_as_if_it_had_never_stopped(
    moment: str, llada: unmask.Model, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        collect(llada, PROBLEMS, tmp_path, OPTIONS, grade=Grader(), progress=kill_at(moment, patch, tmp_path))
    stored = [line.key for line in read_index(tmp_path)]
    assert stored[:3] == ["add 0", "add 1", "add 2"]
    grader = Grader()
    collect(llada, PROBLEMS, tmp_path, OPTIONS, grade=grader, resume=True)
    assert set(grader.tries) == {problem.key for problem in PROBLEMS[len(stored) :]}, "nothing is answered twice"
    if moment == "in the middle of a line":  # the whole lines of the broken shard stay; the rest has a shard of its own
        assert [line.key for line in read_index(tmp_path)] == [problem.key for problem in PROBLEMS]
        assert len(read_answers(tmp_path)) == len(read_answers(whole)) == 6
        for one, other in zip(read_answers(tmp_path), read_answers(whole), strict=True):
            assert one.tokens.equal(other.tokens) and one.committed_at.equal(other.committed_at)
    else:
        assert contents(tmp_path) == contents(whole)


def test_more_problems_may_be_added_later(llada: unmask.Model, whole: Path, tmp_path: Path) -> None:
    collect(llada, PROBLEMS[:4], tmp_path, OPTIONS, grade=Grader())
    grader = Grader()
    done = collect(llada, PROBLEMS, tmp_path, OPTIONS, grade=grader, resume=True)
    assert set(grader.tries) == {"add 4", "add 5", "add 6"}
    assert done.stored == 7
    again = collect(llada, PROBLEMS, tmp_path, OPTIONS, resume=True)
    assert again == replace(done, answers=0)


def test_a_folder_takes_only_what_belongs_to_it(llada: unmask.Model, whole: Path, tmp_path: Path) -> None:
    before = contents(whole)
    with pytest.raises(DataError, match="pass resume"):
        collect(llada, PROBLEMS, whole, OPTIONS)
    with pytest.raises(DataError, match="seed=0, not 1"):
        collect(llada, PROBLEMS, whole, replace(OPTIONS, seed=1), resume=True)
    with pytest.raises(DataError, match="decoder="):
        collect(llada, PROBLEMS, whole, replace(OPTIONS, decoder="wino"), resume=True)
    with pytest.raises(DataError, match="line 1: is about another problem"):
        collect(llada, PROBLEMS[1:], whole, OPTIONS, resume=True)
    assert contents(whole) == before
    (tmp_path / "index.jsonl").write_text("somebody's own lines\n")
    with pytest.raises(DataError, match=r"no settings\.json"):
        collect(llada, PROBLEMS, tmp_path, OPTIONS, resume=True)
    assert (tmp_path / "index.jsonl").read_text() == "somebody's own lines\n"
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(DataError, match=r"settings\.json: cannot be read"):
        collect(llada, PROBLEMS, tmp_path, OPTIONS, resume=True)


def test_prompts_that_do_not_fit_are_skipped_and_counted(
    llada: unmask.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = Problem("toy", "Add 1 and 3. " * 60, "x", "add 0 long")
    done = collect(llada, [long, *PROBLEMS[:1], long], tmp_path, OPTIONS, grade=Grader())
    assert (done.stored, done.too_long, done.answers) == (3, 2, 1)
    assert [line.shard for line in read_index(tmp_path)] == [None, "shard-00000.safetensors", None]
    assert read_index(tmp_path)[0].prompt_tokens > llada.facts.max_length - 16
    assert "2 of 3 prompts are too long for 16 answer slots in a context of 512 tokens" in caplog.text
    assert len(read_answers(tmp_path)) == 1


def test_answers_without_an_end_token_are_counted_and_said(
    llada: unmask.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        done = collect(llada, PROBLEMS, tmp_path, replace(OPTIONS, length=3), grade=Grader())
    assert done.truncated == sum(line.truncated for line in read_index(tmp_path)) > 0
    assert f"{done.truncated} of 7 answers have no end token" in caplog.text


def test_problems_of_a_file_are_graded_as_the_file_says(llada: unmask.Model, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    (said,) = unmask.generate(llada, ["Add 2 and 3."], decoder=OPTIONS.decoder, schedule=OPTIONS.schedule, length=16)
    records = [{"prompt": "Add 2 and 3.", "answer": said.text.strip()}, {"prompt": "Add 9 and 3.", "answer": "no"}]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    collect(llada, file_problems(data), tmp_path / "out", OPTIONS, grade=grade_file)
    assert [line.correct for line in read_index(tmp_path / "out")] == [True, False]


@pytest.mark.parametrize(
    ("line", "words"), [('{"prompt": ', "not JSON"), ('{"prompt": " ", "answer": "a"}', '"prompt"')]
)
def test_a_bad_line_of_a_file_is_named(tmp_path: Path, line: str, words: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(RequestError, match=r"data\.jsonl, line 2") as caught:
        file_problems(data)
    assert words in str(caught.value)


def test_bad_requests_are_refused_before_anything_is_written(llada: unmask.Model, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no problems"):
        collect(llada, [], tmp_path / "out", OPTIONS)
    with pytest.raises(unmask.UnmaskError, match="wine"):
        collect(llada, PROBLEMS, tmp_path / "out", replace(OPTIONS, decoder="wine"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(RequestError, match=r"problem 1 \(toy\): the prompt is empty"):
        collect(llada, [PROBLEMS[0], Problem("toy", " ", "x", "k")], tmp_path / "out", OPTIONS, grade=Grader())
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be made"):
        collect(llada, PROBLEMS, tmp_path / "file" / "out", OPTIONS)


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 0},
        {"batch_size": 0},
        {"shard_size": 0},
        {"temperatures": ()},
        {"temperatures": (-0.1,)},
        {"seed": -1},
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(OPTIONS, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["{", "[1]", '{"key": "a"}'])
def test_a_bad_line_of_an_index_is_named(whole: Path, tmp_path: Path, line: str) -> None:
    first = (whole / "index.jsonl").read_text().splitlines()[0]
    (tmp_path / "index.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(DataError, match=r"index\.jsonl, line 2"):
        read_index(tmp_path)


def test_missing_files_and_rows_are_named(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"index\.jsonl"):
        read_answers(tmp_path)
    line = replace(read_index(whole)[0], row=9)
    (tmp_path / "index.jsonl").write_text(json.dumps(asdict(line)) + "\n")
    with pytest.raises(RequestError, match=r"shard-00000\.safetensors"):
        read_answers(tmp_path)
    (tmp_path / "shard-00000.safetensors").write_bytes((whole / "shard-00000.safetensors").read_bytes())
    with pytest.raises(DataError, match="has 3 rows, but the index names row 9"):
        read_answers(tmp_path)


def line(key: str, temperature: float, steps: int, correct: bool = True, samples: int | None = None) -> Rollout:
    made = steps if samples is None else samples
    return Rollout(key, "toy", 5, correct, False, temperature, steps, made, 9, "shard-00000.safetensors", 0)


def test_the_best_right_answer_of_each_problem_is_kept_easiest_first() -> None:
    skipped = Rollout("z", "toy", 999)
    index = [
        line("a", 0.1, 4),
        line("b", 0.0, 9),
        line("a", 0.0, 8),
        line("a", 0.0, 7),
        skipped,
        line("c", 0.0, 1, False),
    ]
    assert [(one.key, one.steps) for one in select(index)] == [("a", 7), ("b", 9)]
    hard = [line("d", 0.5, 1), line("e", 0.0, 50)]
    assert [one.key for one in select([*hard, *index])] == ["a", "b", "e", "d"]


@pytest.mark.parametrize(
    ("ratio", "kept"), [(None, "abcd"), (1.0, "abcd"), (0.5, "abc"), (0.49, "ab"), (0.3, "ab"), (0.1, "a"), (0.05, "")]
)
def test_a_share_of_the_samples_is_kept_up_to_the_first_answer_that_goes_beyond(ratio: float | None, kept: str) -> None:
    """Samples 2, 4, 4 and 10: after the first answer 10 % of all, then 30 %, 50 %, all."""
    index = [line("b", 0.0, 6, samples=4), line("a", 0.0, 5, samples=2), line("c", 0.0, 7, samples=4)]
    index.append(line("d", 0.1, 11, samples=10))
    assert "".join(one.key for one in select(index, ratio)) == kept


def test_a_share_is_from_0_to_1() -> None:
    with pytest.raises(ValueError, match="keep_step_ratio"):
        select([], 1.5)


def test_right_answers_become_training_samples_labelled_by_their_task(whole: Path) -> None:
    source = TrajectorySamples(read_answers(whole), batch_tokens=512, seed=0)
    assert len(source.samples) == sum(line.samples for line in select(read_index(whole)))
    (batch,) = source.take(1)
    assert set(batch.labels) == {"toy"}


def test_problems_are_distinct_not_held_out_and_the_first_ones_of_a_longer_list() -> None:
    few, many = (
        distinct_problems({"sudoku": 1.0, "words": 1.0}, 20),
        distinct_problems({"sudoku": 1.0, "words": 1.0}, 40),
    )
    assert many[:20] == few
    assert len({problem.key for problem in many}) == 40
    assert not any(is_held_out(problem.key) for problem in many)
    assert few != distinct_problems({"sudoku": 1.0, "words": 1.0}, 20, seed=1)
    left = distinct_problems({"sudoku": 1.0, "words": 1.0}, 20, exclude=[few[0].key])
    assert few[0].key not in {problem.key for problem in left}


def test_a_task_that_runs_dry_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "training_problems", lambda *_, **__: repeat(PROBLEMS[0]))
    with pytest.raises(RequestError, match="only 1 problems: got count=2"):
        distinct_problems({"toy": 1.0}, 2)
