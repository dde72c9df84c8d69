"""What one step did to one row and showed of it, and the text of the row's slots: what frames are made of.

Shape letters: l canvas slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.trajectory import Kind, Trajectory
from unmask.core.views import Views
from unmask.show.words import Reader


def change_of(trajectory: Trajectory, step: int, opened: set[int], rows: int, seen: Views | None) -> "Change":
    """What a record of one row says about one of its steps."""
    now = trajectory.step == step

    def marked(kind: Kind) -> Int[Tensor, " n"]:
        return trajectory.slot[now & (trajectory.kind == kind)]

    confidence = trajectory.confidence[now & (trajectory.kind == Kind.COMMIT)]
    return Change(
        commit=dict(zip(marked(Kind.COMMIT).tolist(), confidence.tolist(), strict=True)),
        revoke=set(marked(Kind.REVOKE).tolist()),
        fill=set(marked(Kind.FILL).tolist()),
        open=opened,
        rows=rows,
        seen=seen,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """What one step did to one row, as slot numbers of the whole canvas."""

    commit: dict[int, float] = field(default_factory=dict)  # slot -> confidence
    revoke: set[int] = field(default_factory=set)
    fill: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    rows: int = 0  # hidden states computed
    seen: Views | None = None  # of this row and step alone


@dataclass(frozen=True, slots=True)
class Sight:
    """Views of one row and step by slot; extra slots count on behind the canvas."""

    candidates: dict[int, int] = field(default_factory=dict)  # token ids
    guesses: dict[int, tuple[str, float]] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)  # token ids of drafts
    drafts: dict[int, str] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    branch: int | None = None

    @classmethod
    def of(cls, seen: Views | None, text: Reader) -> "Sight":
        if seen is None:
            return cls()
        asked = seen.asked.tolist()
        return cls(
            {slot: token for _, slot, token in asked},
            {
                slot: (text.token_text(token), sure)
                for (_, slot, token), sure in zip(asked, seen.confidence.tolist(), strict=True)
            },
            {slot: token for _, slot, token in seen.drafts.tolist()},
            {slot: text.token_text(token) for _, slot, token in seen.drafts.tolist()},
            covered(seen.hidden),
            int(seen.branches[0, 1]) if len(seen.branches) else None,
        )


def covered(runs: Int[Tensor, "n 3"]) -> set[int]:
    return {slot for _, first, stop in runs.tolist() for slot in range(first, stop)}


def slots_of(flags: Bool[Tensor, " l"]) -> set[int]:
    return set(flags.nonzero()[:, 0].tolist())


class Pieces:
    """Text of every slot. A character of several byte tokens needs its neighbours, so whole runs are decoded.

    Runs end at masked slots and at the start of the answer, and are remembered: most of a canvas, and all of the
    prompt, is the same from frame to frame.
    """

    def __init__(self, text: Reader, border: int) -> None:
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
