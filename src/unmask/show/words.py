"""The text of a record's tokens, kept in the record, so that it can be shown where its model is not at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from unmask.core.trajectory import Trajectory
from unmask.models.text import Text

_HALVES = "surrogateescape"  # how half a character is written into a string


class Reader(Protocol):
    """What it takes to show tokens; `models.text.Text` is one."""

    def decode(self, ids: Sequence[int]) -> str: ...
    def decode_pieces(self, ids: Sequence[int]) -> list[str]: ...
    def token_text(self, token: int) -> str: ...


class Words:
    """Reads the tokens whose text it was given, and shows all others as `<id>`.

    Args:
        words: text of tokens, half a character as surrogate escapes.
        controls: literals of tokens that are no text.
    """

    def __init__(self, words: Mapping[int, str], controls: Mapping[int, str]) -> None:
        self._words = {token: word.encode(errors=_HALVES) for token, word in words.items()}
        self._controls = dict(controls)

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Words":
        """Reads the tokens of a record that carries their text."""
        return cls(trajectory.words, trajectory.controls)

    def decode(self, ids: Sequence[int]) -> str:
        """As `Text.decode`."""
        return b"".join(self._words.get(token, b"") for token in ids).decode(errors="replace")

    def decode_pieces(self, ids: Sequence[int]) -> list[str]:
        """As `Text.decode_pieces`."""
        pieces = [""] * len(ids)
        spoken = [at for at, token in enumerate(ids) if token in self._words]
        pending: list[int] = []
        for at in spoken:
            pending.append(ids[at])
            text = self.decode(pending)
            if text.endswith("\ufffd") and at != spoken[-1]:
                continue  # the rest of the character follows
            pieces[at] = text
            pending = []
        return pieces

    def token_text(self, token: int) -> str:
        """As `Text.token_text`."""
        return self.decode([token]) or self._controls.get(token, f"<{token}>")


def with_words(trajectory: Trajectory, text: Text) -> Trajectory:
    """The record with the text of all its tokens."""
    views = trajectory.views
    seen = [trajectory.start.tokens.flatten(), trajectory.token]
    if views is not None:
        seen += [views.drafts[:, 2], views.asked[:, 2], views.extras[:, 2]]
    words: dict[int, str] = {}
    controls: dict[int, str] = {}
    for token in sorted(set(torch.cat(seen).tolist())):
        spoken = text.token_bytes(token)
        if spoken is None:
            controls[token] = text.token_text(token)
        else:
            words[token] = spoken.decode(errors=_HALVES)
    return replace(trajectory, words=words, controls=controls)
