"""`unmask bench`: methods against each other on the same problems."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unmask.bench import runner, trained
from unmask.bench.contestants import Contestant, grid, line_up, of_preset, parse
from unmask.bench.plot import check_plot, draw
from unmask.bench.report import Report, RowFile, markdown, report, setting, tables
from unmask.cli.output import Attention, check_writable, console_for, say
from unmask.errors import RequestError
from unmask.evaluation.problems import file_problems, suite_problems
from unmask.evaluation.tasks import SUITE, TASKS, Problem
from unmask.generation import DEFAULT_LENGTH, Model
from unmask.loading import load

DEFAULT_PROBLEMS = 50  # of each task of the suite
INTERRUPTED = 130  # exit code of a program that was stopped with Ctrl-C


def bench(
    decoder: Annotated[
        list[str] | None,
        typer.Option(
            help='A method, e.g. "factor" or "threshold(threshold=0.7) @ dual"; repeat for more. Behind "@" may stand '
            "a schedule, a cache, a variant of the built-in model to run it on (builtin:NAME), or more with further @."
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(help='A method under its paper\'s name, "d2f" or "wino:llada/gsm8k"; repeat for more.'),
    ] = None,
    grid_name: Annotated[
        str | None,
        typer.Option(
            "--grid",
            help='"table": 1, 2, 4 and 8 tokens per step, and thresholds 0.9, 0.7 and 0.5. "methods": every method at '
            'its default. "caches": every cache. "sweep": settings of each method to choose from. '
            '"chosen": those that suit the built-in model.',
        ),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help='Schedule of every method that names none with "@". The baselines keep theirs.')
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help='Cache of every method that names none with "@". The baselines keep theirs.')
    ] = None,
    model: Annotated[str, typer.Option(help="builtin, a folder, or a hub id.")] = "builtin",
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter on top of it, a folder or a hub id.")] = None,
    attention: Annotated[
        Attention | None, typer.Option(help="Read the checkpoint as a block-causal one (D2F adapters) or not.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help='"builtin" (the default): generated problems the built-in model has never seen. "builtin-training": '
            "its trained variants against each other on such problems."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help='Problems of your own instead, JSON lines: {"prompt", "answer"}, {"prompt", "checks", "entry_point"} '
            'with an optional "task", or 4x4 sudokus {"input", "output"}. A file or a folder.'
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help=f"Only these tasks, with commas between them. The suite has {', '.join(TASKS)}; "
            f"{' and '.join(SUITE)} if not given."
        ),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help=f"Problems per task; {DEFAULT_PROBLEMS} of the suite or all of a file if not given."),
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Answer slots, tokens.")] = DEFAULT_LENGTH,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems decoded together.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Times everything is measured; the table shows medians.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the suite's problems and of the noise.")] = 0,
    drift: Annotated[
        bool,
        typer.Option("--drift", help="Also measure how many tokens each cache has changed, outside the clock."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Append a JSON row per answer to this file, as soon as it is there.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw accuracy against TPF and tokens/s to this file, .svg, .png or .pdf (extra viz)."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON instead of the table.")] = False,
    markdown_: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice if not given.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
) -> None:
    """Compare decoding methods: quality, forward passes and speed on the same problems.

    Two baselines always take part: A, one token per step, and B, threshold 0.9; both stop at the end token.

    Every problem is answered by all methods before the next one is touched. docs/metrics.md defines every number.

    Try: unmask bench --grid table --problems 10 --tasks sudoku
    """
    if json_ and markdown_:
        raise RequestError("give --json or --markdown, not both")
    if out is not None:
        check_writable(out)
    if plot is not None:
        check_plot(plot)
        check_writable(plot)
    chosen = _contestants(decoder or [], grid_name, schedule, cache, length)
    chosen += [of_preset(spec) for spec in preset or []]
    training = suite == trained.SUITE_NAME
    if training:
        chosen = [*trained.CONTESTANTS, *chosen]
        suite, tasks, problems = "builtin", tasks or ",".join(trained.TASKS), problems or trained.PROBLEMS
    asked = _problems(suite, data, tasks, problems, seed)
    if threads is not None:
        torch.set_num_threads(threads)
    pattern = None if attention is None else attention.pattern
    loaded = load(model, device=device, dtype=dtype, attention=pattern, adapter=adapter)
    named = dict.fromkeys(contestant.model for contestant in chosen if contestant.model is not None)
    others = {name: load(name, device=device, dtype=dtype, attention=None, adapter=None) for name in named}
    methods = len(line_up(chosen, loaded.facts, {name: one.facts for name, one in others.items()}))
    rows: list[runner.Row] = []
    interrupted = False
    with _bar(runner.num_ticks(methods, asked, batch_size, repeats)) as tick:
        answers = runner.bench(
            loaded,
            asked,
            chosen,
            repeats=repeats,
            length=length,
            batch_size=batch_size,
            seed=seed,
            drift=drift,
            others=others,
            tick=tick,
        )
        with RowFile(out) if out else nullcontext() as file:
            try:
                for row in answers:
                    rows.append(row)
                    if file:
                        file.add(row)
            except KeyboardInterrupt:
                interrupted = True
    if interrupted:
        say("warning", f"interrupted after {len(rows)} of {methods * len(asked) * repeats} answers")
    if rows:
        whole = report(rows)
        if training and not interrupted:
            whole = _with_step_costs(whole, others)
        _print(whole, as_json=json_, as_markdown=markdown_)
        if plot is not None:
            draw(whole, plot)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _contestants(
    decoders: list[str], grid_name: str | None, schedule: str | None, cache: str | None, length: int
) -> list[Contestant]:
    if not decoders and grid_name is None and (schedule or cache):
        raise RequestError("--schedule and --cache are for methods of --decoder or --grid; the baselines keep theirs")
    named = grid(grid_name, length, schedule, cache) if grid_name is not None else []
    return [*named, *(parse(text, schedule, cache) for text in decoders)]


def _with_step_costs(whole: Report, others: dict[str, Model]) -> Report:
    return trained.with_step_costs(whole, trained.step_costs(others[trained.TWIN], others[trained.D2F]))


def _problems(suite: str | None, data: Path | None, tasks: str | None, count: int | None, seed: int) -> list[Problem]:
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if data is None:
        return suite_problems(suite or "builtin", names, count or DEFAULT_PROBLEMS, seed)
    if suite is not None:
        raise RequestError("give --suite or --data, not both")
    return file_problems(data, names, count)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, if that is a terminal."""
    console = console_for("stderr")
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("decoding", total=total)
        yield lambda: progress.advance(task)


def _print(whole: Report, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        typer.echo(json.dumps(whole.to_dict(), ensure_ascii=False, indent=2))
        return
    if as_markdown:
        typer.echo(markdown(whole), nl=False)
        return
    console = console_for("stdout")
    console.print(setting(whole))
    for table in tables(whole):
        console.print()
        console.print(table)
    console.print()
    for note in whole.notes:
        console.print(note, style="dim")
