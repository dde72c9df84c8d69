"""Replay: training samples from how answers were decoded, one per step that left something in the answer.

Source: the sample building of WINO+, the release that goes with Hong et al., WINO (arXiv 2507.18578). The sample of a
step shows what was committed before it and has the slots of this step as targets; what was taken back later counts for
the commit that stayed. Deviates: what lies behind a settled end token is masked, as the model meets it when it decodes,
and so is no target; canvases of different lengths are padded with slots that do not exist. Published: end tokens that
everybody sees (`end_padding`).

Knows tokens and steps; knows neither tokenizers nor models.

Shape letters: b rows of the batch or trajectory, l slots of the canvas.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.state import NEVER
from unmask.core.trajectory import Kind, Trajectory
from unmask.training.corruption import CleanBatch, MaskedBatch
from unmask.training.data import DataError, packed

ALWAYS = NEVER  # "step" of given slots, as in a state: shown in every sample
LATER = torch.iinfo(torch.int32).max  # "step" of slots that no decision of the model has filled: masked in every sample


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    """One canvas and when each slot got the token that stayed."""

    tokens: Int[Tensor, " l"]
    committed_at: Int[Tensor, " l"]  # step, ALWAYS or LATER
    prompt_length: int
    end_id: int  # what stands behind the answer
    finished: bool = True  # no slot is left undecided
    label: str = ""  # task, for reports

    @property
    def steps(self) -> list[int]:
        """Steps that left something in the answer, ascending: one sample each."""
        decided = (self.committed_at != ALWAYS) & (self.committed_at != LATER)
        return sorted(set(self.committed_at[decided].tolist()))


def decoded_answers(trajectory: Trajectory) -> list[DecodedAnswer]:
    """Every row of a trajectory."""
    start = trajectory.start
    tokens, committed_at = _last_events(trajectory)
    undecided = (committed_at == LATER) & (tokens == start.mask_id)
    return [
        DecodedAnswer(
            tokens=tokens[row, start.exists[row]],
            committed_at=committed_at[row, start.exists[row]],
            prompt_length=int(start.prompt_length[row]),
            end_id=start.end_ids[0] if start.end_ids else start.mask_id,
            finished=not bool(undecided[row].any()),
        )
        for row in range(start.num_rows)
    ]


def _last_events(trajectory: Trajectory) -> tuple[Int[Tensor, "b l"], Int[Tensor, "b l"]]:
    """Token of every slot at the end, and step of the commit that stayed; from the last event of each slot."""
    start, count = trajectory.start, len(trajectory.row)
    before = torch.where(start.masked, LATER, start.committed_at)
    if not count:
        return start.tokens, before
    place = trajectory.row * start.num_slots + trajectory.slot
    # Events of a row are in order, and a step does at most one thing to a slot.
    last = torch.full((start.tokens.numel(),), -1).scatter_reduce_(0, place, torch.arange(count), "amax")
    last = last.view_as(start.tokens)
    happened, kind = last >= 0, trajectory.kind[last]
    token = trajectory.token[last].masked_fill(kind == Kind.REVOKE, start.mask_id)
    step = trajectory.step[last].masked_fill(kind != Kind.COMMIT, LATER)
    return torch.where(happened, token, start.tokens), torch.where(happened, step, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch(CleanBatch):
    """Clean canvases that already know what is hidden of them; weights are above 0 at the targets only."""

    hidden: Bool[Tensor, "b l"]


@dataclass(frozen=True, slots=True)
class Replay:
    """The corruption that goes with `TrajectorySamples`: hides what was not committed yet. Draws nothing."""

    mask_id: int

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        if not isinstance(clean, ReplayBatch):
            raise TypeError(f"Replay needs batches of TrajectorySamples: got {type(clean).__name__}")
        return MaskedBatch(
            tokens=clean.tokens.masked_fill(clean.hidden, self.mask_id),
            masked=clean.hidden,
            targets=clean.tokens,
            weights=clean.weights,
            exists=clean.exists,
            answer_starts=clean.answer_starts,
        )


class TrajectorySamples:
    """Batches of samples, every sample once an epoch, in random order; a `BatchSource` for use with `Replay`.

    Args:
        answers: what was decoded, see `rollouts.read_answers` and `decoded_answers`.
        batch_tokens: slots of one (micro-)batch at most, unless a single row is longer.
        seed: of the order.
        end_padding: compat: fill every canvas up to so many slots with end tokens, and show them and what lies behind a
            settled end token in every sample; the authors take 448. None = nothing is shown that decoding would not
            have shown.

    Raises:
        DataError: no sample, an answer that is not finished, or a canvas that is longer than `end_padding`.
    """

    def __init__(
        self, answers: Iterable[DecodedAnswer], *, batch_tokens: int, seed: int, end_padding: int | None = None
    ) -> None:
        self.answers = [answer if end_padding is None else _end_padded(answer, end_padding) for answer in answers]
        if not all(answer.finished for answer in self.answers):
            raise DataError("a trajectory was not decoded to its end: slots are left undecided")
        self.samples = [(number, step) for number, answer in enumerate(self.answers) for step in answer.steps]
        if not self.samples:
            raise DataError("no trajectory to learn from: none was kept, or none has a step")
        self.batch_tokens, self.seed = batch_tokens, seed
        self._epoch, self._taken = 0, 0
        self._groups: list[tuple[int, list[tuple[int, int]]]] | None = None

    @property
    def state(self) -> dict[str, int]:
        """Counters of what was taken so far."""
        return {"epoch": self._epoch, "taken": self._taken}

    @state.setter
    def state(self, state: Mapping[str, int]) -> None:
        self._epoch, self._taken, self._groups = state["epoch"], state["taken"], None

    def take(self, count: int) -> list[CleanBatch]:
        """The next batches."""
        batches: list[CleanBatch] = []
        for _ in range(count):
            if self._groups is None:
                self._groups = self._shuffled(self._epoch)
            if self._taken >= len(self._groups):
                self._epoch, self._taken = self._epoch + 1, 0
                self._groups = self._shuffled(self._epoch)
            batches.append(self._collate(*self._groups[self._taken]))
            self._taken += 1
        return batches

    def _shuffled(self, epoch: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """Groups (common length, samples) of an epoch in random order; canvases of one length are mixed."""
        rng = random.Random(f"{self.seed}/replay/{epoch}")
        order = rng.sample(self.samples, len(self.samples))
        sized = sorted(((len(self.answers[sample[0]].tokens), sample) for sample in order), key=lambda pair: pair[0])
        groups = packed(sized, self.batch_tokens)
        rng.shuffle(groups)
        return groups

    def _collate(self, length: int, samples: list[tuple[int, int]]) -> ReplayBatch:
        size = (len(samples), length)
        tokens, committed_at = torch.zeros(size, dtype=torch.long), torch.full(size, ALWAYS)
        exists = torch.zeros(size, dtype=torch.bool)
        chosen = [self.answers[number] for number, _ in samples]
        for row, answer in enumerate(chosen):
            own = len(answer.tokens)
            tokens[row, :own], tokens[row, own:] = answer.tokens, answer.end_id
            committed_at[row, :own] = answer.committed_at
            exists[row, :own] = True
        steps = torch.tensor([[step] for _, step in samples])
        return ReplayBatch(
            tokens=tokens,
            weights=(committed_at == steps).float(),
            answer_starts=torch.tensor([answer.prompt_length for answer in chosen]),
            exists=exists,
            labels=tuple(answer.label for answer in chosen),
            hidden=committed_at >= steps,
        )


def _end_padded(answer: DecodedAnswer, length: int) -> DecodedAnswer:
    missing = length - len(answer.tokens)
    if missing < 0:
        raise DataError(f"a canvas of {len(answer.tokens)} slots does not fit into end_padding={length}")
    shown = torch.where(answer.committed_at == LATER, ALWAYS, answer.committed_at)
    ends = answer.tokens.new_full((missing,), answer.end_id)
    return replace(
        answer,
        tokens=torch.cat((answer.tokens, ends)),
        committed_at=torch.cat((shown, shown.new_full((missing,), ALWAYS))),
    )
