"""The record of a run: every commit, revocation and fill. One format for traces, tests, training and pictures.

On request it also has what the model was shown at each step (`core/views.py`) and the text of its tokens; both are for
pictures, and replaying needs neither.

Shape letters: b rows, l slots, e events, t (row, step) pairs.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.denoise import Step
from unmask.core.state import DenoisingState, Move
from unmask.core.views import Views, within
from unmask.errors import RequestError

FORMAT = "unmask-trajectory-2"
READABLE = (FORMAT, "unmask-trajectory-1")  # 1: whole numbers of 64 bits, and neither views nor words
_STATE_FIELDS = ("tokens", "masked", "given", "exists", "committed_at", "prompt_length", "step", "seed")
_EVENT_FIELDS = ("row", "step", "kind", "slot", "token", "confidence", "passes")
_VIEW_FIELDS = tuple(Views.__dataclass_fields__)


class Kind(IntEnum):
    """What happened to a slot."""

    COMMIT = 0
    REVOKE = 1
    FILL = 2  # closed behind an end token, no decision of the model


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All rows of a run, from the first state to the last."""

    start: DenoisingState
    row: Int[Tensor, " e"]
    step: Int[Tensor, " e"]  # the row's own step, 0-based
    kind: Int[Tensor, " e"]
    slot: Int[Tensor, " e"]
    token: Int[Tensor, " e"]
    confidence: Float[Tensor, " e"]  # probability of the token when it was committed, 0..1; 0 for other kinds
    passes: Int[Tensor, "t 3"]  # (row, step, hidden states computed) of every forward pass, also of idle ones
    facts: dict[str, str]  # free text: model, decoder spec, schedule, cache
    views: Views | None = None  # what the model was shown
    words: dict[int, str] = field(default_factory=dict)  # text of tokens; half a character as surrogate escapes
    controls: dict[int, str] = field(default_factory=dict)  # literals of tokens that are no text

    @classmethod
    def collect(
        cls,
        start: DenoisingState,
        steps: Iterable[Step],
        facts: dict[str, str] | None = None,
        *,
        views: bool = False,
    ) -> "Trajectory":
        """Run a denoising loop to its end and keep what happened, with `views` also what the model was shown."""
        recorder = Recorder(start, views=views)
        for step in steps:
            recorder.add(step)
        return recorder.trajectory(facts)

    @classmethod
    def join(cls, parts: Sequence["Trajectory"]) -> "Trajectory":
        """All rows of several runs of one model, in order, without views; facts are those that all runs share."""
        first = parts[0]
        start, rows, passes = first.start, [first.row], [first.passes]
        for part in parts[1:]:
            rows.append(part.row + start.num_rows)
            passes.append(torch.cat((part.passes[:, :1] + start.num_rows, part.passes[:, 1:]), dim=1))
            start = start.join(part.start)
        events: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in ("step", "kind", "slot", "token", "confidence")
        }
        return cls(
            start=start,
            row=torch.cat(rows),
            passes=torch.cat(passes),
            facts={k: v for k, v in first.facts.items() if all(part.facts.get(k) == v for part in parts)},
            words={token: word for part in parts for token, word in part.words.items()},
            controls={token: word for part in parts for token, word in part.controls.items()},
            **events,
        )

    def nfe(self, row: int) -> int:
        """Forward passes of one row."""
        return int((self.passes[:, 0] == row).sum())

    def rows_computed(self, row: int) -> int:
        """Hidden states computed for one row."""
        return int(self.passes[self.passes[:, 0] == row, 2].sum())

    def of_row(self, row: int) -> "Trajectory":
        """The trajectory of one row alone, as row 0."""
        if not 0 <= row < self.start.num_rows:
            raise RequestError(f"no row {row} in this trajectory; it has rows 0 to {self.start.num_rows - 1}")
        mine, my_passes = self.row == row, self.passes[:, 0] == row
        passes = self.passes[my_passes].clone()
        passes[:, 0] = 0
        events = {name: getattr(self, name)[mine] for name in ("step", "kind", "slot", "token", "confidence")}
        return replace(
            self,
            start=self.start.take(torch.tensor([row])),
            row=torch.zeros_like(self.row[mine]),
            passes=passes,
            views=self.views and self.views.only(my_passes),
            **events,
        )

    def states(self, row: int = 0) -> Iterator[DenoisingState]:
        """Replay one row: its first state, then the state after every step."""
        alone = self.of_row(row)
        state = alone.start
        yield state
        for step in range(int(state.step[0]), int(state.step[0]) + alone.nfe(0)):
            state = alone._replayed(state, step)
            yield state

    def final(self, row: int = 0) -> DenoisingState:
        """The last state of one row, from its moves alone."""
        *_, last = self.states(row)
        return last

    def _replayed(self, state: DenoisingState, step: int) -> DenoisingState:
        def marked(kind: Kind) -> tuple[Tensor, Tensor]:
            chosen = (self.step == step) & (self.kind == kind)
            slots = self.slot[chosen]
            return torch.zeros_like(state.masked[0]).index_fill(0, slots, True), state.tokens[0].scatter(
                0, slots, self.token[chosen]
            )

        commit, tokens = marked(Kind.COMMIT)
        revoke, _ = marked(Kind.REVOKE)
        filled, fill_tokens = marked(Kind.FILL)
        after = state.apply(Move(commit[None], tokens[None], revoke[None]))
        return after.fill(filled[None], fill_tokens[filled][:1]) if bool(filled.any()) else after

    def save(self, path: str | Path) -> None:
        """Write one safetensors file (atomically: a broken write leaves no half file)."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {f"start.{name}": _narrow(getattr(self.start, name)) for name in _STATE_FIELDS}
        tensors |= {name: _narrow(getattr(self, name)) for name in _EVENT_FIELDS}
        if self.views is not None:
            tensors |= {f"view.{name}": _narrow(getattr(self.views, name)) for name in _VIEW_FIELDS}
        about = {"mask_id": self.start.mask_id, "end_ids": self.start.end_ids, "shift": self.start.shift}
        notes = {"format": FORMAT, "model": json.dumps(about), "facts": json.dumps(self.facts)}
        notes["words"], notes["controls"] = json.dumps(self.words), json.dumps(self.controls)
        partial = path.with_name(path.name + ".part")
        try:
            save_file(tensors, partial, metadata=notes)
            partial.replace(path)
        except (SafetensorError, OSError) as error:
            partial.unlink(missing_ok=True)
            raise RequestError(f'cannot write the trajectory to "{path}": {error}') from None

    @classmethod
    def load(cls, path: str | Path) -> "Trajectory":
        """Read what `save` wrote.

        Raises:
            RequestError: no such file, or not a trajectory.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise RequestError(f'no trajectory at "{path}"')
        try:
            with safe_open(path, framework="pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise RequestError(f'"{path}" is not a trajectory: {error}') from None
        if notes.get("format") not in READABLE:
            wrong = f"its format is {notes.get('format')}, wanted {' or '.join(reversed(READABLE))}"
            raise RequestError(f'"{path}" is not a trajectory: {wrong}')
        seen = {f"view.{name}" for name in _VIEW_FIELDS}
        wanted = (
            {f"start.{name}" for name in _STATE_FIELDS} | set(_EVENT_FIELDS) | (seen if seen & set(tensors) else set())
        )
        if set(tensors) != wanted or not {"model", "facts"} <= set(notes):
            wrong = ", ".join(sorted(set(tensors) ^ wanted)) or "model or facts"
            raise RequestError(f'"{path}" is not a trajectory: missing or unknown parts: {wrong}')
        try:
            return cls._assembled({name: _widened(tensor) for name, tensor in tensors.items()}, notes)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(f'"{path}" is not a trajectory: {error}') from None

    @classmethod
    def _assembled(cls, tensors: dict[str, Tensor], notes: dict[str, str]) -> "Trajectory":
        parts: dict[str, Any] = {name: tensors.pop(f"start.{name}") for name in _STATE_FIELDS}
        about = json.loads(notes["model"])
        about["end_ids"] = tuple(about["end_ids"])
        views = None
        if "view.open" in tensors:
            views = Views(**{name: tensors.pop(f"view.{name}") for name in _VIEW_FIELDS})
        words, controls = (
            {int(token): str(word) for token, word in json.loads(notes.get(name, "{}")).items()}
            for name in ("words", "controls")
        )
        _check_start(parts)
        start = DenoisingState(**parts, **about)
        _check_events(tensors, *start.tokens.shape)
        if views and not views.fits(len(tensors["passes"]), start.num_slots):
            raise ValueError("its views do not fit its passes")
        facts = {str(name): str(value) for name, value in json.loads(notes["facts"]).items()}
        return cls(start=start, facts=facts, views=views, words=words, controls=controls, **tensors)


def _narrow(tensor: Tensor) -> Tensor:
    """The same whole numbers in as few bytes as hold them; anything else as it is."""
    if tensor.dtype == torch.long:
        low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
        fitting = (kind for kind in (torch.uint8, torch.int16, torch.int32) if _holds(kind, low, high))
        tensor = tensor.to(next(fitting, torch.long))
    return tensor.contiguous()


def _holds(kind: torch.dtype, low: int, high: int) -> bool:
    return torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.bool or tensor.is_floating_point() else tensor.long()


def _check_start(parts: dict[str, Tensor]) -> None:
    """Raises ValueError unless these make a state."""
    rows, slots = parts["tokens"].shape if parts["tokens"].ndim == 2 else (0, 0)
    for name, tensor in parts.items():
        size = (rows,) if name in ("prompt_length", "step", "seed") else (rows, slots)
        wanted = torch.bool if name in ("masked", "given", "exists") else torch.long
        if not rows or tensor.shape != size or tensor.dtype != wanted:
            raise ValueError(f"start.{name} is {tensor.dtype} of shape {tuple(tensor.shape)}")


def _check_events(parts: dict[str, Tensor], rows: int, slots: int) -> None:
    """Raises ValueError unless these can have happened to a state of that size."""
    count = parts["row"].shape
    for name in _EVENT_FIELDS[:-1]:
        if parts[name].ndim != 1 or parts[name].shape != count:
            raise ValueError(f"{name} has shape {tuple(parts[name].shape)}")
    passes = parts["passes"]
    if passes.ndim != 2 or passes.shape[1] != 3:
        raise ValueError(f"passes has shape {tuple(passes.shape)}")
    checks = [("row", parts["row"], rows), ("slot", parts["slot"], slots), ("kind", parts["kind"], len(Kind))]
    for name, values, stop in [*checks, ("passes", passes[:, 0], rows)]:
        if not within(values, 0, stop):
            raise ValueError(f"{name} goes beyond {stop - 1}")


class Recorder:
    """Collects steps while somebody else drives the loop.

    Args:
        start: the first state of the run.
        views: also keep what the model was shown and how sure it was of every slot it was asked for.
    """

    def __init__(self, start: DenoisingState, *, views: bool = False) -> None:
        self._start = replace(start)
        self._views: list[Views] | None = [] if views else None
        self._num_passes = 0
        self._events: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._passes: list[Tensor] = []

    def add(self, step: Step) -> None:
        """Keep what this step did."""
        before, after, move = step.before, step.after, step.move
        if self._views is not None:
            self._views.append(Views.of(step, self._num_passes))
        self._num_passes += before.num_rows
        self._passes.append(torch.stack((step.row_ids, before.step, step.rows_computed), dim=1))
        confidence = step.confidence.float()
        revoked = torch.zeros_like(move.commit) if move.revoke is None else move.revoke
        for kind, flags in (
            (Kind.COMMIT, move.commit & ~revoked),
            (Kind.REVOKE, revoked),
            (Kind.COMMIT, move.commit & revoked),  # another token at once; the last event of a slot says what is in it
            (Kind.FILL, step.filled),
        ):
            row, slot = flags.nonzero(as_tuple=True)
            if not len(row):
                continue
            token = after.tokens[row, slot]
            kinds = torch.full_like(row, kind)
            self._events.append(torch.stack((step.row_ids[row], before.step[row], kinds, slot, token)))
            sure = confidence[row, slot]
            self._confidences.append(sure if kind is Kind.COMMIT else torch.zeros_like(sure))

    def trajectory(self, facts: dict[str, str] | None = None) -> Trajectory:
        """What has been recorded so far."""
        events = torch.cat(self._events, dim=1).cpu() if self._events else torch.zeros(5, 0, dtype=torch.long)
        confidences = torch.cat(self._confidences).cpu() if self._confidences else torch.zeros(0)
        passes = torch.cat(self._passes).cpu() if self._passes else torch.zeros(0, 3, dtype=torch.long)
        row, step, kind, slot, token = events
        views = None if self._views is None else Views.join(self._views)
        return Trajectory(self._start.to("cpu"), row, step, kind, slot, token, confidences, passes, facts or {}, views)
