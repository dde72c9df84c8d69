"""`unmask rollout`: answer many problems and keep how each answer came about, to train on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unmask.cli.output import check_device, check_seed, check_writable, console_for, parse_shares, puzzle_keys, say
from unmask.core.schedules import SCHEDULES
from unmask.decoders import DECODERS
from unmask.errors import RequestError
from unmask.evaluation.problems import file_problems, grade
from unmask.evaluation.tasks import Problem
from unmask.loading import load
from unmask.training.rollouts import Collected, RolloutOptions, collect, distinct_problems, write_answers

DEFAULTS = RolloutOptions()
DEFAULT_TEMPERATURES = ",".join(f"{one:g}" for one in DEFAULTS.temperatures)
DEFAULT_TASKS = "functions=0.9,sudoku=0.1"
DEFAULT_PROBLEMS = 1000  # of the tasks
LINE_SECONDS = 30.0  # between progress lines where there is no terminal
INTERRUPTED = 130  # exit code of a program that was stopped with Ctrl-C


def rollout(
    out: Annotated[Path, typer.Option(help="Folder for the trajectories and their index.")],
    model: Annotated[str, typer.Option(help="builtin, a folder, or a hub id.")] = "builtin",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter on top of it, a folder or a hub id.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='Problems of your own, JSON lines: {"prompt", "answer"}, {"prompt", "checks", "entry_point"} with an '
            'optional "task", or 4x4 sudokus {"input", "output"}. A file or a folder.'
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help=f"Built-in tasks and their shares of the problems; {DEFAULT_TASKS} if not given.")
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help=f"Number of problems, {DEFAULT_PROBLEMS} if not given; of a file, of each task."),
    ] = None,
    exclude_sudoku: Annotated[
        Path | None, typer.Option(help="Puzzles (JSONL file or folder) that must not occur.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Decoding method; see `unmask list`.", show_default=DEFAULTS.decoder)
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help=f"Which slots are open; {DEFAULTS.schedule} if neither this nor a method is given, else what the "
            "method needs."
        ),
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="Tried in this order until an answer is right.")
    ] = DEFAULT_TEMPERATURES,
    length: Annotated[int, typer.Option(min=1, help="Answer slots, tokens.")] = DEFAULTS.length,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems decoded together.")] = DEFAULTS.batch_size,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what --out holds already.")] = False,
    seed: Annotated[int, typer.Option(help="Of the problems and of the noise.")] = DEFAULTS.seed,
    answers: Annotated[
        Path | None,
        typer.Option(help='At the end, also write the right answers to this file, JSON lines {"prompt", "answer"}.'),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
) -> None:
    """Answer problems, check the answers, and keep the trajectories for training.

    Every problem is answered at one temperature after another until an answer is right. `unmask train wino-plus` learns
    from the folder, `unmask train dparallel` and `unmask train sft` from the file of --answers. Ctrl-C keeps what is
    stored; the same command with --resume goes on.
    """
    check_seed(seed)
    check_device(device)
    if answers is not None:
        check_writable(answers)
    options = _options(decoder, schedule, temperatures, length, batch_size, seed)
    asked = _problems(prompts, tasks, problems, exclude_sudoku, seed)
    loaded = load(model, device=device, dtype=dtype, adapter=adapter)
    begun = time.monotonic()
    try:
        with _display(len(asked)) as show:
            done = collect(loaded, asked, out, options, resume=resume, grade=grade, progress=show)
    except KeyboardInterrupt:
        say("warning", f"stopped; {out} keeps what is stored, go on with --resume")
        raise typer.Exit(INTERRUPTED) from None
    console = console_for("stdout")
    console.print(f"{out}: {_summary(done)}, {time.monotonic() - begun:.1f} s", soft_wrap=True)
    if answers is not None:
        console.print(f"{answers}: {write_answers(out, asked, loaded.text, answers)} right answers", soft_wrap=True)


def _options(
    decoder: str | None, schedule: str | None, temperatures: str, length: int, batch_size: int, seed: int
) -> RolloutOptions:
    """The options, checked as far as can be without a model.

    Raises:
        RequestError, UnknownNameError: bad input.
    """
    if decoder is not None:
        DECODERS.make(decoder)
    elif schedule is None:
        schedule = DEFAULTS.schedule
    if schedule is not None:
        SCHEDULES.make(schedule)
    try:
        tried = tuple(float(one) for one in temperatures.split(","))
    except ValueError:
        raise RequestError(f'--temperatures: wants numbers with commas between them: got "{temperatures}"') from None
    try:
        return RolloutOptions(decoder or DEFAULTS.decoder, schedule, tried, length, seed=seed, batch_size=batch_size)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _problems(
    prompts: Path | None, tasks: str | None, count: int | None, exclude_sudoku: Path | None, seed: int
) -> list[Problem]:
    if prompts is None:
        shares = parse_shares("--tasks", tasks or DEFAULT_TASKS)
        return distinct_problems(
            shares, count or DEFAULT_PROBLEMS, seed, puzzle_keys("--exclude-sudoku", exclude_sudoku)
        )
    if tasks is not None or exclude_sudoku is not None:
        raise RequestError("give --prompts, or --tasks and --exclude-sudoku, not both")
    return file_problems(prompts, count=count)


@contextmanager
def _display(total: int) -> Iterator[Callable[[Collected], None]]:
    """On stderr: a progress bar if it is a terminal, else a line every half minute."""
    console = console_for("stderr")
    text = TextColumn("{task.description}")
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), text)
    printed = time.monotonic()

    def line(state: Collected) -> None:
        nonlocal printed
        if time.monotonic() - printed > LINE_SECONDS:
            printed = time.monotonic()
            console.print(_summary(state), soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda state: progress.update(task, completed=state.stored, description=_summary(state))


def _summary(state: Collected) -> str:
    return (
        f"{state.stored} of {state.total} problems stored, {state.correct} right, {state.truncated} truncated, "
        f"{state.too_long} too long, {state.answers} answers decoded"
    )
