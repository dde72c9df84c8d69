"""Frames as coloured text, without a terminal: what every slot looks like, and the lines about it.

The colour of a token says at which step it was committed, or how sure the model was of it; the tokens of the latest
step stand out.
"""

import colorsys
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from unmask.show.frames import Extra, Frame, Slot, SlotState

DIM = Style(dim=True)
OPEN = Style(color="cyan")
LOST = Style(color="red", strike=True)
DRAFT = Style(color="magenta", italic=True, underline=True)
AGREES, DISAGREES = Style(underline=True), Style(color="red", bold=True, underline=True)
HUE_START, HUE_STEP = 0.55, 0.043  # blue first, then about 23 steps round the wheel
HUE_SPAN = 0.62  # blue, violet, red, yellow: the part of the wheel for a run of known length
UNSURE_HUE, SURE_HUE = 0.07, 0.57  # orange and blue, which nobody confuses; grey at 0.5
SATURATION = 0.75
BRIGHTNESS, FRESH_BRIGHTNESS = 0.28, 0.45  # 0..1; the first is readable on black and on white
PLAIN_WIDTH = 100  # characters of text in a plain line


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters that need more than ASCII, and what stands in for them."""

    masked: str = "\u2591\u2591"  # light shade
    masked_open: str = "\u2592\u2592"  # medium shade
    filled: str = "\u00b7"  # middle dot
    end: str = "\u25a0"  # black square
    newline: str = "\u21b5"  # arrow down and left
    left: str = "\u2590"  # right half block, before the open slots
    right: str = "\u258c"  # left half block, behind them
    dot: str = " \u00b7 "
    more: str = "\u2026"  # ellipsis
    broken: str = "\ufffd"
    hidden: str = "\u254c\u254c"  # dashes
    swatch: str = "\u25a0"  # black square
    space: str = "\u2423"  # open box


UNICODE = Glyphs()
ASCII_ONLY = Glyphs("__", "##", ".", "$", "\\n", "[", "]", ", ", "...", "?", "--", "#", "_")


@dataclass(frozen=True, slots=True)
class Look:
    """What a picture shows."""

    live: bool = True  # mark the open slots, the latest commits, line breaks and the end; without it only the text
    colour: Literal["step", "confidence"] = "step"
    guesses: bool = False  # write the model's candidate into masked slots
    steps: int = 0  # length of the run, over which the colours are spread; 0 = not known

    def style(self, slot: Slot) -> Style:
        """Of a committed slot."""
        assert slot.committed_at is not None, "only given and masked slots have no step"
        fresh = slot.fresh and self.live
        if self.colour == "step":
            return step_style(slot.committed_at, fresh, self.steps)
        return DIM if slot.confidence is None else confidence_style(slot.confidence, fresh)


DEFAULT_LOOK = Look()


def glyphs_for(console: Console) -> Glyphs:
    """What this console can show."""
    return ASCII_ONLY if console.options.ascii_only else UNICODE


@lru_cache(maxsize=1024)
def step_style(step: int, fresh: bool = False, steps: int = 0) -> Style:
    """Colour of a token committed at a step: the hue tells the step, all are about equally bright.

    Args:
        steps: of the whole run, if that is known.
    """
    return _style(step_hue(step, steps), SATURATION, fresh)


def step_hue(step: int, steps: int = 0) -> float:
    """0..1, round the colour wheel from red over green and blue."""
    return (HUE_START + (HUE_SPAN * step / max(steps - 1, 1) if steps else HUE_STEP * step)) % 1.0


def confidence_style(confidence: float, fresh: bool = False) -> Style:
    """Colour of a probability: from orange over grey to blue."""
    return _confidence_style(round(50 * confidence) / 50, fresh)


@lru_cache(maxsize=256)
def _confidence_style(confidence: float, fresh: bool) -> Style:
    hue = UNSURE_HUE if confidence < 0.5 else SURE_HUE
    return _style(hue, 0.9 * abs(2.0 * confidence - 1.0), fresh)


def _style(hue: float, saturation: float, fresh: bool) -> Style:
    shades = (colorsys.hls_to_rgb(hue, lightness / 100, saturation) for lightness in range(20, 96))
    wanted = FRESH_BRIGHTNESS if fresh else BRIGHTNESS
    red, green, blue = next(shade for shade in shades if _brightness(*shade) >= wanted)
    colour = Color.from_rgb(255 * red, 255 * green, 255 * blue)
    return Style(color="black", bgcolor=colour, bold=True) if fresh else Style(color=colour)


def _brightness(red: float, green: float, blue: float) -> float:
    """Relative luminance, near enough (gamma 2.2)."""
    return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)


def printable(text: str, glyphs: Glyphs) -> str:
    """Text that moves no cursor: tabs as spaces, other control characters as pictures of themselves."""
    spaced = text.replace("\r\n", "\n").replace("\t", "    ").replace("\ufffd", glyphs.broken)
    return "".join(_picture(char, glyphs) if char != "\n" and not char.isprintable() else char for char in spaced)


def _picture(char: str, glyphs: Glyphs) -> str:
    control = ord(char) < 0x20 and glyphs is not ASCII_ONLY
    return chr(0x2400 + ord(char)) if control else " " if char.isspace() else "?"


def answer_text(frame: Frame, glyphs: Glyphs = UNICODE, *, live: bool | None = None, look: Look = DEFAULT_LOOK) -> Text:
    """The answer of a frame in colours; `live` overrides the look's."""
    look = look if live is None else replace(look, live=live)
    border = frame.open_range if look.live else None
    asked = {extra.target: extra for extra in frame.extras if look.live}
    result = Text(no_wrap=False, overflow="fold")
    place = 0
    for number, slot in enumerate(frame.slots):
        if slot.state is SlotState.GIVEN:
            if place:  # infilling: given text behind the first hole
                result.append("" if slot.control else printable(slot.text, glyphs), DIM)
            continue
        if border and place == border[0]:
            result.append(glyphs.left, OPEN)
        start = len(result)
        _append(result, slot, glyphs, look)
        if number in asked:
            differs = asked[number].agrees is False and look.colour == "step"  # red would hide the confidence
            result.stylize(DISAGREES if differs else AGREES, start)
        if border and place == border[1]:
            result.append(glyphs.right, OPEN)
        place += 1
    if not look.live:
        result.rstrip()
    return result


def _append(result: Text, slot: Slot, glyphs: Glyphs, look: Look) -> None:
    if slot.state is SlotState.MASKED:
        _append_masked(result, slot, glyphs, look)
        return
    if slot.state is SlotState.FILLED:
        result.append(glyphs.filled if look.live else "", DIM)
        return
    style = look.style(slot)
    if slot.ends or slot.control:
        result.append((glyphs.end if slot.ends else printable(slot.text, glyphs)) if look.live else "", style)
        return
    for part in printable(slot.text, glyphs).splitlines(keepends=True):
        body = part.removesuffix("\n")
        result.append(body, style)
        if body != part:
            result.append((glyphs.newline if look.live else "") + "\n", style if slot.fresh and look.live else DIM)


def _append_masked(result: Text, slot: Slot, glyphs: Glyphs, look: Look) -> None:
    """A slot without a token: what was taken from it, what was shown in it, or how sure the model is."""
    if not look.live:
        result.append(glyphs.masked, DIM)
        return
    glyph = glyphs.hidden if slot.hidden else glyphs.masked_open if slot.open else glyphs.masked
    if slot.revoked:
        result.append(inline(slot.lost, glyphs) or glyph, LOST)
    elif slot.draft:
        result.append(glyphs.end if slot.draft_ends else inline(slot.draft, glyphs), DRAFT)
    elif look.guesses and slot.guess and slot.sure is not None:
        guess = glyphs.end if slot.guess_ends else inline(slot.guess, glyphs)
        result.append(guess, confidence_style(slot.sure) + Style(italic=True))
    elif look.colour == "confidence" and slot.sure is not None:
        result.append(glyph, confidence_style(slot.sure))
    else:
        result.append(glyph, OPEN if slot.open else DIM)


def inline(text: str, glyphs: Glyphs) -> str:
    """Text of a token on one line."""
    return printable(text, glyphs).replace("\n", glyphs.newline)


def quoted(text: str, glyphs: Glyphs) -> str:
    """Text of a token on one line, with its spaces in sight."""
    return f'"{inline(text, glyphs).replace(" ", glyphs.space)}"'


def extras_text(frame: Frame, glyphs: Glyphs = UNICODE) -> Text:
    """What stood behind the canvas at the step that led to a frame, in words; the doubtful slots first."""
    numbers: dict[int, int] = {}
    for number, slot in enumerate(frame.slots):
        if slot.state is not SlotState.GIVEN:
            numbers[number] = len(numbers) + 1
    questions = [extra for extra in frame.extras if extra.target is not None]
    shown = [extra for extra in frame.extras if extra.target is None and not extra.masked]
    silent = len(frame.extras) - len(questions) - len(shown)
    result = Text(style=DIM)
    if frame.branch is not None:
        result.append(f"branch {frame.branch} won. ")
    if questions:
        result.append(f"{len(questions)} asked again, {sum(extra.agrees is True for extra in questions)} agree. ")
    elif silent:
        result.append(f"{silent} shadows asked nothing. ")
    if shown:
        result.append(f"{len(shown)} shown beside the canvas. ")
    for extra in sorted(questions, key=_doubt):
        if extra.agrees is False or (extra.target is not None and frame.slots[extra.target].revoked):
            _append_question(result, extra, frame, numbers, glyphs)
    if shown:
        words = " ".join(f"{numbers.get(extra.place, '')}:{quoted(extra.text, glyphs)}" for extra in shown)
        result.append(f"shown: {words}")
    return result


def _doubt(extra: Extra) -> float:
    return 2.0 if extra.belief is None else extra.belief


def _append_question(result: Text, extra: Extra, frame: Frame, numbers: dict[int, int], glyphs: Glyphs) -> None:
    assert extra.target is not None, "questions have a target"
    slot = frame.slots[extra.target]
    result.append(f"{numbers.get(extra.target, '')} ")
    result.append(quoted(slot.text or slot.lost or slot.guess, glyphs), DISAGREES)
    if extra.belief is not None:
        result.append(f" {extra.belief:.2f}")
    if extra.agrees is False:
        result.append(f", rather {quoted(extra.guess, glyphs)}")
        result.append("" if extra.sure is None else f" {extra.sure:.2f}")
    result.append(". ")


def prompt_text(frame: Frame, glyphs: Glyphs = UNICODE) -> Text:
    """The given text left of the answer, without control tokens."""
    given = []
    for slot in frame.slots:
        if slot.state is not SlotState.GIVEN:
            break
        given.append("" if slot.control else slot.text)
    return Text(printable("".join(given), glyphs).strip(), style=DIM, overflow="fold")


def status(frame: Frame, glyphs: Glyphs = UNICODE) -> str:
    """What the run has cost so far."""
    size = len(frame.answer)
    parts = [f"NFE {frame.nfe}", f"TPF {frame.tpf:.2f}", f"{size - frame.num_masked}/{size} slots"]
    if frame.open_range and frame.num_masked:
        parts.append(f"open {frame.open_range[0] + 1}-{frame.open_range[1] + 1}")
    if frame.revoked:
        parts.append(f"{frame.revoked} taken back")
    return glyphs.dot.join(parts)


def plain_line(frame: Frame, width: int = PLAIN_WIDTH) -> str:
    """A frame as one line of ASCII around the answer's text, for logs."""
    names = {SlotState.MASKED: "masked", SlotState.FILLED: "closed"}
    parts: list[str] = []
    for name, group in groupby(frame.answer, lambda slot: names.get(slot.state, "end" if slot.ends else "")):
        slots = list(group)
        parts.append(f"[{len(slots)} {name}]" if name else "".join(slot.text for slot in slots))
    text = printable("".join(parts), ASCII_ONLY).replace("\n", "\\n")
    text = text if len(text) <= width else text[: width - 3] + "..."
    size = len(frame.answer)
    change = f"+{frame.committed}" + (f" -{frame.revoked}" if frame.revoked else "")
    return f"step {frame.nfe:3}  {change:>4}  {size - frame.num_masked}/{size}  TPF {frame.tpf:.2f}  {text}"
