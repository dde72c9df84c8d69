"""A run as pictures: what every slot of one row holds before the first forward pass and after each one.

Made from `Step`s while a run goes on, or from a saved `Trajectory`. Frames are plain data, for whatever draws them;
they know text but no colours, widths or terminals.

Shape letters: b batch rows, l canvas slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.denoise import Step
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.core.state import DenoisingState
from unmask.core.trajectory import Kind, Trajectory
from unmask.errors import RequestError, UnknownNameError
from unmask.models.text import Text


class SlotState(StrEnum):
    """How a slot came to hold what it holds."""

    GIVEN = "given"  # prompt or infill text
    MASKED = "masked"
    COMMITTED = "committed"
    FILLED = "filled"  # closed behind an end token, no decision of the model


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of one frame."""

    state: SlotState
    text: str  # what the token adds to the text; "" while masked, and in a token whose character a later one completes
    control: bool = False  # a control token, or an id without a token: `text` is its literal
    ends: bool = False  # a token that ends the answer
    committed_at: int | None = None  # step of the commit, 0-based; None for given and masked slots
    confidence: float | None = None  # probability of the token when it was committed, 0..1; None if nobody committed it
    open: bool = False  # the step that led to this frame might have changed it
    fresh: bool = False  # committed or filled by the step that led to this frame
    revoked: bool = False  # made masked again by the step that led to this frame


@dataclass(frozen=True, slots=True)
class Frame:
    """One row after some number of forward passes. For one row that number is its NFE."""

    nfe: int  # forward passes so far, 0 = before the first
    slots: tuple[Slot, ...]
    rows_computed: int  # hidden states computed so far
    committed: int = 0  # slots that this step committed
    revoked: int = 0  # slots that this step made masked again

    @property
    def answer(self) -> tuple[Slot, ...]:
        """Slots that were or are to be decided."""
        return tuple(slot for slot in self.slots if slot.state is not SlotState.GIVEN)

    @property
    def num_masked(self) -> int:
        return sum(slot.state is SlotState.MASKED for slot in self.slots)

    @property
    def tpf(self) -> float:
        """Tokens per forward so far: committed slots up to and including the first end token, divided by NFE."""
        count = 0
        for slot in self.answer:
            count += slot.state is SlotState.COMMITTED
            if slot.ends:
                break
        return count / self.nfe if self.nfe else 0.0

    @property
    def open_range(self) -> tuple[int, int] | None:
        """First and last open slot, counted from the first answer slot; None before the first step."""
        places = [place for place, slot in enumerate(self.answer) if slot.open]
        return (places[0], places[-1]) if places else None


class Framer:
    """Makes frames of one row while somebody else drives the loop.

    Args:
        start: the first state of the run.
        text: tokenizer of the model.
        row: which row of `start` to show.
        end_ids: ids that end an answer.
    """

    def __init__(self, start: DenoisingState, text: Text, *, row: int = 0, end_ids: Sequence[int] = ()) -> None:
        if not 0 <= row < start.num_rows:
            raise RequestError(f"no row {row} in this run; it has rows 0 to {start.num_rows - 1}")
        self._row = row
        self._first = start.take(torch.tensor([row], device=start.tokens.device))
        self._pieces = _Pieces(text, int(self._first.prompt_length))
        self._end_ids = frozenset(end_ids)
        self._confidence: dict[int, float] = {}
        self._filled: set[int] = set()
        self._nfe = self._rows = 0

    def first(self) -> Frame:
        """The frame before any step."""
        return self._frame(self._first, _Change())

    def add(self, step: Step) -> Frame | None:
        """The frame after this step; None if the row had left the batch before it."""
        places = (step.row_ids == self._row).nonzero()[:, 0]
        if not len(places):
            return None
        at = int(places[0])
        confidence = step.prediction.confidence[at].tolist()
        change = _Change(
            commit={slot: confidence[slot] for slot in _slots(step.move.commit[at])},
            revoke=set() if step.move.revoke is None else _slots(step.move.revoke[at]),
            fill=_slots(step.filled[at]),
            open=_slots(step.window.open[at]),
            rows=int(step.rows_computed[at]),
        )
        return self.apply(step.after.take(places), change)

    def apply(self, after: DenoisingState, change: "_Change") -> Frame:
        """The frame after a change that led to the state `after`, (1, l)."""
        self._nfe += 1
        self._rows += change.rows
        for slot in change.revoke:
            self._confidence.pop(slot, None)
        self._confidence |= change.commit
        self._filled = (self._filled - change.revoke) | change.fill
        return self._frame(after, change)

    def _frame(self, state: DenoisingState, change: "_Change") -> Frame:
        tokens, masked = state.tokens[0].tolist(), state.masked[0].tolist()
        given, committed_at = state.given[0].tolist(), state.committed_at[0].tolist()
        exists = [slot for slot, there in enumerate(state.exists[0].tolist()) if there]
        pieces = self._pieces.of([None if masked[slot] else tokens[slot] for slot in exists])
        slots = []
        for slot, (text, control) in zip(exists, pieces, strict=True):
            if masked[slot]:
                made = Slot(SlotState.MASKED, "", open=slot in change.open, revoked=slot in change.revoke)
            elif given[slot]:
                made = Slot(SlotState.GIVEN, text, control)
            else:
                filled = slot in self._filled
                made = Slot(
                    SlotState.FILLED if filled else SlotState.COMMITTED,
                    text,
                    control,
                    ends=tokens[slot] in self._end_ids,
                    committed_at=committed_at[slot],
                    confidence=None if filled else self._confidence.get(slot),
                    open=slot in change.open,
                    fresh=slot in change.commit or slot in change.fill,
                )
            slots.append(made)
        return Frame(self._nfe, tuple(slots), self._rows, len(change.commit), len(change.revoke))


def frames(
    trajectory: Trajectory,
    text: Text,
    *,
    row: int = 0,
    end_ids: Sequence[int] = (),
    schedule: str | Schedule | None = None,
) -> Iterator[Frame]:
    """Frames of one row of a recorded run: one before the first forward pass and one after each.

    Args:
        trajectory: the record.
        text: tokenizer of the model that made it.
        row: which row.
        end_ids: ids that end an answer.
        schedule: says which slots were open; None = the one named in the record. Without a known one no slot is
            shown as open.

    Raises:
        RequestError: no such row.
    """
    alone = trajectory.of_row(row)
    plan = _plan(alone if schedule is None else None, schedule)
    memory = None if plan is None else plan.begin(alone.start)
    framer = Framer(alone.start, text, end_ids=end_ids)
    yield framer.first()
    before, *later = alone.states()
    for after, (_, step, rows) in zip(later, alone.passes.tolist(), strict=True):
        opened = set() if plan is None else _slots(plan.window(before, memory).open[0])
        yield framer.apply(after, _change(alone, step, opened, rows))
        before = after


def _plan(trajectory: Trajectory | None, schedule: str | Schedule | None) -> Schedule | None:
    """The schedule of a run. A record may come from a machine with other plug-ins, so a strange name is no error."""
    if trajectory is None:
        return None if schedule is None else SCHEDULES.make(schedule)
    try:
        return SCHEDULES.make(trajectory.facts["schedule"])
    except (KeyError, RequestError, UnknownNameError):
        return None


def _change(trajectory: Trajectory, step: int, opened: set[int], rows: int) -> "_Change":
    """What a record of one row says about one of its steps."""
    now = trajectory.step == step

    def marked(kind: Kind) -> Int[Tensor, " n"]:
        return trajectory.slot[now & (trajectory.kind == kind)]

    confidence = trajectory.confidence[now & (trajectory.kind == Kind.COMMIT)]
    return _Change(
        commit=dict(zip(marked(Kind.COMMIT).tolist(), confidence.tolist(), strict=True)),
        revoke=set(marked(Kind.REVOKE).tolist()),
        fill=set(marked(Kind.FILL).tolist()),
        open=opened,
        rows=rows,
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """What one step did to one row, as slot numbers of the whole canvas."""

    commit: dict[int, float] = field(default_factory=dict)  # slot -> confidence
    revoke: set[int] = field(default_factory=set)
    fill: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    rows: int = 0  # hidden states computed


def _slots(flags: Bool[Tensor, " l"]) -> set[int]:
    return set(flags.nonzero()[:, 0].tolist())


class _Pieces:
    """Text of every slot. A character of several byte tokens needs its neighbours, so whole runs are decoded.

    Runs end at masked slots and at the start of the answer, and are remembered: most of a canvas, and all of the
    prompt, is the same from frame to frame.
    """

    def __init__(self, text: Text, border: int) -> None:
        self._text, self._border = text, border
        self._runs: dict[tuple[int, ...], list[tuple[str, bool]]] = {}
        self._literals: dict[int, str] = {}

    def of(self, tokens: Sequence[int | None]) -> list[tuple[str, bool]]:
        """Text and "is a control token" of every slot; None marks a masked slot."""
        pieces: list[tuple[str, bool]] = []
        fresh: dict[tuple[int, ...], list[tuple[str, bool]]] = {}
        run: list[int] = []

        def close() -> None:
            if run:
                key = tuple(run)
                fresh[key] = self._runs.get(key) or self._decode(key)
                pieces.extend(fresh[key])
                run.clear()

        for slot, token in enumerate(tokens):
            if token is None or slot == self._border:
                close()
            if token is None:
                pieces.append(("", False))
            else:
                run.append(token)
        close()
        self._runs = fresh
        return pieces

    def _decode(self, run: tuple[int, ...]) -> list[tuple[str, bool]]:
        pieces = self._text.decode_pieces(run)
        return [
            (piece, False) if piece else (literal, bool(literal))
            for piece, literal in zip(pieces, map(self._literal, run), strict=True)
        ]

    def _literal(self, token: int) -> str:
        """Name of a token that is no text by itself, "" for all others."""
        if token not in self._literals:
            self._literals[token] = "" if self._text.decode([token]) else self._text.token_text(token)
        return self._literals[token]
