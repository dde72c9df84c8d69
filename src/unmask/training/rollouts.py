"""Rollouts: a method answers prompts, and how each answer came about is kept for training (see `training/replay.py`).

Source: the trajectory collection of WINO+, the release that goes with Hong et al., WINO (arXiv 2507.18578). WINO with
loose bounds answers a prompt at one temperature after another until an answer is right. Deviates: decoding stops at a
settled end token; ties between answers to one problem are not broken by the number of arithmetic operations in them;
records are trajectories, which leave out what the shadows proposed, because nothing is learned from it.

A folder of rollouts holds trajectories (`shard-00000.safetensors` and so on, a row per answer), `index.jsonl` (a line
per problem, in order) and `settings.json`. A shard is complete before its lines are written, so that a run that was
killed goes on behind the last whole line.
"""

import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from unmask.core.sampling import Sampling
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.errors import RequestError
from unmask.evaluation.tasks.base import Problem
from unmask.evaluation.tasks.suite import grade as grade_suite
from unmask.evaluation.tasks.suite import training_problems
from unmask.generation import Completion, Model, Recipe, complete, encode, start_state
from unmask.models.text import Text
from unmask.training.data import DataError
from unmask.training.replay import DecodedAnswer, decoded_answers

logger = logging.getLogger(__name__)

INDEX, SETTINGS = "index.jsonl", "settings.json"
Grade = Callable[[Sequence[Problem], Sequence[str]], list[bool]]
_PATIENCE = 20_000  # draws in a row without a new problem before `distinct_problems` gives up


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How prompts are answered; the defaults are those of the authors for LLaDA."""

    decoder: str = "wino(draft=0.5, verify=0.8)"
    schedule: str | None = "sequential(block_length=128)"  # None = what the method needs
    temperatures: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # tried in this order until an answer is right
    length: int = 256  # answer slots
    stop: Literal["tail", "block", "none"] = "tail"  # compat: "none" decides every slot
    seed: int = 0  # problem i draws from stream seed + i
    batch_size: int = 16  # prompts decoded together
    shard_size: int = 64  # problems per file; a run that is killed loses what it did of one file

    def __post_init__(self) -> None:
        for name in ("length", "batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}")
        if not self.temperatures or not all(0.0 <= one < math.inf for one in self.temperatures):
            raise ValueError(f"temperatures must be numbers from 0 up, at least one: got {self.temperatures}")
        if self.seed < 0:
            raise ValueError(f"seed must be from 0 up: got {self.seed}")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A line of the index: what came of one problem. If no answer was right, it is about the last one."""

    key: str  # of the problem
    task: str
    prompt_tokens: int  # chat template included
    correct: bool = False
    truncated: bool = False  # the answer has no end token
    temperature: float | None = (
        None  # None = not decoded, because prompt and answer are longer than the trained context
    )
    steps: int = 0  # forward passes
    samples: int = 0  # of them, those that left something in the answer: training samples
    tokens: int = 0  # of the answer, before the end token
    shard: str | None = None  # file that holds the trajectory
    row: int | None = None  # of that file


@dataclass(frozen=True, slots=True)
class Collected:
    """How far a collection is."""

    total: int  # problems
    stored: int  # problems in the index
    correct: int  # of them: answered rightly
    truncated: int  # of them: decoded, and the answer has no end token
    too_long: int  # of them: skipped, because prompt and answer are longer than the trained context
    answers: int  # decoded in this sitting, also those that are not kept


def distinct_problems(
    mix: Mapping[str, float], count: int, seed: int = 0, exclude: Collection[str] = ()
) -> list[Problem]:
    """Training problems of the built-in tasks, no two with the same key; more of them begin with the same ones.

    Args:
        mix: weight of each task, by name.
        count: number of problems.
        seed: the same seed gives the same problems.
        exclude: keys that must not occur.

    Raises:
        UnknownNameError, ValueError: see `training_problems`.
        RequestError: the tasks have fewer problems than asked for.
    """
    found: dict[str, Problem] = {}
    source, misses = training_problems(mix, seed, exclude=exclude), 0
    while len(found) < count:
        problem = next(source)
        misses = misses + 1 if problem.key in found else 0
        found.setdefault(problem.key, problem)
        if misses > _PATIENCE:
            raise RequestError(f"the tasks seem to have only {len(found)} problems: got count={count}")
    return list(found.values())


def collect(
    model: Model,
    problems: Sequence[Problem],
    folder: Path,
    options: RolloutOptions = RolloutOptions(),
    *,
    resume: bool = False,
    grade: Grade = grade_suite,
    progress: Callable[[Collected], None] = lambda state: None,
) -> Collected:
    """Answer problems and keep the trajectories; answers that end before their end token are kept, and counted.

    Args:
        problems: of the built-in tasks (`distinct_problems`), or of a file with the `grade` that belongs to them.
        folder: made if need be.
        resume: go on with what the folder holds already, which has to be about the same first problems.
        grade: whether each text solves its problem.
        progress: called after every decoded batch and every stored shard.

    Raises:
        RequestError, UnknownNameError, CompositionError: bad input, before anything is computed; a file that cannot be
            written.
        DataError: the folder holds other rollouts, or any and `resume` is False.
    """
    if not problems:
        raise RequestError("got no problems; give at least one")
    recipes = {
        temperature: Recipe.of(
            options.decoder,
            options.schedule,
            sampling=Sampling(temperature=temperature),
            stop=Stopping(options.stop),
            facts=model.facts,
        )
        for temperature in options.temperatures
    }
    settings: dict[str, Any] = next(iter(recipes.values())).specs() | {"model": model.source, "adapter": model.adapter}
    del settings["sampling"]
    settings |= {"temperatures": [*options.temperatures], "length": options.length, "seed": options.seed}
    index = _opened(folder, settings, problems, resume)
    collector = _Collector(model, problems, folder, options, recipes, grade, progress, index)
    for first in range(len(index), len(problems), options.shard_size):
        collector.shard(range(first, min(first + options.shard_size, len(problems))))
    done = collector.collected
    for count, what in ((done.truncated, "answers have no end token"), (done.too_long, "prompts are too long")):
        if count:
            logger.warning("%s: %d of %d %s for %d answer slots in a context of %d tokens", folder, count, done.stored,
                           what, options.length, model.facts.max_length)  # fmt: skip
    return done


@dataclass(slots=True)
class _Collector:
    """A collection under way; `collect` is its only user."""

    model: Model
    problems: Sequence[Problem]
    folder: Path
    options: RolloutOptions
    recipes: dict[float, Recipe]  # by temperature
    grade: Grade
    progress: Callable[[Collected], None]
    index: list[Rollout]
    answers: int = 0

    @property
    def collected(self) -> Collected:
        decoded = [line for line in self.index if line.shard is not None]
        return Collected(
            total=len(self.problems),
            stored=len(self.index),
            correct=sum(line.correct for line in decoded),
            truncated=sum(line.truncated for line in decoded),
            too_long=len(self.index) - len(decoded),
            answers=self.answers,
        )

    def shard(self, numbers: range) -> None:
        """Answer some problems, then write their trajectories, then their lines."""
        prompts = {number: self._encoded(number) for number in numbers}
        room = self.model.facts.max_length - self.options.length
        kept = self._answered({number: prompt for number, prompt in prompts.items() if len(prompt) <= room})
        name = f"shard-{len({line.shard for line in self.index} - {None}):05d}.safetensors"
        samples: list[int] = []
        if kept:
            trajectories = [_trajectory(completion) for _, completion, _ in kept.values()]
            joined = Trajectory.join(trajectories)
            joined.save(self.folder / name)
            samples = [len(answer.steps) for answer in decoded_answers(joined)]
        places = {number: row for row, number in enumerate(kept)}
        lines = []
        for number in numbers:
            problem = self.problems[number]
            line = Rollout(problem.key, problem.task, len(prompts[number]))
            if number in kept:
                temperature, completion, correct = kept[number]
                line = replace(
                    line,
                    correct=correct,
                    truncated=completion.finish_reason != "stop",
                    temperature=temperature,
                    steps=completion.nfe,
                    samples=samples[places[number]],
                    tokens=len(completion.tokens),
                    shard=name,
                    row=places[number],
                )
            lines.append(line)
        _write(self.folder / INDEX, "".join(json.dumps(asdict(line)) + "\n" for line in lines), "a")
        self.index += lines
        self.progress(self.collected)

    def _encoded(self, number: int) -> list[int]:
        try:
            return [token for token in encode(self.model, self.problems[number].prompt) if token is not None]
        except RequestError as error:
            raise RequestError(f"problem {number} ({self.problems[number].task}): {error}") from None

    def _answered(self, prompts: Mapping[int, list[int]]) -> dict[int, tuple[float, Completion, bool]]:
        """Temperature, answer and verdict of every problem: the first that is right, else the last one."""
        kept: dict[int, tuple[float, Completion, bool]] = {}
        for temperature, recipe in self.recipes.items():
            waiting = [number for number in prompts if number not in kept or not kept[number][2]]
            for first in range(0, len(waiting), self.options.batch_size):
                batch = waiting[first : first + self.options.batch_size]
                seeds = [self.options.seed + number for number in batch]
                state = start_state(self.model, [prompts[number] for number in batch], self.options.length, seeds)
                completions = complete(self.model, state, recipe)
                verdicts = self.grade([self.problems[number] for number in batch], [one.text for one in completions])
                for number, completion, correct in zip(batch, completions, verdicts, strict=True):
                    kept[number] = temperature, completion, correct and completion.finish_reason != "unfinished"
                self.answers += len(batch)
                self.progress(self.collected)
        return dict(sorted(kept.items()))


def _trajectory(completion: Completion) -> Trajectory:
    assert completion.trajectory is not None, "rollouts are recorded"
    return completion.trajectory


def _opened(folder: Path, settings: dict[str, Any], problems: Sequence[Problem], resume: bool) -> list[Rollout]:
    """What the folder holds already, without a half-written last line; afterwards it is ready to be written to."""
    about, lines = folder / SETTINGS, folder / INDEX
    if not about.exists() and lines.exists() and lines.stat().st_size:
        raise DataError(f"{folder} holds {INDEX} but no {SETTINGS}: choose another folder")
    if not about.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"{folder} cannot be made: {error}") from None
        _replace(lines, "")
        _replace(about, json.dumps(settings, indent=1) + "\n")
        return []
    if not resume:
        raise DataError(f"{folder} already holds rollouts: pass resume, or choose another folder")
    try:
        before = json.loads(about.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{about}: cannot be read: {error}") from None
    for name, value in settings.items():
        if before.get(name) != value:
            raise DataError(f"{folder} was collected with {name}={before.get(name)!r}, not {value!r}")
    index = read_index(folder)
    for number, (line, problem) in enumerate(zip(index, problems, strict=False), start=1):
        if line.key != problem.key:
            raise DataError(f"{lines}, line {number}: is about another problem than the one given: {line.key}")
    _replace(lines, "".join(json.dumps(asdict(line)) + "\n" for line in index))
    return index


def read_index(folder: Path) -> list[Rollout]:
    """A folder's lines, in order. A last line without its end is none: its run was killed, or is not done yet.

    Raises:
        DataError: with file and line, if the file is missing or a line is no rollout.
    """
    path = folder / INDEX
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    index = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not valid JSON: {error}") from None
        names = {field.name for field in fields(Rollout)}
        if not isinstance(record, dict) or set(record) != names:
            raise DataError(f"{path}, line {number}: is no rollout; wanted the fields {', '.join(sorted(names))}")
        index.append(Rollout(**record))
    return index


def select(index: Sequence[Rollout], keep_step_ratio: float | None = None) -> list[Rollout]:
    """What is worth learning from: right answers, the best one of each problem, the easiest ones first.

    Best is the lowest temperature, then the fewest steps.

    Args:
        keep_step_ratio: keep the first ones, as long as they have at most this share of all training samples, 0..1.

    Raises:
        ValueError: a ratio outside of that.
    """
    if keep_step_ratio is not None and not 0.0 <= keep_step_ratio <= 1.0:
        raise ValueError(f"keep_step_ratio must be from 0 to 1: got {keep_step_ratio}")
    right = [line for line in index if line.correct and line.temperature is not None]
    best: dict[str, Rollout] = {}
    for line in sorted(right, key=_effort):
        best.setdefault(line.key, line)
    chosen = list(best.values())
    if keep_step_ratio is None:
        return chosen
    room, kept = keep_step_ratio * sum(line.samples for line in chosen), 0
    for number, line in enumerate(chosen):
        kept += line.samples
        if kept > room:
            return chosen[:number]
    return chosen


def _effort(line: Rollout) -> tuple[float, int]:
    return line.temperature or 0.0, line.steps


def read_answers(folder: Path, keep_step_ratio: float | None = None) -> list[DecodedAnswer]:
    """The selected answers of a folder, for `TrajectorySamples`.

    Raises:
        DataError, RequestError: a file that is missing or damaged.
    """
    return [replace(answer, label=line.task) for line, answer in _selected(folder, keep_step_ratio)]


def write_answers(folder: Path, problems: Iterable[Problem], text: Text, path: Path) -> int:
    """Write the selected answers of a folder as JSON lines {"prompt", "answer"}, for recipes that learn from text (see
    `FileExamples`).

    Args:
        problems: those that the folder is about.
        text: of the model that answered.
        path: the file; one that is there already is replaced.

    Returns:
        Number of lines.

    Raises:
        DataError, RequestError: a file that is missing or damaged, or cannot be written.
    """
    prompts = {problem.key: problem.prompt for problem in problems}
    lines = []
    for line, answer in _selected(folder):
        said = answer.tokens[answer.prompt_length : answer.prompt_length + line.tokens]
        lines.append(json.dumps({"prompt": prompts[line.key], "answer": text.decode(said.tolist())}) + "\n")
    _replace(path, "".join(lines))
    return len(lines)


def _selected(folder: Path, keep_step_ratio: float | None = None) -> Iterator[tuple[Rollout, DecodedAnswer]]:
    """The selected lines of a folder, with what was decoded."""
    shards: dict[str, list[DecodedAnswer]] = {}
    for line in select(read_index(folder), keep_step_ratio):
        assert line.shard is not None and line.row is not None, "a right answer was decoded"
        if line.shard not in shards:
            shards[line.shard] = decoded_answers(Trajectory.load(folder / line.shard))
        rows = shards[line.shard]
        if not 0 <= line.row < len(rows):
            raise DataError(f"{folder / line.shard} has {len(rows)} rows, but the index names row {line.row}")
        yield line, rows[line.row]


def _write(path: Path, text: str, mode: Literal["a", "w"]) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}") from None


def _replace(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one as it is."""
    partial = path.with_name(path.name + ".part")
    _write(partial, text, "w")
    partial.replace(path)
