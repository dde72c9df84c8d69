"""A picture of a report: accuracy against tokens per forward pass, and against tokens per second."""

from pathlib import Path
from typing import Any

from unmask.bench.report import Report, Summary, label, setting, title
from unmask.errors import RequestError

FORMATS = (".svg", ".png", ".pdf")
COLOURS = 10  # of matplotlib's cycle
SHAPES = ("o", "^", "D", "v", "P")


def check_plot(path: Path) -> None:
    """Refuse a plot that could not be drawn, before any work is done.

    Raises:
        RequestError: another kind of file, or matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise RequestError(f'a plot is a file ending in {", ".join(FORMATS)}: got "{path}"')
    _matplotlib()


def draw(whole: Report, path: Path) -> None:
    """Write the picture, a row of two panels per task; each method is a point with its 95 % interval.

    Raises:
        RequestError: see `check_plot`; or the file cannot be written.
    """
    check_plot(path)
    figure_of = _matplotlib()
    tasks = whole.tasks
    figure = figure_of(figsize=(13, 4.6 * len(tasks)), layout="constrained")
    figure.suptitle(setting(whole), fontsize=9)
    panels = figure.subplots(len(tasks), 2, squeeze=False, sharey="row")
    for row, task in zip(panels, tasks, strict=True):
        _panel(row[0], whole, task, "tpf", "tokens per forward pass")
        _panel(row[1], whole, task, "tokens_per_second", "tokens per second")
        row[0].set_ylabel("% right")
        row[0].set_title(title(whole, task), loc="left", fontsize=10)
    try:
        figure.savefig(path)
    except OSError as error:
        raise RequestError(f'cannot write the plot to "{path}": {error.strerror or error}') from None


def _panel(axes: Any, whole: Report, task: str, figure: str, name: str) -> None:
    for number, summary in enumerate(whole.of(task)):
        height = 100 * summary.accuracy
        spread = [[height - 100 * summary.accuracy_low], [100 * summary.accuracy_high - height]]
        axes.errorbar(
            getattr(summary, figure),
            height,
            yerr=spread,
            marker=_marker(summary, number),
            color=f"C{number % COLOURS}",
            markersize=7,
            capsize=2,
            elinewidth=0.8,
            linestyle="none",
            label=label(summary, whole),
        )
    axes.set_xlabel(name)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if figure == "tokens_per_second":
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _marker(summary: Summary, number: int) -> str:
    """Baselines are squares, methods other shapes: a new one where the colours begin again."""
    return "s" if summary.baseline else SHAPES[number // COLOURS % len(SHAPES)]


def _matplotlib() -> Any:
    """The class of figures; they are drawn without a display.

    Raises:
        RequestError: it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError('plots need matplotlib, which is not installed: pip install "unmask[viz]"') from None
    return Figure
