"""Recorded runs as one page for a browser, which needs nothing else: no network, no other file.

The page is `page.html` beside this file, with the frames put into it as JSON; the script in it only draws. Frames are
written as changes: most slots of a frame are those of the frame before.
"""

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from unmask.errors import RequestError
from unmask.show.frames import Extra, Frame, Slot, SlotState
from unmask.show.player import Film, summary
from unmask.show.writing import UNICODE, printable

STATES = tuple(SlotState)  # the page knows them by number
FLAGS = ("control", "ends", "open", "fresh", "revoked", "hidden", "guess_ends", "draft_ends")  # bits, the lowest first
SCALE = 1000  # probabilities are written as whole numbers


def write_page(path: Path, films: Sequence[Film]) -> int:
    """Write a page (a broken write leaves no half file) and answer with its size in bytes.

    Raises:
        RequestError: the file cannot be written.
    """
    content = page(films).encode()
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RequestError(f'cannot write the page to "{path}": {error.strerror or error}') from None
    return len(content)


def page(films: Sequence[Film]) -> str:
    """One or two films as a page."""
    template = resources.files("unmask.show").joinpath("page.html").read_text(encoding="utf-8")
    content = {"flags": FLAGS, "states": STATES, "scale": SCALE, "films": [_film(film) for film in films]}
    # nothing in a script may look like its end; and these two are line ends to some browsers
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    data = data.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    title = html.escape(" / ".join(film.title for film in films))
    head, body = template.split("{{data}}")
    return head.replace("{{title}}", title) + data + body


def _film(film: Film) -> dict[str, Any]:
    words = _Words()
    before: list[list[Any]] = [[] for _ in film.frames[0].slots]
    frames = []
    for frame in film.frames:
        slots = [_slot(slot, words) for slot in frame.slots]
        changed = [[number, *slot] for number, slot in enumerate(slots) if slot != before[number]]
        frames.append(_frame(frame, changed, words))
        before = slots
    return {"title": film.title, "summary": summary(film), "frames": frames, "words": words.listed}


def _frame(frame: Frame, changed: list[list[Any]], words: "_Words") -> dict[str, Any]:
    answer = frame.answer
    return {
        "tpf": round(frame.tpf, 2),
        "rows": frame.rows_computed,
        "left": frame.num_masked,
        "of": len(answer),
        "committed": frame.committed,
        "revoked": frame.revoked,
        "branch": frame.branch,
        "slots": changed,
        "extras": [_extra(extra, words) for extra in frame.extras],
    }


def _slot(slot: Slot, words: "_Words") -> list[Any]:
    """State, text, flags, step, confidence, guess, its probability, draft, lost text; without the zeros at the end."""
    flags = sum(getattr(slot, name) << bit for bit, name in enumerate(FLAGS))
    values: list[Any] = [STATES.index(slot.state), words.number(slot.text), flags]
    values += [0 if slot.committed_at is None else slot.committed_at + 1, _scaled(slot.confidence)]
    values += [words.number(slot.guess), _scaled(slot.sure), words.number(slot.draft), words.number(slot.lost)]
    while values and not values[-1]:
        values.pop()
    return values


def _extra(extra: Extra, words: "_Words") -> list[Any]:
    """Place, target, text, masked, guess, its probability, belief, agreement: 0 unknown, 1 no, 2 yes."""
    target = -1 if extra.target is None else extra.target
    values = [extra.place, target, words.number(extra.text), int(extra.masked), words.number(extra.guess)]
    agrees = 0 if extra.agrees is None else 1 + extra.agrees
    return [*values, _scaled(extra.sure), _scaled(extra.belief), agrees]


def _scaled(probability: float | None) -> int:
    """0 = not known; else one more than thousandths."""
    return 0 if probability is None else 1 + round(SCALE * probability)


class _Words:
    """Every text once; 0 is the empty one."""

    def __init__(self) -> None:
        self.listed = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        text = printable(text, UNICODE)
        if text not in self._numbers:
            self._numbers[text] = len(self.listed)
            self.listed.append(text)
        return self._numbers[text]
