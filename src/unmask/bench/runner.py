"""Lets methods answer the same problems in turns, and counts what each answer cost.

Every batch of problems is answered by all methods before the next one is touched, and another method goes first each
time: a machine that grows slower favours nobody. What is timed is decoding alone; laying out the canvas and grading
happen outside the clock. docs/metrics.md has the definitions.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, TypeVar

import torch

from unmask.bench import environment
from unmask.bench.contestants import Baseline, Contestant, line_up
from unmask.core.metrics import Counts
from unmask.core.state import DenoisingState
from unmask.core.stopping import FinishReason
from unmask.errors import RequestError
from unmask.evaluation.problems import grade, grader
from unmask.evaluation.tasks import Problem
from unmask.generation import DEFAULT_LENGTH, Completion, Model, Recipe, complete, encode

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of one method in one repeat, with all that is needed to get it again."""

    started: str  # when the run began, UTC; the same for all of its rows
    task: str
    problem: int  # place among the problems of the run
    key: str
    prompt_hash: str  # SHA-256 of the prompt's text, first 16 digits
    prompt_tokens: int  # chat template included
    template: str  # "chat" or "plain"
    few_shot: int  # examples that the benchmark put before the prompt: none
    grader: str  # "checks", a built-in task, or "exact"
    method: str
    baseline: Baseline
    repeat: int
    batch: int  # place among the batches of a repeat
    batch_rows: int  # answers decoded together with this one, itself included
    answer: str
    correct: bool
    useful_tokens: int
    decided_tokens: int
    nfe: int
    tpf: float
    rows_computed: int
    seconds: float  # share of this answer: seconds of its batch / batch_rows
    batch_seconds: float
    tokens_per_second: float  # useful_tokens / seconds
    finish_reason: FinishReason
    changed: bool  # not the tokens of the first repeat
    drift: float | None  # share of commits whose token the cache has changed, 0..1; None = not measured
    decoder: str
    schedule: str
    cache: str
    sampling: str
    stop: str
    guidance: float
    length: int
    batch_size: int
    seed: int  # of this answer's noise
    config_hash: str  # of decoder, schedule, cache, sampling, stop, guidance and length
    model: str
    weights_hash: str | None
    parameters: int | None
    dtype: str | None
    device: str
    hardware: str
    threads: int
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A method and the model it runs on."""

    contestant: Contestant
    recipe: Recipe
    model: Model
    prompts: list[list[int]]  # of every problem, in the model's tokens
    facts: dict[str, Any]  # what all of its rows say about the model and the machine

    @property
    def key(self) -> str:
        """Tells it from the others."""
        return f"{self.contestant.name} on {self.model.source}"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one method made of one batch."""

    entrant: _Entrant
    completions: list[Completion]
    seconds: float


def bench(
    model: Model,
    problems: Sequence[Problem],
    contestants: Iterable[Contestant] = (),
    *,
    repeats: int = 1,
    length: int = DEFAULT_LENGTH,
    batch_size: int = 1,
    seed: int = 0,
    drift: bool = False,
    others: Mapping[str, Model] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Compare methods; both baselines always take part.

    Rows come in the order in which the answers were decoded, and as soon as all methods have answered a batch. A method
    draws the same noise in every repeat, so a repeat measures the time again and nothing else.

    Args:
        problems: of any tasks; the tasks take turns.
        contestants: methods besides the baselines.
        repeats: how often everything is done.
        length: answer slots, tokens.
        batch_size: problems of one task decoded together.
        seed: problem i draws from stream seed + i, whatever the method and the batch.
        drift: also measure how many commits each cache has changed, in a run of its own outside the clock.
        others: the models that contestants name as their own, by these names.
        clock: tells seconds.
        tick: called outside the clock whenever a method has decoded a batch, also in the warm-up; see `num_ticks`.

    Raises:
        RequestError, UnknownNameError, CompositionError: bad input, before anything is computed.
    """
    for name, value in (("repeats", repeats), ("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise RequestError(f"{name} must be at least 1: got {value}")
    if not problems:
        raise RequestError("got no problems; give at least one")
    others = others or {}
    lined = line_up(contestants, model.facts, {name: one.facts for name, one in others.items()})
    used = {one.model: model if one.model is None else others[one.model] for one, _ in lined}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    about = {name: (encoded(one, problems, length), _facts_of(one, started)) for name, one in used.items()}
    entrants = [
        _Entrant(contestant, recipe, used[contestant.model], *about[contestant.model]) for contestant, recipe in lined
    ]
    return _Run(list(problems), entrants, length, batch_size, seed, drift, clock, tick).rows(repeats)


@dataclass(frozen=True, slots=True)
class _Run:
    """A checked benchmark, ready to go."""

    problems: list[Problem]
    entrants: list[_Entrant]
    length: int
    batch_size: int
    seed: int
    drift: bool
    clock: Callable[[], float]
    tick: Callable[[], None]
    verdicts: dict[tuple[int, str], bool] = field(default_factory=dict)  # by problem and text
    first_tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # by method and problem
    drifts: dict[tuple[str, int], float | None] = field(default_factory=dict)  # by method and problem

    def rows(self, repeats: int) -> Iterator[Row]:
        batches = batched(self.problems, self.batch_size)
        for entrant in self.entrants:  # warm-up, not counted
            complete(entrant.model, self._state(entrant, batches[0]), entrant.recipe, record=False)
            self.tick()
        for repeat in range(repeats):
            for number, batch in enumerate(batches):
                turns = [self._turn(batch, entrant) for entrant in rotated(self.entrants, number + repeat)]
                self._grade(batch, turns)
                if self.drift and repeat == 0:
                    self._measure_drift(batch)
                for turn in turns:
                    yield from self._turn_rows(turn, batch, number, repeat)

    def _state(self, entrant: _Entrant, batch: list[int]) -> DenoisingState:
        facts = entrant.model.facts
        return DenoisingState.start(
            [entrant.prompts[index] for index in batch],
            self.length,
            mask_id=facts.mask_id,
            end_ids=facts.end_ids,
            shift=facts.shift,
            seeds=[self.seed + index for index in batch],
            device=entrant.model.device,
        )

    def _turn(self, batch: list[int], entrant: _Entrant) -> _Turn:
        state = self._state(entrant, batch)
        begun = self.clock()
        completions = complete(entrant.model, state, entrant.recipe, record=False)
        seconds = self.clock() - begun
        self.tick()
        return _Turn(entrant, completions, seconds)

    def _grade(self, batch: list[int], turns: list[_Turn]) -> None:
        """Grade what no other method or repeat has answered to the same problem."""
        answers = {
            (index, completion.text): None
            for turn in turns
            for index, completion in zip(batch, turn.completions, strict=True)
            if (index, completion.text) not in self.verdicts
        }
        verdicts = grade([self.problems[index] for index, _ in answers], [text for _, text in answers])
        self.verdicts.update(zip(answers, verdicts, strict=True))

    def _measure_drift(self, batch: list[int]) -> None:
        """Decode once more, with a second forward pass per step; nothing stored is nothing changed."""
        for entrant in self.entrants:
            found: list[float | None] = [0.0] * len(batch)
            if entrant.recipe.cache.keeps:
                state = self._state(entrant, batch)
                completions = complete(entrant.model, state, entrant.recipe, record=False, drift=True)
                found = [completion.drift for completion in completions]
            self.drifts.update(zip(((entrant.key, index) for index in batch), found, strict=True))

    def _turn_rows(self, turn: _Turn, batch: list[int], number: int, repeat: int) -> Iterator[Row]:
        entrant = turn.entrant
        config: dict[str, Any] = {**entrant.recipe.specs(), "length": self.length}
        config["guidance"] = environment.guidance_of(entrant.model.predictor)
        seconds = turn.seconds / len(batch)
        for index, completion in zip(batch, turn.completions, strict=True):
            counts = Counts(
                len(completion.tokens), completion.finish_reason == "stop", completion.nfe, completion.rows_computed
            )
            problem, key = self.problems[index], (entrant.key, index)
            yield Row(
                task=problem.task,
                problem=index,
                key=problem.key,
                prompt_hash=digest(problem.prompt, 16),
                prompt_tokens=len(entrant.prompts[index]),
                few_shot=0,
                grader=grader(problem),
                method=entrant.contestant.name,
                baseline=entrant.contestant.baseline,
                repeat=repeat,
                batch=number,
                batch_rows=len(batch),
                answer=completion.text,
                correct=self.verdicts[index, completion.text],
                useful_tokens=counts.useful_tokens,
                decided_tokens=counts.decided_tokens,
                nfe=counts.nfe,
                tpf=counts.tpf,
                rows_computed=counts.rows_computed,
                seconds=seconds,
                batch_seconds=turn.seconds,
                tokens_per_second=counts.tokens_per_second(seconds),
                finish_reason=completion.finish_reason,
                changed=self.first_tokens.setdefault(key, completion.tokens) != completion.tokens,
                drift=self.drifts.get(key),
                batch_size=self.batch_size,
                seed=self.seed + index,
                config_hash=digest(json.dumps(config, sort_keys=True), 12),
                **config,
                **entrant.facts,
            )


def _facts_of(model: Model, started: str) -> dict[str, Any]:
    """What all rows of a model's methods have in common."""
    return {
        "started": started,
        "template": "chat" if model.text.has_template else "plain",
        "model": " + ".join(model.origin.values()),
        "weights_hash": environment.weights_hash(model.source, model.adapter),
        "parameters": environment.num_parameters(model),
        "dtype": environment.dtype_of(model),
        "device": str(model.device),
        "hardware": environment.hardware(model.device),
        "threads": torch.get_num_threads(),
        "versions": environment.versions(),
    }


def encoded(model: Model, problems: Sequence[Problem], length: int) -> list[list[int]]:
    """Token ids of every prompt.

    Raises:
        RequestError: an empty prompt, or one that leaves no room in the trained context.
    """
    prompts = [[token for token in encode(model, problem.prompt) if token is not None] for problem in problems]
    room = model.facts.max_length
    sizes = [len(prompt) for prompt in prompts]
    longest = max(sizes)
    if longest >= room:
        number = sizes.index(longest)
        raise RequestError(
            f"problem {number} ({problems[number].task}) has a prompt of {longest} tokens, but the model was trained "
            f"on contexts of {room}; leave it out"
        )
    crowded = sum(size + length > room for size in sizes)
    if crowded:
        warnings.warn(
            f"{crowded} of {len(problems)} prompts and their answers take up to {longest + length} tokens, more than "
            f"the trained context of {room}; expect worse answers, or use a smaller length",
            stacklevel=3,
        )
    return prompts


def batched(problems: Sequence[Problem], size: int) -> list[list[int]]:
    """Places of the problems in batches of one task each; the tasks take turns."""
    by_task: dict[str, list[int]] = {}
    for index, problem in enumerate(problems):
        by_task.setdefault(problem.task, []).append(index)
    lanes = [[lane[first : first + size] for first in range(0, len(lane), size)] for lane in by_task.values()]
    return [batch for turn in zip_longest(*lanes) for batch in turn if batch]


def num_ticks(methods: int, problems: Sequence[Problem], batch_size: int, repeats: int) -> int:
    """How often `bench` calls `tick`."""
    return methods * (1 + len(batched(problems, batch_size)) * repeats)


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The items from place `by` on, then those before it."""
    by %= len(items)
    return [*items[by:], *items[:by]]


def digest(text: str, digits: int) -> str:
    """First digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:digits]
