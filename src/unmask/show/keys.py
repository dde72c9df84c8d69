"""Single keys from a terminal, by name."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_ESCAPES = {
    **{f"{start}{letter}": name for start in ("\x1b[", "\x1bO") for letter, name in zip(
        "ABCDHF", ("up", "down", "right", "left", "home", "end"), strict=True
    )},
    **{f"\x1b[{number}~": name for number, name in {
        1: "home", 7: "home", 4: "end", 8: "end", 5: "pageup", 6: "pagedown"
    }.items()},
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x04": "eof",
}  # fmt: skip
MODIFIERS = "0123456789;"


def available() -> bool:
    """Is there a terminal on both ends whose keys can be read one by one?"""
    try:
        import termios  # noqa: F401
    except ImportError:  # Windows
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def keyboard() -> Iterator[Callable[[float], str | None]]:
    """Keys as they are pressed, without echo; the terminal is put back whatever happens.

    Gives a function that waits at most so many seconds for a key; its name, or None if there was none.
    """
    import termios
    import tty

    source = sys.stdin.fileno()
    saved = termios.tcgetattr(source)
    pending: list[str] = []

    def next_key(seconds: float) -> str | None:
        if not pending and select.select([source], [], [], seconds)[0]:
            try:
                content = os.read(source, 1024)
            except OSError:  # the terminal has gone
                content = b""
            pending.extend(keys_in(content.decode(errors="replace")) if content else ["eof"])
        return pending.pop(0) if pending else None

    try:
        tty.setcbreak(source)
        yield next_key
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(source, termios.TCSADRAIN, saved)


def keys_in(content: str) -> Iterator[str]:
    """Names of the keys that a terminal has sent; an escape sequence nobody knows is no key."""
    at = 0
    while at < len(content):
        stop = at + 1
        if content[at] == "\x1b" and content[stop : stop + 1] in ("[", "O"):
            stop += 1
            while content[stop : stop + 1] and content[stop] in MODIFIERS:
                stop += 1
            stop += 1
        sequence = content[at:stop]
        if sequence in _ESCAPES:
            yield _ESCAPES[sequence]
        elif len(sequence) == 1:
            yield sequence
        at = stop
