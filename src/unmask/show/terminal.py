"""Frames on a terminal: a panel that changes as slots are decided, or plain lines where there is no terminal."""

import time
from dataclasses import replace
from types import TracebackType

from rich.box import ASCII, ROUNDED
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.style import Style
from rich.text import Text

from unmask.show.frames import Frame
from unmask.show.writing import (
    ASCII_ONLY,
    DEFAULT_LOOK,
    DIM,
    Glyphs,
    Look,
    answer_text,
    extras_text,
    glyphs_for,
    plain_line,
    printable,
    prompt_text,
    status,
)

LONGEST_PAUSE, SHORTEST_PAUSE, PAUSE_DECAY = 0.14, 0.02, 0.97  # seconds, seconds, per step
PROMPT_LINES = 6


class Picture:
    """One frame as a panel that fits the screen; what does not fit is cut above and below the open slots.

    Args:
        frame: what to show.
        title: in the upper edge.
        live: False shows the finished text, in full.
        lines: never fewer lines of answer than this, so that the panel does not jump while it changes.
        look: what to show of it; `live` of the look is not read.
        height: of the panel, which is filled; None = as many lines as needed and the screen has.
        notes: lines at the bottom for what is said about extra slots.
        scroll: lines further down than the open slots ask for.
        clip: False draws everything, as if the screen had no end.
    """

    def __init__(
        self,
        frame: Frame,
        title: str,
        *,
        live: bool = True,
        lines: int = 0,
        look: Look = DEFAULT_LOOK,
        height: int | None = None,
        notes: int = 0,
        scroll: int = 0,
        clip: bool = True,
    ) -> None:
        self.frame, self.title, self.live, self.lines = frame, title, live, lines
        self.look, self.height, self.notes, self.scroll = replace(look, live=live), height, notes, scroll
        self.clip = clip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = glyphs_for(console)
        width = max(8, options.max_width - 4)
        given = prompt_text(self.frame, glyphs)
        prompt = [*given.wrap(console, width, tab_size=4), Text()] if given else []
        most = PROMPT_LINES if self.height is None else max(2, min(PROMPT_LINES, self.height // 4))
        if len(prompt) > most:
            prompt[most - 2 :] = [Text(glyphs.more, style=DIM), Text()]
        text = answer_text(self.frame, glyphs, look=self.look)
        answer = folded(text, width) if self.live else list(text.wrap(console, width, tab_size=4))
        notes = list(extras_text(self.frame, glyphs).wrap(console, width))[: self.notes] if self.notes else []
        if self.live and self.clip:
            room = (console.size.height if self.height is None else self.height + 1) - len(prompt) - self.notes - 3
            room = max(3 if self.height is None else 1, room)
            answer = _clipped(answer, room, glyphs, self.scroll)
            answer += [Text()] * (min(self.lines if self.height is None else room, room) - len(answer))
            self.lines = max(self.lines, len(answer))
            notes += [Text()] * (self.notes - len(notes))
        body = Text("\n").join([*prompt, *answer, *notes])
        title, foot = (_fitted(text, width - 2, glyphs) for text in (self.title, status(self.frame, glyphs)))
        yield Panel(
            body,
            box=ASCII if glyphs is ASCII_ONLY else ROUNDED,
            title=Text(title, style=Style(bold=True, dim=False)),
            title_align="left",
            subtitle=Text(foot, style=Style(dim=False)),
            subtitle_align="left",
            border_style=DIM,
            width=options.max_width,
        )


def folded(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, cut anywhere: words wrapped whole would jump about while they are decided."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        cuts, used = [], 0
        for at, char in enumerate(line.plain):
            used += cell_len(char)
            if used > width:
                cuts.append(at)
                used = cell_len(char)
        lines.extend(line.divide(cuts))
    return lines


def _clipped(lines: list[Text], room: int, glyphs: Glyphs, scroll: int = 0) -> list[Text]:
    """At most `room` lines, around the ones that show open slots, or `scroll` lines further down."""
    if len(lines) <= room:
        return lines
    marked = [at for at, line in enumerate(lines) if glyphs.left in line.plain or glyphs.right in line.plain]
    last = marked[-1] if marked else len(lines) - 1
    start = min(max(0, last - room + 3 + scroll), len(lines) - room)
    shown = lines[start : start + room]
    if start:
        shown[0] = Text(glyphs.more, style=DIM)
    if start + room < len(lines):
        shown[-1] = Text(glyphs.more, style=DIM)
    return shown


def _fitted(text: str, width: int, glyphs: Glyphs) -> str:
    text = printable(text, glyphs).replace("\n", " ")
    return text if len(text) <= width else text[: max(0, width - len(glyphs.more))] + glyphs.more


class Screen:
    """Shows frames as they come: on a terminal one panel that changes, elsewhere one line a step.

    Use as a context manager; `finish` leaves the last frame standing.

    Args:
        console: where to draw.
        title: in the upper edge of the panel.
        pause: wait a little after each frame, so that a person can follow; never done without a terminal.
    """

    def __init__(self, console: Console, title: str, *, pause: bool = True) -> None:
        self._console, self._title = console, title
        self._pause = LONGEST_PAUSE if pause and console.is_terminal else 0.0
        self._live: Live | None = None
        self._lines = 0

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, frame: Frame) -> None:
        """Draw one frame."""
        if self._live is None:
            self._console.out(plain_line(frame), highlight=False)
            return
        picture = Picture(frame, self._title, lines=self._lines)
        self._live.update(picture, refresh=True)
        self._lines = picture.lines
        time.sleep(self._pause)
        self._pause = max(SHORTEST_PAUSE, self._pause * PAUSE_DECAY) if self._pause else 0.0

    def finish(self, frame: Frame) -> None:
        """Leave the last frame standing, in full."""
        if self._live is not None:
            self._close()
            self._console.print(Picture(frame, self._title, live=False))
