"""The page holds the run, all of it, and nothing in it can be anything but text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_player import film, with_extras

from unmask.errors import RequestError
from unmask.show.frames import Extra, Frame, Slot, SlotState
from unmask.show.html import FLAGS, STATES, page, write_page
from unmask.show.player import Film

FIELDS = ("state", "text", "flags", "step", "confidence", "guess", "sure", "draft", "lost")
NASTY = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "\u2028\u2029",
    "&lt;\"'",
    "\x1b[31m",
]


class Parts(HTMLParser):
    """Tags and what the data script holds."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = dict(attributes).get("id") == "data"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""


def content_of(*films: Film) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Parts(page(films)).data)
    return found


def rebuilt(told: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What the script of the page makes of the data: every frame's slots, by name."""
    words, slots, frames = told["words"], [{}] * len(told["frames"][0]["slots"]), []
    for frame in told["frames"]:
        slots = list(slots)
        for place, *values in frame["slots"]:
            slot = dict(zip(FIELDS, [*values, *[0] * 9], strict=False))
            slots[place] = slot | {name: words[slot[name]] for name in ("text", "guess", "draft", "lost")}
        frames.append(slots)
    return frames


def test_every_frame_can_be_rebuilt_from_the_changes() -> None:
    told = film(4, draft="maybe\n", guess="x", sure=0.25)
    [shown] = content_of(told)["films"]
    for slots, frame in zip(rebuilt(shown), told.frames, strict=True):
        for found, slot in zip(slots, frame.slots, strict=True):
            assert STATES[found["state"]] is slot.state
            assert (found["text"], found["guess"], found["draft"]) == (slot.text, slot.guess, slot.draft)
            assert found["step"] == (0 if slot.committed_at is None else slot.committed_at + 1)
            assert found["confidence"] == (901 if slot.confidence else 0)
            assert found["sure"] == (251 if slot.sure else 0)
            assert [name for bit, name in enumerate(FLAGS) if found["flags"] >> bit & 1] == [
                name for name in FLAGS if getattr(slot, name)
            ]


def test_what_did_not_change_is_not_written_again() -> None:
    [shown] = content_of(film(4, slots=100))["films"]
    sizes = [len(frame["slots"]) for frame in shown["frames"]]
    assert sizes == [106, 1, 2, 2, 2], "a slot is committed, and the one before is no longer fresh"


def test_extra_slots_and_branches_are_in_it() -> None:
    [shown] = content_of(with_extras(Extra(1, 1, "<mask>", True, "o", 0.75, 0.125, False), Extra(2, None, "m", False)))[
        "films"
    ]
    words, last = shown["words"], shown["frames"][-1]
    assert last["branch"] == 1
    assert last["extras"] == [
        [1, 1, words.index("<mask>"), 1, words.index("o"), 751, 126, 1],
        [2, -1, words.index("m"), 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("word", NASTY)
def test_no_token_and_no_name_can_leave_its_place(word: str) -> None:
    slots = (
        Slot(SlotState.GIVEN, word),
        Slot(SlotState.COMMITTED, word, committed_at=0),
        Slot(SlotState.MASKED, "", guess=word),
    )
    nasty = Film(word, (Frame(0, slots, 0), Frame(1, slots, 0)), {"decoder": word}, 1, 0, True)
    parts, plain = Parts(page([nasty])), Parts(page([film()]))
    assert parts.tags == plain.tags
    [shown] = json.loads(parts.data)["films"]
    assert shown["title"] == word
    assert any(known in shown["words"] for known in (word, word.replace("\x1b", "\u241b"), "  ", "??"))


def test_the_page_asks_nothing_of_a_network() -> None:
    content = page([film(), film()])
    assert "default-src 'none'" in content
    assert not re.search(r"https?://|@import|url\(|\b(fetch|XMLHttpRequest|WebSocket|import)\(", content)
    for tag, attributes in Parts(content).tags:
        assert not {"src", "href"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag


def test_every_control_of_the_script_is_on_the_page() -> None:
    content = page([film()])
    there = {attributes["id"] for _, attributes in Parts(content).tags if "id" in attributes}
    named = set(re.findall(r'byId\("(\w+)"\)', content))
    actions = content.partition("const actions = {")[2].partition("};")[0]
    named |= {name for name in re.findall(r"(\w+)(?=[:,])", actions)} & {"first", "back", "play", "next", "last"}
    assert named and named <= there


def test_the_page_is_small_and_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text("an older page", encoding="utf-8")
    size = write_page(file, [film(30, slots=100)])
    assert size == file.stat().st_size < 40_000
    assert file.read_text(encoding="utf-8") == page([film(30, slots=100)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.html"]


def test_a_place_that_cannot_be_written_is_named_and_no_half_file_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match=r'cannot write the page to ".*folder"'):
        write_page(tmp_path / "folder", [film()])
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
