"""What keys do, and that whatever is drawn fits the screen and explains itself."""

import io
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from rich.console import Console

from unmask.show.frames import Extra, Frame, Slot, SlotState
from unmask.show.keys import keys_in
from unmask.show.player import Film, Player, play, summary

COMMITTED, FILLED, GIVEN, MASKED = SlotState.COMMITTED, SlotState.FILLED, SlotState.GIVEN, SlotState.MASKED


def film(steps: int = 5, title: str = "run", *, slots: int = 0, **marks: object) -> Film:
    """A word is committed at every step; the marks are set on one more slot, which stays masked."""
    made = []
    for nfe in range(steps + 1):
        row = [Slot(GIVEN, "why? ")]
        for place in range(steps):
            done = place < nfe
            fresh = place == nfe - 1
            row.append(Slot(COMMITTED if done else MASKED, f"w{place}\n" if done else "", fresh=fresh, open=True,
                            committed_at=place if done else None, confidence=0.9 if done else None))  # fmt: skip
        row.append(Slot(MASKED, "", **marks))  # type: ignore[arg-type]
        row += [Slot(MASKED, "")] * slots
        made.append(Frame(nfe, tuple(row), 10 * nfe, committed=int(nfe > 0)))
    return Film(title, tuple(made), {"decoder": "threshold", "model": "builtin"}, 1, 0, True)


def drawn(player: Player, width: int = 80, height: int = 24, encoding: str = "utf-8") -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, height=height, force_terminal=True, color_system=None)
    console.print(player, end="")
    stream.flush()
    return stream.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


def pressed(*keys: str, steps: int = 5) -> Player:
    player = Player([film(steps)])
    assert all(player.press(key) for key in keys)
    return player


@pytest.mark.parametrize(
    ("keys", "step"),
    [
        ((), 0), (("right",), 1), ((" ", "n"), 2), (("n", "n", "p"), 1), (("left",), 0), (("end",), 25),
        (("end", "home"), 0), (("end", "n"), 25), (("pagedown", "pagedown", "pageup"), 10), (("x", "\x00"), 0),
    ],
)  # fmt: skip
def test_keys_move_and_stop_at_both_ends(keys: tuple[str, ...], step: int) -> None:
    assert pressed(*keys, steps=25).step == step


def test_q_quits_and_so_does_a_closed_keyboard() -> None:
    assert [pressed().press(key) for key in ("q", "Q", "escape", "eof")] == [False] * 4


def test_playing_goes_on_to_the_end_and_stops_there() -> None:
    player = pressed("a", steps=3)
    seen = []
    while player.wait:
        player.tick()
        seen.append(player.step)
    assert seen == [1, 2, 3]
    player.press("a")
    assert (player.step, player.playing) == (0, True), "from the end it begins anew"
    player.press("n")
    assert (player.step, player.playing) == (1, False), "a step by hand ends it"


def test_speed_has_limits_and_changes_the_wait() -> None:
    player = pressed("a")
    before = player.wait
    player.press("+")
    assert player.wait is not None and before is not None and player.wait < before
    for _ in range(20):
        player.press("-")
    assert player.wait == 2.0


def test_colours_and_guesses_are_switched() -> None:
    player = pressed("c", "g")
    assert (player.look.colour, player.look.guesses) == ("confidence", True)
    player.press("c"), player.press("g")
    assert (player.look.colour, player.look.guesses) == ("step", False)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (30, 12), (20, 5), (200, 60)])
@pytest.mark.parametrize("films", [1, 2])
@pytest.mark.parametrize("keys", [(), ("end",), ("n", "c", "g")])
def test_the_picture_is_exactly_as_large_as_the_screen(
    size: tuple[int, int], films: int, keys: tuple[str, ...]
) -> None:
    width, height = size
    shown = [film(4, "a \u6f22\u5b57 title " * 9, slots=900, revoked=True, lost="\u6f22\u5b57\n"), film(9)][:films]
    player = Player(shown)
    for key in keys:
        player.press(key)
    lines = drawn(player, width, height)
    assert len(lines) <= max(height, 6)
    assert max(cell_len(line) for line in lines) <= width


def test_a_width_leaves_the_rest_of_the_screen_empty() -> None:
    lines = drawn(Player([film()], width=50), 120)
    assert max(cell_len(line) for line in lines) <= 50


def test_two_films_are_at_the_same_step_and_the_shorter_one_waits_at_its_end() -> None:
    player = Player([film(2, "short"), film(6, "long")])
    for _ in range(4):
        player.press("n")
    text = "\n".join(drawn(player))
    assert "step 4/6" in text and "NFE 2 " in text and "NFE 4 " in text
    assert all("short" not in line or "long" in line for line in text.splitlines()), "side by side"


@pytest.mark.parametrize(
    ("marks", "sample", "meaning"),
    [
        ({"revoked": True, "lost": "gone"}, "gone", "taken back"),
        ({"draft": "maybe"}, "maybe", "draft: shown, not committed"),
        ({"hidden": True}, "\u254c\u254c", "not there yet"),
    ],
)
def test_what_is_special_is_shown_and_explained_and_only_then(
    marks: dict[str, object], sample: str, meaning: str
) -> None:
    text = "\n".join(drawn(Player([film(**marks)])))
    assert sample in text and meaning in text
    assert meaning not in "\n".join(drawn(Player([film()])))


def with_extras(*extras: Extra) -> Film:
    plain = film(2)
    first, *rest = plain.frames
    changed = [Frame(frame.nfe, frame.slots, 0, extras=extras, branch=1) for frame in rest]
    return Film("extras", (first, *changed), {}, 1, 0, True)


def test_extra_slots_are_told_in_words() -> None:
    shadow = Extra(1, 1, "<mask>", True, guess=" other", sure=0.75, belief=0.125, agrees=False)
    friend = Extra(2, 2, "<mask>", True, guess="w1", sure=0.9, agrees=True)
    candidate = Extra(2, None, "maybe", False)
    player = Player([with_extras(shadow, friend, candidate)])
    player.press("n")
    text = " ".join(" ".join(line.strip("\u2502 ") for line in drawn(player)).split())
    assert "branch 1 won. 2 asked again, 1 agree. 1 shown beside the canvas." in text
    assert '1 "w0\u21b5" 0.12, rather "\u2423other" 0.75.' in text
    assert 'shown: 2:"maybe"' in text
    assert "asked again" in text and "other answer then" in text


def test_guesses_are_written_into_masked_slots() -> None:
    player = Player([film(guess="guessed\n", sure=0.4)])
    assert "guessed" not in "\n".join(drawn(player))
    player.press("g")
    assert "guessed\u21b5" in "\n".join(drawn(player))


def test_narrow_terminals_get_ascii() -> None:
    player = Player([film(revoked=True, lost="\n"), film(draft="\n")])
    player.press("g"), player.press("a")
    assert all(line.isascii() for line in drawn(player, encoding="ascii"))


def test_scrolling_reaches_what_was_cut() -> None:
    player = pressed("end", steps=60)
    assert not any("w0" in line for line in drawn(player))
    for _ in range(60):
        player.press("up")
    assert any("w0" in line for line in drawn(player))


def test_a_summary_counts_what_happened() -> None:
    lines = summary(film(3, draft="x"))
    assert lines[0] == "model builtin, decoder threshold"
    assert "NFE 3" in lines[1] and "3 of 4 slots committed" in lines[1]
    assert lines[2] == "committed per step: 1 1 1"
    assert "3 drafts shown" in lines[3]


def test_the_screen_is_left_when_somebody_quits_and_is_drawn_after_every_key() -> None:
    keys: Iterator[str | None] = iter(["n", None, "a", None, None, "q"])
    player = Player([film(9)])
    target = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    play(player, target, lambda seconds: next(keys))
    content = target.file.getvalue()  # type: ignore[attr-defined]
    assert content.count("\x1b[?1049h") == content.count("\x1b[?1049l") == 1
    assert content.count("\x1b[?25h") >= 1, "the cursor is back"
    assert [f"step {step}/9" in content for step in range(5)] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("n", ["n"]), ("\x1b[C\x1b[D", ["right", "left"]), ("\x1bOH\x1bOF", ["home", "end"]), ("\x1b", ["escape"]),
        ("\x1b[1~\x1b[4~", ["home", "end"]), ("\x1b[5~a\x1b[6~", ["pageup", "a", "pagedown"]), ("\x1b[99~q", ["q"]),
        ("\x1b[1;5C", []), ("\r\n", ["enter", "enter"]), ("\x04", ["eof"]), ("\x1b[", []), ("", []),
    ],
)  # fmt: skip
def test_keys_have_names_and_unknown_sequences_are_no_keys(sent: str, keys: list[str]) -> None:
    assert list(keys_in(sent)) == keys
