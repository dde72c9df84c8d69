"""What the commands share: lines on stderr, and checks of options."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unmask.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LAST_SEED = 2**62
COLOURS = {"error": "bold red", "warning": "bold yellow"}


def console_for(stream: Literal["stdout", "stderr"]) -> "Console":
    """A console that never guesses at markup, numbers or emoji in what it prints."""
    from rich.console import Console

    return Console(stderr=stream == "stderr", highlight=False, markup=False, emoji=False)


def say(kind: Literal["error", "warning"], message: str) -> None:
    """Print exactly one line on stderr, however long: `error: ...`."""
    from rich.text import Text

    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    text = Text.assemble((f"{kind}:", COLOURS[kind]), " ", line)
    console_for("stderr").print(text, soft_wrap=True)


def print_hanging(console: "Console", text: "Text", indent: int = 0, hang: int = 0) -> None:
    """Print text with an indent, its further lines `hang` columns deeper; where no terminal wraps, on one line."""
    from rich.text import Text

    lines = [text]
    if console.is_terminal:
        width = max(20, console.width - indent)
        first = text.wrap(console, width)[:1]
        rest = text[len(first[0].plain) :]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        lines = [*first, *(rest.wrap(console, width - hang) if rest else [])]
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(" " * (indent + (hang if number else 0))) + line, soft_wrap=True)


class Attention(StrEnum):
    """Who sees whom, where a checkpoint does not say it itself (a D2F adapter, say)."""

    BIDIRECTIONAL = "bidirectional"
    BLOCK_CAUSAL = "block_causal"
    CAUSAL = "causal"

    @property
    def pattern(self) -> Literal["bidirectional", "block_causal", "causal"]:
        return self.value


def check_seed(seed: int) -> None:
    """Raises RequestError unless the seed fits the noise streams."""
    if not 0 <= seed <= LAST_SEED:
        raise RequestError(f"seed must be from 0 to {LAST_SEED}: got {seed}")


def parse_shares(option: str, text: str) -> dict[str, float]:
    """Read "functions=0.6,sudoku=0.4": tasks and their shares, on any scale.

    Raises:
        RequestError: if a part is no `task=share` with a positive, finite share, or a task occurs twice.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = (piece.strip() for piece in part.partition("="))
        try:
            number = float(share)
        except ValueError:
            raise RequestError(f'{option}: expected task=share, got "{part}", e.g. functions=0.6,sudoku=0.4') from None
        if not 0.0 < number < float("inf"):
            raise RequestError(f'{option}: shares must be positive, got "{part}"')
        if name in shares:
            raise RequestError(f'{option}: the task "{name}" occurs twice')
        shares[name] = number
    return shares


def puzzle_keys(option: str, path: Path | None) -> frozenset[str]:
    """Keys of the sudokus in a JSONL file or folder, which are not to occur; none without a path.

    Raises:
        RequestError: they cannot be read.
    """
    from unmask.evaluation.tasks import load_sudoku

    if path is None:
        return frozenset()
    try:
        return frozenset(problem.key for problem in load_sudoku(path))
    except (OSError, ValueError) as error:
        raise RequestError(f"{option}: {error}") from None


def check_writable(path: Path) -> None:
    """Refuse a place where no file can be written, before any work is done.

    Raises:
        RequestError: a folder, a device, a missing folder, or one without permission.
    """
    try:
        if path.is_dir():
            raise RequestError(f'cannot write to "{path}": it is a folder; name a file')
        if path.exists() and not path.is_file():
            raise RequestError(f'cannot write to "{path}": it is no regular file')
        trial = path.with_name(f"{path.name}.{os.getpid()}.part")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise RequestError(f'cannot write to "{path}": {error.strerror or error}') from None


def check_device(name: str) -> None:
    """Refuse a device that torch knows but this machine cannot compute on.

    Raises:
        RequestError: no such device, or a first tensor on it fails.
    """
    import torch

    from unmask.models.checkpoints import choose_device

    device = choose_device(name)
    try:
        torch.zeros(1, device=device).tolist()
    except Exception as error:  # every backend has its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RequestError(f'device "{name}" cannot be used on this machine: {reason}') from None
