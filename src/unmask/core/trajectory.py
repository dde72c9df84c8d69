"""The record of a run: every commit, revocation and fill. One format for traces, tests, training and pictures.

Shape letters: b rows, l slots, e events, t (row, step) pairs.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.denoise import Step
from unmask.core.state import DenoisingState, Move
from unmask.errors import RequestError

FORMAT = "unmask-trajectory-1"
_STATE_FIELDS = ("tokens", "masked", "given", "exists", "committed_at", "prompt_length", "step", "seed")
_EVENT_FIELDS = ("row", "step", "kind", "slot", "token", "confidence", "passes")


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

    @classmethod
    def collect(cls, start: DenoisingState, steps: Iterable[Step], facts: dict[str, str] | None = None) -> "Trajectory":
        """Run a denoising loop to its end and keep what happened."""
        recorder = Recorder(start)
        for step in steps:
            recorder.add(step)
        return recorder.trajectory(facts)

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
        mine, passes = self.row == row, self.passes[self.passes[:, 0] == row].clone()
        passes[:, 0] = 0
        events = {name: getattr(self, name)[mine] for name in ("step", "kind", "slot", "token", "confidence")}
        return Trajectory(
            self.start.take(torch.tensor([row])),
            torch.zeros_like(self.row[mine]),
            passes=passes,
            facts=self.facts,
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
        tensors = {f"start.{name}": getattr(self.start, name).contiguous() for name in _STATE_FIELDS}
        for name in _EVENT_FIELDS:
            tensors[name] = getattr(self, name).contiguous()
        about = {"mask_id": self.start.mask_id, "end_ids": self.start.end_ids, "shift": self.start.shift}
        notes = {"format": FORMAT, "model": json.dumps(about), "facts": json.dumps(self.facts)}
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
        if notes.get("format") != FORMAT:
            raise RequestError(f'"{path}" is not a trajectory: its format is {notes.get("format")}, wanted {FORMAT}')
        wanted = {f"start.{name}" for name in _STATE_FIELDS} | set(_EVENT_FIELDS)
        if set(tensors) != wanted or not {"model", "facts"} <= set(notes):
            wrong = ", ".join(sorted(set(tensors) ^ wanted)) or "model or facts"
            raise RequestError(f'"{path}" is not a trajectory: missing or unknown parts: {wrong}')
        start = {name: tensors.pop(f"start.{name}") for name in _STATE_FIELDS}
        about = json.loads(notes["model"])
        about["end_ids"] = tuple(about["end_ids"])
        state = DenoisingState(**start, **about)
        return cls(start=state, facts=json.loads(notes["facts"]), **tensors)


class Recorder:
    """Collects steps while somebody else drives the loop."""

    def __init__(self, start: DenoisingState) -> None:
        self._start = replace(start)
        self._events: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._passes: list[Tensor] = []

    def add(self, step: Step) -> None:
        """Keep what this step did."""
        before, after, move = step.before, step.after, step.move
        self._passes.append(torch.stack((step.row_ids, before.step, step.rows_computed), dim=1))
        confidence = step.prediction.confidence[:, : before.num_slots].float()
        for kind, flags in ((Kind.COMMIT, move.commit), (Kind.REVOKE, move.revoke), (Kind.FILL, step.filled)):
            if flags is None:
                continue
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
        return Trajectory(self._start.to("cpu"), row, step, kind, slot, token, confidences, passes, facts or {})
