"""The `unmask` command: its sub-commands, and what becomes of errors.

Nothing heavy is imported here or at the top of the command files, so that help and bad options answer at once.
"""

import functools
import importlib
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unmask.cli.demo import demo
from unmask.cli.generate import generate
from unmask.cli.inspect import inspect
from unmask.cli.listing import list_parts
from unmask.cli.output import say
from unmask.cli.show import show
from unmask.errors import UnmaskError

FAILED = 2  # a mistake of the person at the keyboard, in the options or in what they name
INTERRUPTED = 130  # what shells report for Ctrl-C

# some releases of typer import click, others carry a copy: only the class tree is the same
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The command group, with one policy for errors: one line on stderr and an exit code, never a traceback.

    Bugs keep theirs: an exception nobody expected is not caught.
    """

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        inner = functools.partial(super().main, *args, **(extra | {"standalone_mode": False}))
        if not standalone_mode:
            return inner()
        _tolerate_narrow_encodings()
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                code = inner()
                sys.stdout.flush()
            except UnmaskError as error:
                say("error", str(error))
                code = FAILED
            except UsageError as error:
                code = _usage_error(error)
            except (KeyboardInterrupt, typer.Abort):
                code = INTERRUPTED
            except BrokenPipeError:
                # the reader has gone; without this, closing stdout at exit would complain
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                code = 1
        sys.exit(code)


def _usage_error(error: Any) -> int:
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if type(error).__name__ == "NoArgsIsHelpError":  # a command called with nothing: typer has printed its help already
        typer.echo(message, nl=bool(message))
    else:
        hint = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
        say("error", message + hint)
    return FAILED


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say("warning", str(message))


def _tolerate_narrow_encodings() -> None:
    """Let an output that cannot show a character show its escape."""
    for stream in (sys.stdout, sys.stderr):
        if stream.errors == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Decode masked diffusion language models."""
    if version:
        from unmask import __version__

        typer.echo(f"unmask {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("generate")(generate)
app.command("demo")(demo)
app.command("show")(show)
app.command("list")(list_parts)
app.command("inspect")(inspect)

# a command of another module is imported when it is called: it may be slow to import, or broken, and no other cares
_ELSEWHERE = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command("bench", context_settings=_ELSEWHERE, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure methods against each other."""
    _forward(context, "unmask.cli.bench", "bench")


@app.command("rollout", context_settings=_ELSEWHERE, add_help_option=False)
def rollout(context: typer.Context) -> None:
    """Answer many problems and keep how each answer came about, to train on."""
    _forward(context, "unmask.cli.rollout", "rollout")


@app.command("train", context_settings=_ELSEWHERE, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train models."""
    _forward(context, "unmask.cli.train", "train_app")


def _forward(context: typer.Context, module: str, name: str) -> None:
    """Hand the rest of the command line to a typer app, or a function, of another module."""
    target = vars(importlib.import_module(module))[name]
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        target.command()(function)
    command = typer.main.get_command(target)
    code = command.main(args=context.args, prog_name=context.command_path, standalone_mode=False)
    if isinstance(code, int) and code:
        raise typer.Exit(code)


def run() -> None:
    """Entry point of the `unmask` script."""
    # read when torch is loaded: threads that spin while they wait make short steps ten times slower on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app(prog_name="unmask")
