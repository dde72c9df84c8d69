"""`unmask train`: one command per recipe; its options are the fields of the job and of the recipe's own settings."""

import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from unmask.cli.listing import field_comments
from unmask.cli.output import parse_shares, puzzle_keys
from unmask.errors import UnmaskError
from unmask.training.checkpoints import TrainingError
from unmask.training.job import (
    Adapting,
    Decoded,
    Job,
    Length,
    Looks,
    Machine,
    RecipeEntry,
    Sizes,
    Start,
    Steps,
    Texts,
)
from unmask.training.launch import launch
from unmask.training.recipes.table import RECIPES
from unmask.training.run import Progress

train_app = typer.Typer(no_args_is_help=True, help="Train models.", add_completion=False)

LINE_SECONDS = 30.0  # between progress lines where there is no terminal
INTERRUPTED = 130  # exit code of a program that was stopped with Ctrl-C
# Groups of options, by the name of the job's field.
GROUPS: Mapping[str, type[Any]] = {
    "length": Length,
    "start": Start,
    "sizes": Sizes,
    "adapting": Adapting,
    "texts": Texts,
    "decoded": Decoded,
    "steps": Steps,
    "looks": Looks,
    "machine": Machine,
}


def groups_of(recipe: RecipeEntry) -> dict[str, type[Any]]:
    """The groups that a recipe has a use for, its own settings last."""
    without = {"texts"} if recipe.replays else {"decoded"}
    if recipe.lora is not None:
        without.add("sizes")
    return {name: group for name, group in GROUPS.items() if name not in without} | {"options": recipe.options}


def _command(recipe: RecipeEntry) -> Callable[..., None]:
    """The function behind a command, with a parameter for every field of its groups."""
    groups = groups_of(recipe)
    parameters = [parameter for name, group in groups.items() for parameter in parameters_of(name, group)]
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    def command(**values: Any) -> None:
        _run(recipe, values)

    command.__doc__ = recipe.summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def parameters_of(name: str, group: type[Any]) -> Iterator[inspect.Parameter]:
    comments = field_comments(group)
    heading = "Recipe" if name == "options" else (group.__doc__ or name)
    for field in dataclasses.fields(group):
        flags = (f"--{field.name.replace('_', '-')}",) if field.default is False else ()
        words = comments.get(field.name, "")
        # Rich reads brackets as markup.
        option = typer.Option(*flags, help=words.replace("[", r"\["), rich_help_panel=heading)
        missing = field.default is dataclasses.MISSING
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if missing else field.default,
            annotation=Annotated[field.type, option],
        )


def _run(recipe: RecipeEntry, values: Mapping[str, Any]) -> None:
    try:
        made = launch(_job(recipe, values), display)
    except UnmaskError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            _complain(error)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; go on with --resume", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    if made is not None:
        said = f"model written to {made}" if (made / "config.json").exists() else f"adapter written to {made}"
        Console().print(said, highlight=False, markup=False, soft_wrap=True)


def _job(recipe: RecipeEntry, values: Mapping[str, Any]) -> Job:
    """The job that a command line describes; groups without options of their own keep their defaults.

    Raises:
        UnmaskError: a value that its field does not take.
    """
    parts = {}
    for name, group in {**GROUPS, "options": recipe.options}.items():
        fields = {field.name for field in dataclasses.fields(group)}
        try:
            parts[name] = group(**{field: value for field, value in values.items() if field in fields})
        except ValueError as error:
            raise TrainingError(str(error)) from None
    texts = parts["texts"]
    return Job(
        recipe=recipe,
        mix=parse_shares("--mix", texts.mix),
        exclude=puzzle_keys("--exclude-sudoku", texts.exclude_sudoku),
        **parts,
    )


for _entry in RECIPES.values():
    train_app.command(_entry.name)(_command(_entry))


@contextmanager
def display(active: bool, title: str) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on a terminal, a line every half minute elsewhere, nothing in the other processes."""
    console = Console()
    if not active:
        yield lambda record: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(20),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Bar(*columns, console=console) as bar:
            task = bar.add_task(title, total=1.0)

            def show(record: Progress) -> None:
                bar.update(task, completed=record.progress, description=_summary(record))
                if record.evaluation:
                    bar.console.print(_evaluation(record), highlight=False)

            yield show
    else:
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        yield _Lines(console)


class _Lines:
    """Prints a record now and then."""

    def __init__(self, console: Console) -> None:
        self.console, self.printed = console, float("-inf")

    def __call__(self, record: Progress) -> None:
        if time.monotonic() - self.printed > LINE_SECONDS or record.progress >= 1.0:
            self.printed = time.monotonic()
            self.console.print(_summary(record), highlight=False, soft_wrap=True)
        if record.evaluation:
            self.console.print(_evaluation(record), highlight=False, soft_wrap=True)


def _summary(record: Progress) -> str:
    parts = ", ".join(f"{label} {value:.3f}" for label, value in record.losses.items() if label)
    return (
        f"step {record.step}, loss {record.loss:.3f}{f' ({parts})' if parts else ''}, "
        f"{record.tokens / 1e6:.2f} M tokens at {record.tokens_per_second:.0f}/s, rate {record.factor:.2f}, "
        f"{record.seconds / 60:.1f} min"
    )


def _evaluation(record: Progress) -> str:
    figures = ", ".join(f"{name.removeprefix('eval/')} {value:.3f}" for name, value in record.evaluation.items())
    return f"step {record.step}, evaluated: {figures}"


def _complain(error: UnmaskError) -> None:
    Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    train_app()
