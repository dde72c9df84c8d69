"""`unmask show`: step through recorded runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.output import check_writable, console_for, say
from unmask.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.core.trajectory import Trajectory
    from unmask.show.player import Film
    from unmask.show.words import Reader

NARROWEST, WIDEST = 20, 1000  # columns
NOTES = 9  # lines about extra slots below a printed frame


def show(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE [TRACE]", help="One file of --trace, or two to compare.")
    ],
    row: Annotated[int, typer.Option(help="Which row of a record with several.")] = 0,
    step: Annotated[
        int | None, typer.Option(help="Print this step and leave; 0 = before the first.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page for a browser to this file.", show_default=False)
    ] = None,
    width: Annotated[int | None, typer.Option(help="Columns to draw in; by default all.", show_default=False)] = None,
) -> None:
    """Step through a recorded run, or two side by side."""
    if len(traces) > 2:
        raise RequestError(f"at most two traces fit side by side: got {len(traces)}")
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise RequestError(f"width must be from {NARROWEST} to {WIDEST} columns: got {width}")
    if html is not None:
        check_writable(html)

    films = [open_film(path, row) for path in traces]
    if html is not None:
        from unmask.show.html import write_page

        size = write_page(html, films)
        console_for("stderr").print(f"{html}, {size / 1000:,.0f} kB", style="dim", soft_wrap=True)
        return

    from unmask.show.keys import available, keyboard
    from unmask.show.player import Player, play

    console = console_for("stdout")
    if step is None and available() and console.is_terminal and not console.is_dumb_terminal:
        try:
            with keyboard() as next_key:
                play(Player(films, width), console, next_key)
        except OSError:  # the terminal has gone, and nobody is left to tell
            raise typer.Exit(1) from None
        return
    if width is not None:
        console.width = width
    for number, film in enumerate(films):
        if number:
            console.print()
        _print(film, step, console)


def open_film(path: Path, row: int) -> "Film":
    """The frames of a file.

    Raises:
        RequestError: no such file or row, or a file that is no record.
    """
    from unmask.core.trajectory import Trajectory
    from unmask.show.player import Film

    try:
        trajectory = Trajectory.load(path)
        return Film.of(trajectory, _reader(trajectory), path.name, row)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # the file has all its parts, but they contradict each other, as a commit to a slot that is not masked would
        raise RequestError(f'"{path}" is damaged: {str(error) or type(error).__name__}') from None


def _reader(trajectory: "Trajectory") -> "Reader":
    """Who can read the tokens: the record itself, else the tokenizer of its model if that is on this machine."""
    from unmask.show.words import Words

    model = trajectory.facts.get("model", "")
    if trajectory.words or trajectory.controls:
        return Words.of(trajectory)
    try:
        if model.partition(":")[0] == "builtin" or Path(model).is_dir():
            from unmask.models.checkpoints import find_folder
            from unmask.models.text import Text

            return Text.load(find_folder(model, weights=False))
        reason = f'"{model}" is not on this machine' if model else "it does not name its model"
    except (CheckpointError, OSError) as error:
        reason = str(error)
    say("warning", f"the record has no text of its tokens, and {reason}: tokens are shown as ids")
    return Words.of(trajectory)


def _print(film: "Film", step: int | None, console: "Console") -> None:
    """One frame and what the whole run cost."""
    from unmask.show.player import summary
    from unmask.show.terminal import Picture
    from unmask.show.writing import Look

    if step is not None and not 0 <= step <= film.last:
        raise RequestError(f"step must be from 0 to {film.last}: got {step}")
    number = film.last if step is None else step
    look, notes = Look(steps=film.last), 0 if step is None else NOTES
    picture = Picture(film.at(number), film.title, live=step is not None, look=look, clip=False, notes=notes)
    console.print(picture)
    for line in summary(film):
        console.print(line, style="dim", soft_wrap=True)
