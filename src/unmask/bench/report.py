"""From rows to the table: one summary per method and task, with quality beside every speed.

docs/metrics.md has the definitions.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.bench.contestants import Baseline
from unmask.bench.runner import Row
from unmask.errors import RequestError

ALL = "all tasks"  # the summary of every problem
SURE = 1.959964  # standard deviations that hold 95 % of a normal distribution
LARGE = 1_000_000_000  # parameters from which on a model is no toy

Ratios = dict[str, float | None]  # by baseline; None where the baseline's own figure is 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What one method did on one task, or on all of them."""

    task: str  # or ALL
    method: str
    model: str  # it ran on
    baseline: Baseline
    problems: int
    correct: int
    accuracy: float  # 0..1
    accuracy_low: float  # ends of the 95 % Wilson interval, 0..1
    accuracy_high: float
    nfe: float  # mean per answer
    tpf: float  # decided tokens of all answers / forward passes of all answers
    rows_computed: float  # mean per answer
    useful_tokens: float  # mean per answer
    tokens_per_second: float  # median over the repeats
    tokens_per_second_by_repeat: list[float]
    seconds: float  # median per answer
    ended: float  # share of the answers that came to an end token, 0..1
    changed: int  # answers of later repeats that are not those of the first
    drift: float | None  # mean per answer, 0..1; None = not measured
    nfe_over: Ratios
    tokens_per_second_over: Ratios
    decoder: str
    schedule: str
    cache: str
    config_hash: str


@dataclass(frozen=True, slots=True)
class Report:
    """All summaries of a run, tasks in their order and baselines first, and what to know when reading them."""

    summaries: list[Summary]
    notes: list[str]
    facts: dict[str, Any]  # what holds for every row: model, machine, length, ...

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(summary.task for summary in self.summaries))

    def of(self, task: str) -> list[Summary]:
        """The summaries of one task."""
        return [summary for summary in self.summaries if summary.task == task]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def wilson(correct: int, problems: int) -> tuple[float, float]:
    """Ends of the 95 % Wilson score interval of a share, 0..1.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (JASA 22, 1927).
    """
    if not problems:
        return 0.0, 1.0
    share, spread = correct / problems, SURE**2 / problems
    centre = (share + spread / 2) / (1 + spread)
    half = sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    # Rounding must not put the share itself outside, where it is 0 or 1.
    return min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)


def report(rows: Iterable[Row]) -> Report:
    """Summarise the rows of one run, also of one that was broken off.

    Raises:
        RequestError: no rows.
    """
    rows = _answered_by_all(list(rows))
    if not rows:
        raise RequestError("got no rows to report on")
    tasks = list(dict.fromkeys(row.task for row in sorted(rows, key=lambda row: row.problem)))
    methods = list(dict.fromkeys(_method_of(row) for row in sorted(rows, key=lambda row: row.baseline or "Z")))
    summaries: list[Summary] = []
    for task in tasks if len(tasks) == 1 else [*tasks, ALL]:
        summaries += _of_task(task, methods, [row for row in rows if task in (row.task, ALL)])
    first = next((row for row in rows if row.baseline), rows[0])  # the baselines run on the benchmark's own model
    names = ("started", "model", "weights_hash", "parameters", "dtype", "device", "hardware", "threads", "versions")
    facts = {name: getattr(first, name) for name in (*names, "length", "batch_size", "template")}
    return Report(summaries, notes(rows), facts | {"repeats": _num_repeats(rows)})


def _answered_by_all(rows: list[Row]) -> list[Row]:
    """Without the problem at which a run was broken off before the last method had answered it."""
    answers = Counter((row.problem, row.repeat) for row in rows)
    methods = max(answers.values(), default=0)
    return [row for row in rows if answers[row.problem, row.repeat] == methods]


def _method_of(row: Row) -> tuple[str, str]:
    """A method and the model it ran on."""
    return row.method, row.model


def _of_task(task: str, methods: list[tuple[str, str]], rows: list[Row]) -> list[Summary]:
    groups = {method: [row for row in rows if _method_of(row) == method] for method in methods}
    bases: dict[str, list[Row]] = {group[0].baseline: group for group in groups.values() if group[0].baseline}
    return [_summary(task, group, bases) for group in groups.values()]


def _summary(task: str, rows: list[Row], bases: dict[str, list[Row]]) -> Summary:
    first, once = rows[0], _first_repeat(rows)
    correct = sum(row.correct for row in once)
    low, high = wilson(correct, len(once))

    def over(figure: Callable[[list[Row]], float]) -> Ratios:
        return {name: figure(rows) / figure(base) if figure(base) else None for name, base in bases.items()}

    return Summary(
        task=task,
        method=first.method,
        model=first.model,
        baseline=first.baseline,
        problems=len(once),
        correct=correct,
        accuracy=correct / len(once),
        accuracy_low=low,
        accuracy_high=high,
        nfe=mean_nfe(rows),
        tpf=sum(row.decided_tokens for row in once) / sum(row.nfe for row in once),
        rows_computed=fmean(row.rows_computed for row in once),
        useful_tokens=fmean(row.useful_tokens for row in once),
        tokens_per_second=median_speed(rows),
        tokens_per_second_by_repeat=speeds(rows),
        seconds=median(row.seconds for row in rows),
        ended=fmean(row.finish_reason == "stop" for row in once),
        changed=sum(row.changed for row in rows),
        drift=mean_drift(once),
        nfe_over=over(mean_nfe),
        tokens_per_second_over=over(median_speed),
        decoder=first.decoder,
        schedule=first.schedule,
        cache=first.cache,
        config_hash=first.config_hash,
    )


def _first_repeat(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.repeat == 0]


def mean_nfe(rows: list[Row]) -> float:
    """Forward passes per answer."""
    return fmean(row.nfe for row in _first_repeat(rows))


def mean_drift(rows: list[Row]) -> float | None:
    """Share of commits whose token the cache has changed, mean per answer; None if it was not measured."""
    found = [row.drift for row in rows if row.drift is not None]
    return fmean(found) if found else None


def speeds(rows: list[Row]) -> list[float]:
    """Useful tokens per second of every repeat: all useful tokens over all seconds.

    A repeat that was broken off is left out, unless it is the only one.
    """
    repeats: dict[int, list[Row]] = {}
    for row in rows:
        repeats.setdefault(row.repeat, []).append(row)
    complete = max(len(group) for group in repeats.values())
    speeds = []
    for group in (group for group in repeats.values() if len(group) == complete):
        seconds = sum(row.seconds for row in group)
        speeds.append(sum(row.useful_tokens for row in group) / seconds if seconds > 0 else 0.0)
    return speeds


def _num_repeats(rows: Sequence[Row]) -> int:
    """Repeats that count."""
    return len(speeds([row for row in rows if _method_of(row) == _method_of(rows[0])]))


def median_speed(rows: list[Row]) -> float:
    """Median over the repeats of `speeds`."""
    return median(speeds(rows))


def notes(rows: Sequence[Row]) -> list[str]:
    """What to know when reading the table."""
    first, repeats = rows[0], _num_repeats(rows)
    rounds = f"median of {repeats} repeats" if repeats > 1 else "one repeat"
    found = [
        "A and B are the baselines, always run. /A and /B: the figure to their left, divided by that of the baseline.",
        "% right with its 95 % Wilson interval. NFE: forward passes, mean per answer. TPF: tokens up to and with the "
        "end token per forward pass, over all answers. rows: hidden states computed, mean per answer. tok/s: tokens "
        f"before the end token per second of decoding, prompt and tail not counted, {rounds}.",
    ]
    if first.batch_size > 1:
        found.append(
            f"Batches of up to {first.batch_size}: the seconds of a batch are shared evenly by its answers; tok/s is "
            "the sum of useful tokens over the sum of the batches' seconds."
        )
    if any(row.method.endswith("tokens/step") for row in rows):
        found.append(
            f"N tokens/step plans {first.length}/N steps for all {first.length} slots; an answer that ends early takes "
            "fewer."
        )
    if len({row.model for row in rows}) > 1:
        found.append("on NAME: a method that runs on a model of its own; all others run on the one named above.")
    if any(row.drift is not None for row in rows):
        found.append(
            "drift: committed tokens that would have been others without the cache, step by step, in percent, mean per "
            "answer."
        )
    changed = sum(row.changed for row in rows)
    if changed:
        found.append(f"{changed} answers of later repeats differ from those of the first; quality is the first one's.")
    if first.parameters is None or first.parameters < LARGE:
        size = "" if first.parameters is None else f" ({first.parameters / 1e6:.1f} M parameters)"
        found.append(f"A model of this size{size} is no LLaDA: the ranking of methods may differ at 8B.")
    return found


HEADINGS = ("method", "% right", "(95 %)", "NFE", "/A", "/B", "TPF", "rows", "tok/s", "/A", "/B")


def headings(whole: Report) -> tuple[str, ...]:
    """Those of the table; the last one only if somebody asked for it."""
    measured = any(summary.drift is not None for summary in whole.summaries)
    return (*HEADINGS, "drift") if measured else HEADINGS


def label(summary: Summary, whole: Report) -> str:
    """What a table or plot calls a method: its name, and its model where that is not the benchmark's."""
    return summary.method + ("" if summary.model == whole.facts["model"] else f" on {summary.model}")


def cells(summary: Summary, whole: Report) -> tuple[str, ...]:
    """One line of the table, as in `headings`."""
    drift = () if summary.drift is None else (f"{100 * summary.drift:.1f}",)
    return (
        f"{summary.baseline or ' '} {label(summary, whole)}",
        f"{100 * summary.accuracy:.1f}",
        f"{100 * summary.accuracy_low:.0f}-{100 * summary.accuracy_high:.0f}",
        f"{summary.nfe:.1f}",
        ratio(summary.nfe_over.get("A")),
        ratio(summary.nfe_over.get("B")),
        three_digits(summary.tpf),
        short(summary.rows_computed),
        short(summary.tokens_per_second),
        ratio(summary.tokens_per_second_over.get("A")),
        ratio(summary.tokens_per_second_over.get("B")),
        *drift,
    )


def short(value: float) -> str:
    """Three digits or so: 0.62, 8.70, 58.8, 1234, 12.3k, 4.50M."""
    for limit, unit, name in ((1e4, 1.0, ""), (1e6, 1e3, "k")):
        if value < limit:
            return f"{three_digits(value / unit)}{name}"
    return f"{three_digits(value / 1e6)}M"


def three_digits(value: float) -> str:
    """At least: 0.62, 8.70, 58.8, 123, 1234."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def ratio(value: float | None) -> str:
    """As `three_digits`; a dash for none."""
    return "-" if value is None else three_digits(value)


def title(whole: Report, task: str) -> str:
    """Heading of a task's table."""
    number = whole.of(task)[0].problems
    return f"{task}, {number} problem{'s' if number != 1 else ''}"


def setting(whole: Report) -> str:
    """One line on what ran where."""
    facts = whole.facts
    threads = f"{facts['threads']} thread{'s' if facts['threads'] != 1 else ''}"
    machine = f"{facts['device']}, {facts['dtype'] or 'unknown dtype'}, {threads}"
    return f"{facts['model']} on {machine}, length {facts['length']}, batch size {facts['batch_size']}"


def tables(whole: Report) -> list[Table]:
    """The report for a terminal, a table per task; 80 columns are enough."""
    return [_table(whole, task) for task in whole.tasks]


def _table(whole: Report, task: str) -> Table:
    table = Table(title=title(whole, task), title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings(whole)):
        if place == 0:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for summary in whole.of(task):
        table.add_row(*map(Text, cells(summary, whole)), style="bold" if summary.baseline else None)
    return table


def markdown(whole: Report) -> str:
    """The report as Markdown, ready to paste."""
    parts = [setting(whole) + "."]
    for task in whole.tasks:
        parts.append(f"**{title(whole, task)}**")
        names = headings(whole)
        lines = [names, ("---", *["---:"] * (len(names) - 1)), *(cells(one, whole) for one in whole.of(task))]
        parts.append("\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines))
    parts.append("\n".join(f"* {note}" for note in whole.notes))
    return "\n\n".join(parts) + "\n"


class RowFile:
    """A JSONL file that grows by one whole line per row, so that a run that is broken off leaves all it had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def __enter__(self) -> "RowFile":
        try:
            self._file = self.path.open("a+b", buffering=0)
            if self._file.seek(0, 2):
                self._file.seek(-1, 2)
                if self._file.read(1) != b"\n":  # whoever wrote before was stopped within a line
                    self._file.write(b"\n")
        except OSError as error:
            raise RequestError(f"cannot write rows to {self.path}: {error.strerror}") from None
        return self

    def add(self, row: Row) -> None:
        """Write a row at once.

        Raises:
            RequestError: it cannot be written, e.g. because the disk is full.
        """
        assert self._file is not None, "rows are added inside the with block"
        line = json.dumps(row.to_dict(), ensure_ascii=False).encode("utf-8") + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise RequestError(f"cannot write rows to {self.path}: {error.strerror}") from None
        if written != len(line):
            raise RequestError(f"cannot write rows to {self.path}: only a part of a row was taken; is the disk full?")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
