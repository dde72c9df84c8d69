"""Recorded runs on a terminal, step by step: what each key does, and how a step is drawn. Reads no keyboard itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from unmask.core.trajectory import Trajectory
from unmask.show.frames import Frame, SlotState, frames
from unmask.show.terminal import Picture
from unmask.show.words import Reader
from unmask.show.writing import (
    AGREES,
    ASCII_ONLY,
    DIM,
    DISAGREES,
    DRAFT,
    LOST,
    OPEN,
    Glyphs,
    Look,
    confidence_style,
    glyphs_for,
    step_style,
)

SPEEDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # steps per second
JUMP = 10  # steps
PATIENCE = 0.5  # seconds between looks at the size of the screen
SWATCHES = 9
FEWEST_LINES = 6  # of a panel
KEYS = "\u2190 \u2192 step  home end  a play  + - speed  c colours  g guesses  \u2191 \u2193 scroll  q quit"
ASCII_KEYS = "n p step  home end  a play  + - speed  c colours  g guesses  j k scroll  q quit"


@dataclass(frozen=True)
class Film:
    """All frames of one recorded answer."""

    title: str
    frames: tuple[Frame, ...]
    facts: dict[str, str]
    num_rows: int  # of the record
    row: int
    viewed: bool  # does the record say what the model was shown?

    @classmethod
    def of(cls, trajectory: Trajectory, reader: Reader, name: str, row: int = 0) -> "Film":
        """Raises RequestError if there is no such row."""
        facts = trajectory.facts
        parts = [facts.get("decoder", ""), facts.get("schedule", ""), facts.get("cache", "")]
        about = ", ".join(part for part in parts if part and part != "none")
        title = f"{name}: {about}" if about else name
        made = tuple(frames(trajectory, reader, row=row))
        return cls(title, made, facts, trajectory.start.num_rows, row, trajectory.views is not None)

    def at(self, step: int) -> Frame:
        """The frame after so many steps; the last one if there are fewer."""
        return self.frames[min(step, self.last)]

    @property
    def last(self) -> int:
        """Number of steps."""
        return len(self.frames) - 1

    @cached_property
    def has_extras(self) -> bool:
        """Did any step add slots or choose among branches?"""
        return any(frame.extras or frame.branch is not None for frame in self.frames)

    def has(self, what: str) -> bool:
        """Is that mark of a slot set anywhere?"""
        return any(getattr(slot, what) for frame in self.frames for slot in frame.slots)


class Player:
    """One or two films, at the same step.

    Args:
        films: what to show, side by side.
        width: columns to draw in; None = all.
    """

    def __init__(self, films: Sequence[Film], width: int | None = None) -> None:
        self.films, self.width = list(films), width
        self.last = max(film.last for film in films)
        self.step, self.playing, self.scroll = 0, False, 0
        self.speed = SPEEDS.index(4.0)
        self.look = Look(steps=self.last)
        self.marks = [what for what in ("revoked", "draft", "hidden") if any(film.has(what) for film in films)]
        self.extras = any(film.has_extras for film in films)

    @property
    def wait(self) -> float | None:
        """Seconds until `tick` is due; None while nothing plays."""
        return 1.0 / SPEEDS[self.speed] if self.playing else None

    def press(self, key: str) -> bool:
        """Do what a key says; False = quit."""
        match key:
            case "q" | "Q" | "escape" | "eof":
                return False
            case "right" | " " | "n":
                self._go(self.step + 1)
            case "left" | "p":
                self._go(self.step - 1)
            case "pagedown":
                self._go(self.step + JUMP)
            case "pageup":
                self._go(self.step - JUMP)
            case "home":
                self._go(0)
            case "end":
                self._go(self.last)
            case "a" | "enter":
                self._play()
            case "+" | "=":
                self.speed = min(self.speed + 1, len(SPEEDS) - 1)
            case "-" | "_":
                self.speed = max(self.speed - 1, 0)
            case "down" | "j":
                self.scroll += 1
            case "up" | "k":
                self.scroll -= 1
            case "c":
                self.look = replace(self.look, colour="confidence" if self.look.colour == "step" else "step")
            case "g":
                self.look = replace(self.look, guesses=not self.look.guesses)
        return True

    def tick(self) -> None:
        """One step of the running film."""
        self.step = min(self.step + 1, self.last)
        self.playing = self.step < self.last

    def _go(self, step: int) -> None:
        self.step, self.playing = min(max(step, 0), self.last), False

    def _play(self) -> None:
        if not self.playing and self.step == self.last:
            self.step = 0
        self.playing = not self.playing and self.last > 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = glyphs_for(console)
        width = min(self.width or options.max_width, options.max_width)
        height = options.height or console.size.height
        keys = Text(ASCII_KEYS if glyphs is ASCII_ONLY else KEYS, style=DIM)
        foot = [*packed(legend(self, glyphs), width), self._bar(width, glyphs), *keys.wrap(console, width)]
        room = max(height - len(foot), FEWEST_LINES)
        panels = self._panels(console, options, width, room)
        yield from _rows(panels)
        yield from foot[: max(height - room, 0)]

    def _panels(self, console: Console, options: ConsoleOptions, width: int, room: int) -> list[list[list[Segment]]]:
        count = len(self.films)
        drawn = []
        for number, film in enumerate(self.films):
            share = width // count + (number < width % count)
            notes = min(3 if count == 1 else 4, room // 4) if self.extras else 0
            picture = Picture(
                film.at(self.step), film.title, look=self.look, height=room, notes=notes, scroll=self.scroll
            )
            drawn.append(console.render_lines(picture, options.update(width=share, height=room), pad=True))
        return drawn

    def _bar(self, width: int, glyphs: Glyphs) -> Text:
        """Where in the run this is."""
        sign, done, left = ("|>", "=", "-") if glyphs is ASCII_ONLY else ("\u25b6", "\u2501", "\u2500")
        place = f" step {self.step}/{self.last} "
        state = f" {sign if self.playing else 'paused'} {SPEEDS[self.speed]:g}/s"
        length = max(width - len(place) - len(state) - 1, 0)
        reached = length * self.step // max(self.last, 1)
        bar = Text(place, style=Style(bold=True))
        bar.append(done * reached, OPEN).append(left * (length - reached), DIM)
        return bar.append(state, Style(bold=False))


def _rows(panels: list[list[list[Segment]]]) -> RenderResult:
    """Panels of the same height beside each other."""
    for lines in zip(*panels, strict=True):
        for line in lines:
            yield from line
        yield Segment.line()


def legend(player: Player, glyphs: Glyphs) -> list[Text]:
    """What the colours and marks mean, as far as they occur."""
    last = max(player.last, 1)
    if player.look.colour == "step":
        names, shades = ("first step", "last"), [step_style(at, steps=SWATCHES) for at in range(SWATCHES)]
    else:
        names, shades = ("unsure", "sure"), [confidence_style(at / (SWATCHES - 1)) for at in range(SWATCHES)]
    scale = Text.assemble((f"{names[0]} ", DIM), *((glyphs.swatch, shade) for shade in shades), (f" {names[1]}", DIM))
    marks = {"revoked": ("abc", LOST, "taken back"), "draft": ("abc", DRAFT, "draft: shown, not committed")}
    marks["hidden"] = (glyphs.hidden, DIM, "not there yet")
    entries = [(glyphs.masked, DIM, "masked"), (glyphs.masked_open, OPEN, "open")]
    entries.append(("abc", step_style(0, fresh=True, steps=last), "just committed"))
    entries += [marks[what] for what in player.marks]
    if player.extras:
        entries += [("abc", AGREES, "asked again"), ("abc", DISAGREES, "other answer then")]
    if player.look.guesses:
        entries.append(("abc", Style(italic=True), "guess"))
    return [scale, *(Text.assemble((sample, style), (f" {meaning}", DIM)) for sample, style, meaning in entries)]


def packed(entries: Sequence[Text], width: int) -> list[Text]:
    """Entries in lines, none of them broken unless a line cannot hold it."""
    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + 2 + entry.cell_len <= width:
            lines[-1] = Text("  ").join((lines[-1], entry))
        else:
            lines.append(entry)
    for line in lines:
        line.truncate(width)
    return lines


def summary(film: Film) -> list[str]:
    """A run in a few lines of plain text."""
    end = film.frames[-1]
    steps = film.frames[1:]
    count = len(end.answer)
    drafts = sum(bool(slot.draft) for frame in steps for slot in frame.slots)
    parts = {name: film.facts[name] for name in ("model", "decoder", "schedule", "cache") if name in film.facts}
    filled = sum(slot.state is SlotState.FILLED for slot in end.slots)
    lines = [", ".join(f"{name} {value}" for name, value in parts.items())] if parts else []
    lines.append(
        f"NFE {end.nfe}, TPF {end.tpf:.2f}, {end.rows_computed:,} rows computed, "
        f"{count - end.num_masked - filled} of {count} slots committed, {filled} closed, {end.num_masked} masked"
    )
    lines.append(f"committed per step: {' '.join(str(frame.committed) for frame in steps) or 'no steps'}")
    taken = sum(frame.revoked for frame in steps)
    extras = sum(len(frame.extras) for frame in steps)
    if taken or drafts or extras:
        lines.append(f"{taken} taken back, {drafts} drafts shown, {extras} extra slots")
    if not film.viewed:
        lines.append("the record does not say what the model was shown: no drafts, extra slots or guesses")
    if film.num_rows > 1:
        lines.append(f"row {film.row} of 0 to {film.num_rows - 1}")
    return lines


def play(player: Player, console: Console, next_key: Callable[[float], str | None]) -> None:
    """Show a player on the whole screen until somebody quits.

    Args:
        next_key: waits at most so many seconds for a key; None = there was none.
    """
    size, changed = console.size, True
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            if changed or console.size != size:  # somebody may have pulled at the window
                size = console.size
                live.update(player, refresh=True)
            key = next_key(player.wait or PATIENCE)
            changed = key is not None or player.playing
            if key is None and player.playing:
                player.tick()
            elif key is not None and not player.press(key):
                return
