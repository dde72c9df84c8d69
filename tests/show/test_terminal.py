"""What frames look like: always inside the screen, never an escape sequence of the model's own."""

import io
from collections.abc import Iterable

import pytest
from rich.cells import cell_len
from rich.console import Console

import unmask
from unmask.show.frames import Frame, Slot, SlotState, frames
from unmask.show.terminal import Picture, Screen, folded
from unmask.show.writing import ASCII_ONLY, answer_text, plain_line, step_style

COMMITTED, FILLED, GIVEN, MASKED = SlotState.COMMITTED, SlotState.FILLED, SlotState.GIVEN, SlotState.MASKED


def frame_of(words: Iterable[str | None], *, prompt: str = "why?", opened: int = 0) -> Frame:
    """A frame whose slots hold these words, None = masked; the first `opened` ones are open."""
    slots = [Slot(GIVEN, prompt)]
    for place, word in enumerate(words):
        state = MASKED if word is None else COMMITTED
        slots.append(Slot(state, word or "", committed_at=None if word is None else place, open=place < opened))
    return Frame(3, tuple(slots), 100)


def console(width: int, height: int = 24, encoding: str = "utf-8") -> Console:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=stream, width=width, height=height, force_terminal=True, color_system=None)


def drawn(frame: Frame, width: int = 80, height: int = 24, encoding: str = "utf-8", *, live: bool = True) -> list[str]:
    target = console(width, height, encoding)
    target.print(Picture(frame, "threshold on builtin", live=live))
    target.file.flush()
    content: bytes = target.file.buffer.getvalue()  # type: ignore[attr-defined]
    return content.decode(encoding).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("masked", [1, 64, 4000])
def test_a_picture_fits_the_screen(width: int, masked: int) -> None:
    words: list[str | None] = ["def f(x):\n", "    ", "\u6f22\u5b57" * 30, "\t\U0001f642", *[None] * masked]
    lines = drawn(frame_of(words, prompt="a long question " * 200, opened=8), width, 24)
    assert len(lines) <= 24
    assert {cell_len(line) for line in lines} == {width}


def test_the_open_slots_stay_in_view() -> None:
    words: list[str | None] = ["word \n"] * 100 + [None] * 4 + ["word \n"] * 100
    frame = frame_of(words)
    slots = [Slot(slot.state, slot.text, committed_at=slot.committed_at, open=100 <= at < 105)
             for at, slot in enumerate(frame.slots)]  # fmt: skip
    shown = "\n".join(drawn(Frame(1, tuple(slots), 0)))
    assert "\u2592" in shown and "\u2590" in shown


def test_a_finished_picture_is_complete_and_plain() -> None:
    lines = drawn(frame_of([f"line {number}\n" for number in range(60)]), live=False)
    assert sum("line" in line for line in lines) == 60
    assert not any("\u21b5" in line for line in lines)


def test_ascii_terminals_get_ascii() -> None:
    for live in (True, False):
        lines = drawn(frame_of(["a\n", "b", None, None], opened=3), encoding="ascii", live=live)
        assert all(line.isascii() for line in lines)
    assert any("##" in line for line in drawn(frame_of(["a", None], opened=2), encoding="ascii"))


def test_control_characters_do_nothing() -> None:
    frame = frame_of(["\x1b[31mred", "\rback", "\x00", "\x9b", "\u202e"])
    for content in ("\n".join(drawn(frame)), plain_line(frame), answer_text(frame, ASCII_ONLY).plain):
        assert not {"\x1b", "\r", "\x00", "\x9b", "\u202e"} & set(content)


def test_newlines_break_lines_and_are_marked_while_live() -> None:
    frame = frame_of(["a\n", "\n", "b"])
    assert answer_text(frame).plain == "a\u21b5\n\u21b5\nb"
    assert answer_text(frame, live=False).plain == "a\n\nb"


def test_folding_keeps_every_character() -> None:
    text = answer_text(frame_of(["abc def ghi", "\u6f22\u5b57", None]))
    lines = folded(text, 5)
    assert "".join(line.plain for line in lines) == text.plain
    assert max(cell_len(line.plain) for line in lines) <= 5


def test_steps_have_different_colours() -> None:
    assert len({step_style(step).color for step in range(20)}) == 20
    assert step_style(3, fresh=True).bgcolor is not None


def test_a_plain_line_is_one_line(llada: unmask.Model) -> None:
    [answer] = unmask.generate(llada, ["sort"], length=64)
    assert answer.trajectory is not None
    film = list(frames(answer.trajectory, llada.text, end_ids=llada.facts.end_ids))
    assert "[64 masked]" in plain_line(film[0])
    assert "\n" not in "".join(map(plain_line, film))
    assert max(len(plain_line(frame)) for frame in film) < 140
    assert "end]" in plain_line(film[-1], width=1000) and "closed]" in plain_line(film[-1], width=1000)


def test_without_a_terminal_a_screen_prints_lines_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
    target = Console(file=io.StringIO(), width=80)
    with Screen(target, "title") as screen:
        for count in range(3):
            screen.show(frame_of(["a"] * count + [None] * (3 - count)))
        screen.finish(frame_of(["a"] * 3))
    assert target.file.getvalue().count("\n") == 3  # type: ignore[attr-defined]


def test_on_a_terminal_the_last_frame_stays_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    target = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with Screen(target, "title") as screen:
        screen.show(frame_of([None, None]))
        screen.show(frame_of(["one", None]))
        screen.finish(frame_of(["one", " two"]))
    content = target.file.getvalue()  # type: ignore[attr-defined]
    assert content.count("\x1b[?25l") == content.count("\x1b[?25h") == 1
    assert "two" in content.rpartition("\x1b[?25h")[2]
    assert len(waits) == 2 and waits[0] > waits[1] > 0.0
