"""`unmask demo`: watch a few real problems being solved, then see what parallel decoding buys and what it costs."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.generate import cost
from unmask.cli.output import check_device, check_seed, console_for

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from unmask.bench.report import Report
    from unmask.evaluation.tasks import Problem
    from unmask.generation import Model

PARALLEL = "threshold(threshold=0.9)"  # the bench's baseline B
LENGTH = 128  # answer slots
PATIENCE = 60.0  # seconds; a slow machine compares on fewer problems than asked for
MOST_PROBLEMS = 3000
INTRODUCTION = (
    "An answer starts as masked slots; a step commits those the model is sure of.",
    "The colour of a token says at which step that was.",
    "The problems are held out: the built-in model never saw them in training.",
)


def demo(
    model: Annotated[str, typer.Option(help='"builtin", a folder, or a hub name "organisation/name".')] = "builtin",
    problems: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_PROBLEMS, help="Problems to compare two methods on, as many of each task; 0 = none."
        ),
    ] = 36,
    seed: Annotated[int, typer.Option(help="Of the choice of problems.")] = 0,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", "mps".')] = "auto",
) -> None:
    """Watch real problems being solved, then compare two methods on more of them."""
    check_seed(seed)

    from unmask.bench.environment import num_parameters
    from unmask.evaluation.problems import suite_problems
    from unmask.evaluation.tasks import SUITE
    from unmask.loading import load

    begun = time.perf_counter()
    check_device(device)
    loaded = load(model, device=device)
    console = console_for("stdout")
    size = num_parameters(loaded) or 0
    console.print(f"{model}, {size / 1e6:.1f} M parameters, {loaded.device}", style="bold")
    for line in INTRODUCTION:
        console.print(line, style="dim")
    console.print()

    per_task = -(-problems // len(SUITE))
    compared: list[Problem] = []
    for number, task in enumerate(SUITE, start=1):
        watched, *others = suite_problems("builtin", [task], 1 + per_task, seed)  # distinct, so none is shown twice
        compared += others
        _watch(loaded, watched, f"{number}/{len(SUITE)} {task}", console)
    if compared:
        _compare(loaded, compared, console)
    console.print()
    console.print(f'{time.perf_counter() - begun:.0f} seconds. Next: unmask generate "..." --watch', style="dim")


def _watch(model: "Model", problem: "Problem", title: str, console: "Console") -> None:
    """Solve one problem before everybody's eyes."""
    from rich.text import Text

    from unmask.cli.watch import decode
    from unmask.evaluation.problems import grade
    from unmask.generation import Recipe, start_state
    from unmask.show.terminal import Screen

    recipe = Recipe.of(PARALLEL, facts=model.facts)
    state = start_state(model, [problem.prompt], LENGTH)
    if console.is_terminal:
        with Screen(console, title) as screen:
            answer = decode(model, state, recipe, {}, screen)
    else:
        answer = decode(model, state, recipe, {})
        console.print(f"{title}\n{problem.prompt}\n\n{answer.text}", soft_wrap=True)
    [right] = grade([problem], [answer.text])
    verdict = ("right", "bold green") if right else ("wrong", "bold red")
    console.print(Text.assemble("  ", verdict, (f"  {cost(answer)}\n", "dim")), soft_wrap=True)


def _compare(model: "Model", problems: list["Problem"], console: "Console") -> None:
    """Both baselines of the benchmark on the same problems, in turns."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from unmask.bench.report import report
    from unmask.bench.runner import Row, bench

    begun = time.perf_counter()
    rows: list[Row] = []
    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("comparing", total=2 * len(problems))
        for row in bench(model, problems, length=LENGTH):
            rows.append(row)
            progress.advance(bar)
            if time.perf_counter() - begun > PATIENCE and len(rows) % 2 == 0:
                break
    if len(rows) < 2 * len(problems):
        console.print(f"Slow machine: {len(rows) // 2} of {len(problems)} problems after {PATIENCE:.0f} seconds.")
    whole = report(rows)
    console.print(_table(whole))
    console.print(f"\n{_verdict(whole)}", soft_wrap=True)


def _table(whole: "Report") -> "Table":
    """A column per method."""
    from rich.table import Table

    totals = whole.of(whole.tasks[-1])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for total in totals:
        table.add_column(total.method, justify="right", no_wrap=True)
    for task in whole.tasks:
        found = {one.method: f"{one.correct}/{one.problems}" for one in whole.of(task)}
        table.add_row(f"right answers, {task}", *(found[total.method] for total in totals))
    table.add_row("accuracy", *(f"{100 * total.accuracy:.0f} %" for total in totals))
    table.add_row("forward passes (NFE)", *(f"{total.nfe:.1f}" for total in totals))
    table.add_row("tokens per forward pass (TPF)", *(f"{total.tpf:.2f}" for total in totals))
    table.add_row("rows computed", *(f"{total.rows_computed:,.0f}" for total in totals))
    table.add_row("tokens per second", *(f"{total.tokens_per_second:,.0f}" for total in totals))
    return table


def _verdict(whole: "Report") -> str:
    """What the second method gained and lost against the first, in words."""
    slow, fast = whole.of(whole.tasks[-1])
    difference = fast.correct - slow.correct
    right = f"{abs(difference)} {'more' if difference > 0 else 'fewer'}" if difference else "as many"
    passes = slow.nfe / fast.nfe
    speed = fast.tokens_per_second / slow.tokens_per_second if slow.tokens_per_second else 0.0
    return f"{fast.method}: {passes:.1f}x fewer passes, {speed:.1f}x the tokens/s, {right} right"
