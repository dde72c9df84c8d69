"""A run as pictures: what every slot of one row holds before the first forward pass and after each one.

Made from `Step`s while a run goes on, or from a saved `Trajectory`. Frames are plain data, for whatever draws them;
they know text but no colours, widths or terminals.

Shape letters: b batch rows, l canvas slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from unmask.core.denoise import Step
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.core.state import DenoisingState
from unmask.core.trajectory import Trajectory
from unmask.core.views import NO_BELIEF, Views
from unmask.errors import RequestError, UnknownNameError
from unmask.show.reading import Change, Pieces, Sight, change_of, covered, slots_of
from unmask.show.words import Reader


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
    lost: str = ""  # the text that this revocation took away
    # the rest is known from views only, and is about the step that led to this frame
    guess: str = ""  # the model's candidate for a masked slot
    sure: float | None = None  # its probability, 0..1; None if the model was not asked
    guess_ends: bool = False  # the candidate is a token that ends the answer
    draft: str = ""  # what the model was shown here although the slot was masked
    draft_ends: bool = False  # that was a token that ends the answer
    hidden: bool = False  # did not exist for the model yet


@dataclass(frozen=True, slots=True)
class Extra:
    """A slot that stood behind the canvas for one forward pass: a shadow, a replica, a candidate."""

    place: int  # the slot whose position it took, counted as in `Frame.slots`
    target: int | None  # the slot it was asked about; None = it was there to be seen
    text: str  # its token
    masked: bool  # that token is the mask
    guess: str = ""  # the model's candidate for the target, asked in this way
    sure: float | None = None  # its probability, 0..1
    belief: float | None = None  # probability of the token that the target held; None if that was masked
    agrees: bool | None = None  # is `guess` what the target held, or its own candidate if it was masked?


@dataclass(frozen=True, slots=True)
class Frame:
    """One row after some number of forward passes. For one row that number is its NFE."""

    nfe: int  # forward passes so far, 0 = before the first
    slots: tuple[Slot, ...]
    rows_computed: int  # hidden states computed so far
    committed: int = 0  # slots that this step committed
    revoked: int = 0  # slots that this step made masked again
    extras: tuple[Extra, ...] = ()  # slots behind the canvas at this step
    branch: int | None = None  # which candidate canvas won this step; None if there were none

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
        end_ids: ids that end an answer, beside those the state names.
        views: also take in what the model was shown and how sure it was.
    """

    def __init__(
        self, start: DenoisingState, text: Reader, *, row: int = 0, end_ids: Sequence[int] = (), views: bool = False
    ) -> None:
        if not 0 <= row < start.num_rows:
            raise RequestError(f"no row {row} in this run; it has rows 0 to {start.num_rows - 1}")
        self._row = row
        self._first = start.take(torch.tensor([row], device=start.tokens.device))
        self._pieces = Pieces(text, int(self._first.prompt_length))
        self._text, self._views = text, views
        self._before = self._first
        self._end_ids = frozenset((*end_ids, *start.end_ids))
        self._confidence: dict[int, float] = {}
        self._written: dict[int, str] = {}  # text of every slot in the frame before
        self._filled: set[int] = set()
        self._nfe = self._rows = 0

    def first(self) -> Frame:
        """The frame before any step."""
        return self._frame(self._first, Change())

    def add(self, step: Step) -> Frame | None:
        """The frame after this step; None if the row had left the batch before it."""
        places = (step.row_ids == self._row).nonzero()[:, 0]
        if not len(places):
            return None
        at = int(places[0])
        confidence = step.confidence[at].tolist()
        change = Change(
            commit={slot: confidence[slot] for slot in slots_of(step.move.commit[at])},
            revoke=set() if step.move.revoke is None else slots_of(step.move.revoke[at]),
            fill=slots_of(step.filled[at]),
            open=slots_of(step.window.open[at]),
            rows=int(step.rows_computed[at]),
            seen=Views.join([Views.of(step, 0).only(step.row_ids == self._row)]) if self._views else None,
        )
        return self.apply(step.after.take(places), change)

    def apply(self, after: DenoisingState, change: Change) -> Frame:
        """The frame after a change that led to the state `after`, (1, l)."""
        self._nfe += 1
        self._rows += change.rows
        for slot in change.revoke:
            self._confidence.pop(slot, None)
        self._confidence |= change.commit
        self._filled = (self._filled - change.revoke) | change.fill
        return self._frame(after, change)

    def _frame(self, state: DenoisingState, change: Change) -> Frame:
        tokens, masked = state.tokens[0].tolist(), state.masked[0].tolist()
        given, committed_at = state.given[0].tolist(), state.committed_at[0].tolist()
        exists = [slot for slot, there in enumerate(state.exists[0].tolist()) if there]
        pieces = self._pieces.of([None if masked[slot] else tokens[slot] for slot in exists])
        sight = Sight.of(change.seen, self._text)
        slots = []
        for slot, (text, control) in zip(exists, pieces, strict=True):
            if masked[slot]:
                lost = self._written.get(slot, "") if slot in change.revoke else ""
                guess, sure = sight.guesses.get(slot, ("", None))
                made = Slot(
                    SlotState.MASKED,
                    "",
                    open=slot in change.open,
                    revoked=slot in change.revoke,
                    lost=lost,
                    guess=guess,
                    sure=sure,
                    guess_ends=sight.candidates.get(slot) in self._end_ids,
                    draft=sight.drafts.get(slot, ""),
                    draft_ends=sight.shown.get(slot) in self._end_ids,
                    hidden=slot in sight.hidden,
                )
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
        extras = self._extras(change.seen, sight, {slot: place for place, slot in enumerate(exists)})
        self._before, self._written = state, {slot: made.text for slot, made in zip(exists, slots, strict=True)}
        counts = len(change.commit), len(change.revoke)
        return Frame(self._nfe, tuple(slots), self._rows, *counts, extras, sight.branch)

    def _extras(self, seen: Views | None, sight: Sight, places: dict[int, int]) -> tuple[Extra, ...]:
        """Extra slots of a step, by the slots they are about."""
        if seen is None or not len(seen.extras):
            return ()
        tokens, masked = self._before.tokens[0].tolist(), self._before.masked[0].tolist()
        extras = []
        for (_, slot, token, position, target), belief in zip(seen.extras.tolist(), seen.belief.tolist(), strict=True):
            if position not in places:
                continue
            about = target if target in places else None
            answer = sight.candidates.get(slot)
            guess, sure = sight.guesses.get(slot, ("", None))
            agrees = None
            if about is not None and answer is not None:
                held = sight.candidates.get(target) if masked[target] else tokens[target]
                agrees = None if held is None else answer == held
            extras.append(
                Extra(
                    places[position],
                    None if about is None else places[target],
                    self._text.token_text(token),
                    token == self._before.mask_id,
                    guess,
                    sure,
                    None if belief == NO_BELIEF else belief,
                    agrees,
                )
            )
        return tuple(sorted(extras, key=lambda extra: extra.place if extra.target is None else extra.target))


def frames(
    trajectory: Trajectory,
    text: Reader,
    *,
    row: int = 0,
    end_ids: Sequence[int] = (),
    schedule: str | Schedule | None = None,
) -> Iterator[Frame]:
    """Frames of one row of a recorded run: one before the first forward pass and one after each.

    Args:
        trajectory: the record.
        text: tokenizer of the model that made it, or the words in the record.
        row: which row.
        end_ids: ids that end an answer, beside those the record names.
        schedule: says which slots were open; None = what the record saw, else the schedule it names. Without a known
            one no slot is shown as open.

    Raises:
        RequestError: no such row.
    """
    alone = trajectory.of_row(row)
    views = alone.views
    plan = None if views is not None and schedule is None else _plan(alone if schedule is None else None, schedule)
    memory = None if plan is None else plan.begin(alone.start)
    framer = Framer(alone.start, text, end_ids=end_ids)
    yield framer.first()
    before, *later = alone.states()
    numbers = torch.arange(len(alone.passes))
    for number, (after, (_, step, rows)) in enumerate(zip(later, alone.passes.tolist(), strict=True)):
        seen = None if views is None else views.only(numbers == number)
        if plan is not None:
            opened = slots_of(plan.window(before, memory).open[0])
        else:
            opened = set() if seen is None else covered(seen.open)
        yield framer.apply(after, change_of(alone, step, opened, rows, seen))
        before = after


def _plan(trajectory: Trajectory | None, schedule: str | Schedule | None) -> Schedule | None:
    """The schedule of a run. A record may come from a machine with other plug-ins, so a strange name is no error."""
    if trajectory is None:
        return None if schedule is None else SCHEDULES.make(schedule)
    try:
        return SCHEDULES.make(trajectory.facts["schedule"])
    except (KeyError, RequestError, UnknownNameError):
        return None
