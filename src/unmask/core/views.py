"""What the model was shown at each step beyond the committed canvas, and how sure it was of every slot asked about.

An optional part of a `Trajectory`, for pictures: drafts, extra slots, windows, winning branches, candidates. Tables
have a row per thing seen; their first column is the forward pass, as a row number of `Trajectory.passes`.

Shape letters: b rows, l canvas slots, t forward passes, n entries of any table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.denoise import Step

NO_BELIEF = -1.0
_COLUMNS = {"open": 3, "hidden": 3, "drafts": 3, "branches": 2, "asked": 3, "extras": 5}
_PARTNERS = {"confidence": "asked", "belief": "extras"}  # a value for each entry of the table


@dataclass(frozen=True, slots=True)
class Views:
    """What was seen at some forward passes."""

    open: Int[Tensor, "_ 3"]  # pass, first, stop: runs of slots that a move might touch
    hidden: Int[Tensor, "_ 3"]  # pass, first, stop: runs of slots that did not exist for the model yet
    drafts: Int[Tensor, "_ 3"]  # pass, slot, token that was shown there in place of the state's
    branches: Int[Tensor, "_ 2"]  # pass, which candidate canvas won
    asked: Int[Tensor, "asked 3"]  # pass, slot (extra slots count on behind the canvas), candidate
    confidence: Float[Tensor, " asked"]  # probability of that candidate, 0..1
    extras: Int[Tensor, "extras 5"]  # pass, slot (as in `asked`), token, position, target (-1: it was only a key)
    belief: Float[Tensor, " extras"]  # probability of the token its target held, NO_BELIEF where that was masked

    @classmethod
    def of(cls, step: Step, first: int) -> "Views":
        """What one step showed; `first` is the pass number of its first row."""
        before, canvas, work = step.before, step.canvas, step.prediction.work
        shown = canvas.tokens[:, : before.num_slots]
        row, slot = ((shown != before.tokens) & before.exists).nonzero(as_tuple=True)
        drafts = torch.stack((first + row, slot, shown[row, slot]), dim=1)
        branches = drafts.new_zeros(0, 2)
        if step.move.branch is not None:
            numbers = torch.arange(first, first + before.num_rows, device=drafts.device)
            branches = torch.stack((numbers, step.move.branch), dim=1)
        extras, belief = _extras(step, first)
        ranks = torch.arange(work.asked.shape[1], device=drafts.device)[None]
        row, rank = (ranks < work.num_asked[:, None]).nonzero(as_tuple=True)
        slot = work.asked[row, rank]
        asked = torch.stack((first + row, slot, step.prediction.tokens[row, slot]), dim=1)
        return cls(
            _runs(step.window.open, first),
            _runs(before.exists & ~step.window.visible, first),
            drafts,
            branches,
            asked,
            step.prediction.confidence[row, slot].half(),
            extras,
            belief,
        )

    @classmethod
    def join(cls, parts: Sequence["Views"]) -> "Views":
        """All of them, in order, on the CPU."""
        parts = parts or [cls.none()]
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]).cpu() for field in fields(cls)))

    @classmethod
    def none(cls) -> "Views":
        """Nothing seen."""
        tables = {name: torch.zeros(0, width, dtype=torch.long) for name, width in _COLUMNS.items()}
        return cls(**tables, **{name: torch.zeros(0, dtype=torch.half) for name in _PARTNERS})

    def only(self, passes: Bool[Tensor, " t"]) -> "Views":
        """What was seen at the given passes, numbered anew."""
        numbers = passes.cumsum(0) - 1
        kept = {name: passes[getattr(self, name)[:, 0]] for name in _COLUMNS}
        tables = {name: getattr(self, name)[kept[name]] for name in _COLUMNS}
        for table in tables.values():
            table[:, 0] = numbers[table[:, 0]]
        return Views(**tables, **{name: getattr(self, name)[kept[table]] for name, table in _PARTNERS.items()})

    def fits(self, num_passes: int, num_slots: int) -> bool:
        """Can these be views of so many passes over so many slots?"""
        for name, width in _COLUMNS.items():
            table = getattr(self, name)
            if table.ndim != 2 or table.shape[1] != width or not within(table[:, 0], 0, num_passes):
                return False
        for name, partner in _PARTNERS.items():
            if getattr(self, name).shape != getattr(self, partner).shape[:1]:
                return False
        places = (self.drafts[:, 1], self.extras[:, 3], self.extras[:, 4])
        runs = (self.open[:, 1:], self.hidden[:, 1:])
        return all(within(part, -1, num_slots) for part in places) and all(
            within(run, 0, num_slots + 1) for run in runs
        )


def within(values: Tensor, low: int, stop: int) -> bool:
    """Are all values at least `low` and below `stop`?"""
    return not values.numel() or (int(values.min()) >= low and int(values.max()) < stop)


def _runs(flags: Bool[Tensor, "b l"], first: int) -> Int[Tensor, "n 3"]:
    row, start = (flags & ~functional.pad(flags, (1, 0))[:, :-1]).nonzero(as_tuple=True)
    last = (flags & ~functional.pad(flags, (0, 1))[:, 1:]).nonzero(as_tuple=True)[1]
    return torch.stack((first + row, start, last + 1), dim=1)


def _extras(step: Step, first: int) -> tuple[Int[Tensor, "n 5"], Float[Tensor, " n"]]:
    before, canvas, prediction = step.before, step.canvas, step.prediction
    slots = before.num_slots
    exists = canvas.extra_exists
    if exists is None:
        exists = torch.ones_like(canvas.tokens[:, slots:], dtype=torch.bool)
    row, place = exists.nonzero(as_tuple=True)
    slot = slots + place
    position = canvas.positions[row, slot]
    target = position if canvas.targets is None else canvas.targets[row, place]
    extras = torch.stack((first + row, slot, canvas.tokens[row, slot], position, target), dim=1)
    belief = torch.full_like(target, NO_BELIEF, dtype=torch.half)
    if prediction.targets is not None and len(row):
        held = (target >= 0) & ~before.masked[row, target.clamp_min(0)]
        belief = torch.where(held, prediction.confidence_in(before.tokens)[row, slot].half(), belief)
    return extras, belief
