"""Data: from problems or a JSONL file to length-bucketed batches of clean canvases.

Everything is a function of a seed and of two counters (chunk, batch in the chunk), so that a run resumes exactly where
it stopped and the number of processes changes nothing.
"""

import json
import logging
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from unmask.errors import RequestError, UnmaskError
from unmask.evaluation.tasks.base import Problem
from unmask.evaluation.tasks.suite import training_problems
from unmask.models.text import Message, Text
from unmask.training.corruption import CleanBatch

logger = logging.getLogger(__name__)

CHUNK_EXAMPLES = 1024  # examples that are made, sorted into buckets and shuffled together
Item = TypeVar("Item")


class DataError(UnmaskError):
    """Training data that cannot be used; names the file and the line."""


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]  # with one end token
    label: str = ""  # task, for reports


@runtime_checkable
class ExampleSource(Protocol):
    """Where examples come from: an endless list of chunks, each a function of its index."""

    def chunk(self, index: int) -> list[Example]: ...


class ChatEncoder:
    """Conversations to token ids through the tokenizer's own chat template.

    Args:
        text: tokenizer and template.
        end_id: the token that ends an answer.
    """

    def __init__(self, text: Text, end_id: int) -> None:
        self.text, self.end_id = text, end_id

    def encode(self, messages: Sequence[Message], answer: str, label: str = "") -> Example:
        """Render the messages up to the answer's start, encode both, end the answer.

        Raises:
            RequestError: if the template is missing or refuses the messages.
        """
        prompt, written = self.text.encode_chat(messages), self.text.encode(answer)
        return Example(tuple(prompt), (*written, self.end_id), label)


class GeneratedExamples:
    """Problems of the built-in tasks.

    Args:
        mix: task -> share of the *tokens* seen in training (prompt, answer and an average tail), any positive scale.
            Tasks with short problems get more problems; the factor is measured on 200 problems of each task.
        encoder: text to ids.
        seed: of everything drawn.
        exclude: keys of problems that must not occur (test sets).
    """

    def __init__(
        self, mix: Mapping[str, float], encoder: ChatEncoder, seed: int, exclude: Collection[str] = ()
    ) -> None:
        self.encoder, self.seed, self.exclude = encoder, seed, exclude
        self.mix: dict[str, float] = {}
        for task, share in mix.items():
            sample = [
                self._encode(problem) for problem in islice(training_problems({task: 1.0}, seed, exclude=exclude), 200)
            ]
            tokens = sum(len(example.prompt) + len(example.answer) + 32 for example in sample) / len(sample)
            self.mix[task] = share / tokens

    def chunk(self, index: int) -> list[Example]:
        """`CHUNK_EXAMPLES` fresh problems."""
        problems = training_problems(self.mix, self.seed * 1_000_003 + index + 1, exclude=self.exclude)
        return [self._encode(problem) for problem in islice(problems, CHUNK_EXAMPLES)]

    def _encode(self, problem: Problem) -> Example:
        return self.encoder.encode([{"role": "user", "content": problem.prompt}], problem.answer, problem.task)


class FileExamples:
    """The user's own conversations; every chunk is a shuffled part of an epoch.

    Args:
        path: JSON lines, each `{"prompt": ..., "answer": ...}` or `{"messages": [...]}` ending with the assistant's
            turn.
        encoder: text to ids.
        seed: of the shuffles.
        max_length: longest prompt plus answer, tokens; longer examples are left out with a warning.
        truncate: cut answers that are too long, with a warning, instead; a cut answer has no end token.

    Raises:
        DataError: if a line is malformed or empty, or nothing is left.
    """

    def __init__(self, path: Path, encoder: ChatEncoder, seed: int, max_length: int, *, truncate: bool = False) -> None:
        self.seed = seed
        self.examples: list[Example] = []
        left_out, cut = 0, 0
        for number, messages, answer in read_conversations(path):
            try:
                example = encoder.encode(messages, answer)
            except RequestError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            room = max_length - len(example.prompt)
            if len(example.answer) > room and truncate and room > 0:
                example = replace(example, answer=example.answer[:room])
                cut += 1
            if len(example.answer) > room:
                left_out += 1
            else:
                self.examples.append(example)
        total = left_out + len(self.examples)
        if left_out:
            logger.warning("%s: %d of %d examples are longer than %d tokens and are left out", path, left_out, total,
                           max_length)  # fmt: skip
        if cut:
            logger.warning("%s: %d of %d answers are cut at %d tokens", path, cut, total, max_length)
        if not self.examples:
            raise DataError(f"{path}: no example with at most {max_length} tokens")

    def chunk(self, index: int) -> list[Example]:
        """The next `CHUNK_EXAMPLES` examples, over as many epochs as that takes."""
        total, start = len(self.examples), index * CHUNK_EXAMPLES
        chosen: list[Example] = []
        while len(chosen) < CHUNK_EXAMPLES:
            epoch, offset = divmod(start + len(chosen), total)
            order = random.Random(f"{self.seed}/epoch/{epoch}").sample(range(total), total)
            chosen.extend(self.examples[place] for place in order[offset : offset + CHUNK_EXAMPLES - len(chosen)])
        return chosen


def read_conversations(path: Path) -> Iterator[tuple[int, list[Message], str]]:
    """Line number, messages before the answer, and the answer, of every line of a JSONL file.

    Raises:
        DataError: with file and line, if the file is missing or a line is no conversation.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    if not lines:
        raise DataError(f"{path}: the file is empty; expected one JSON object a line")
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not valid JSON: {error}") from None
        yield number, *_conversation(record, where)


def _conversation(record: Any, where: str) -> tuple[list[Message], str]:
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(record).__name__}")
    if "messages" in record:
        messages = record["messages"]
    elif "prompt" in record and "answer" in record:
        messages = [
            {"role": "user", "content": record["prompt"]},
            {"role": "assistant", "content": record["answer"]},
        ]
    else:
        raise DataError(f'{where}: expected "prompt" and "answer", or "messages"; got {sorted(record)}')
    if not isinstance(messages, list) or len(messages) < 2:
        raise DataError(f"{where}: a conversation needs at least a user's and an assistant's message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f'{where}: every message needs a "role" and a "content"')
        if not isinstance(message.get("content"), str) or not message["content"].strip():
            raise DataError(f"{where}: a prompt, answer or message is empty or not text")
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{where}: the last message must be the assistant's, got {messages[-1]['role']!r}")
    return messages[:-1], messages[-1]["content"]


@dataclass(frozen=True, slots=True)
class Tail:
    """End tokens after an answer: what teaches a model to stop in a canvas that is longer than its answer.

    A model trained with tails up to some length answers worse on longer canvases, so some tails must reach the longest
    canvas; most are short, because they cost compute and teach little.
    """

    weight: float = 3.0  # of all tail slots together, in answer slots
    short: int = 16  # longest of the short ones, tokens
    middle: int = 128  # canvas (answer and tail) up to which the middle ones reach, tokens
    longest: int = 256  # canvas up to which the long ones reach, tokens
    middle_share: float = 0.15
    long_share: float = 0.08

    def draw(self, answer_length: int, rng: random.Random) -> int:
        """Number of end tokens to add, before the bucket is filled up."""
        pick = rng.random()
        if pick >= self.long_share + self.middle_share:
            return rng.randint(0, self.short)
        room = max((self.longest if pick < self.long_share else self.middle) - answer_length, 0)
        # Half of them are exactly as long as the canvases people ask for.
        return room if rng.random() < 0.5 else rng.randint(0, room)


def packed(sized: Sequence[tuple[int, Item]], batch_tokens: int) -> list[tuple[int, list[Item]]]:
    """Groups (common length, members) of at most `batch_tokens` slots, from (length, member) by ascending length."""
    groups: list[tuple[int, list[Item]]] = []
    start = 0
    while start < len(sized):
        # Sorted ascending, so a group's length is that of its last row.
        end = start + 1
        while end < len(sized) and sized[end][0] * (end + 1 - start) <= batch_tokens:
            end += 1
        groups.append((sized[end - 1][0], [member for _, member in sized[start:end]]))
        start = end
    return groups


class BucketedBatches:
    """Clean batches of about equal cost: rows of similar length, filled to a common length with end tokens.

    Args:
        source: where examples come from.
        batch_tokens: slots of one (micro-)batch at most, unless a single row is longer.
        pad_id: end token that fills up after the answer.
        seed: of tails and order.
        max_length: longest canvas with its prompt, tokens.
        tail: end tokens after an answer.
        bucket: common lengths are multiples of this, tokens.
    """

    def __init__(
        self,
        source: ExampleSource,
        *,
        batch_tokens: int,
        pad_id: int,
        seed: int,
        max_length: int,
        tail: Tail = Tail(),
        bucket: int = 16,
    ) -> None:
        self.source, self.batch_tokens, self.pad_id, self.seed = source, batch_tokens, pad_id, seed
        self.max_length, self.tail, self.bucket = max_length, tail, bucket
        self._chunk, self._taken = 0, 0
        self._groups: list[tuple[int, list[Example]]] | None = None

    @property
    def state(self) -> dict[str, int]:
        """Counters of what was taken so far."""
        return {"chunk": self._chunk, "taken": self._taken}

    @state.setter
    def state(self, state: Mapping[str, int]) -> None:
        self._chunk, self._taken, self._groups = state["chunk"], state["taken"], None

    def take(self, count: int) -> list[CleanBatch]:
        """The next batches."""
        batches = []
        for _ in range(count):
            if self._groups is None:
                self._groups = self._bucketed(self._chunk)
            if self._taken >= len(self._groups):
                self._chunk, self._taken = self._chunk + 1, 0
                self._groups = self._bucketed(self._chunk)
            batches.append(self._collate(*self._groups[self._taken]))
            self._taken += 1
        return batches

    def _bucketed(self, chunk: int) -> list[tuple[int, list[Example]]]:
        """Groups (common length, examples) of a chunk in random order."""
        rng = random.Random(f"{self.seed}/bucket/{chunk}")
        sized = []
        for example in self.source.chunk(chunk):
            written = len(example.prompt) + len(example.answer)
            if written <= self.max_length:
                wanted = written + self.tail.draw(len(example.answer), rng)
                sized.append((min(-(-wanted // self.bucket) * self.bucket, self.max_length), example))
        if not sized:
            raise DataError(f"chunk {chunk} has no example with at most {self.max_length} tokens")
        sized.sort(key=lambda pair: pair[0])
        groups = packed(sized, self.batch_tokens)
        rng.shuffle(groups)
        return groups

    def _collate(self, length: int, examples: list[Example]) -> CleanBatch:
        tokens = torch.full((len(examples), length), self.pad_id, dtype=torch.long)
        weights = torch.zeros(len(examples), length)
        for row, example in enumerate(examples):
            start, end = len(example.prompt), len(example.prompt) + len(example.answer)
            tokens[row, :end] = torch.tensor(example.prompt + example.answer)
            weights[row, start:end] = 1.0
            if end < length:
                weights[row, end:] = self.tail.weight / (length - end)
        return CleanBatch(
            tokens=tokens,
            weights=weights,
            answer_starts=torch.tensor([len(example.prompt) for example in examples]),
            exists=torch.ones(len(examples), length, dtype=torch.bool),
            labels=tuple(example.label for example in examples),
        )
