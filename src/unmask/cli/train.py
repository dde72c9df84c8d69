"""`unmask train sft`: train a small model from nothing, or go on from a checkpoint."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from unmask.errors import UnmaskError
from unmask.evaluation.tasks import load_sudoku
from unmask.evaluation.tasks.suite import training_problems
from unmask.models.backbone import Backbone
from unmask.training.data import BucketedBatches, ChatEncoder, DataError, ExampleSource, FileExamples, GeneratedExamples
from unmask.training.export import config_facts, export
from unmask.training.loop import Progress, TrainingError, latest_checkpoint, train
from unmask.training.recipes.sft import fresh_model, sft, small_config, trainable
from unmask.training.tokenizer import END_TOKEN, MASK_TOKEN, save_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)
train_app = typer.Typer(no_args_is_help=True, help="Train models.")
TOKENIZER_PROBLEMS = 20_000  # problems from which the tokenizer of a new model is trained


@dataclass(frozen=True, slots=True)
class _Settings:
    """Everything a process needs to build its run; sent to each."""

    out: Path
    data: Path | None
    mix: dict[str, float]
    exclude: frozenset[str]
    minutes: float | None
    steps: int | None
    seed: int
    processes: int
    threads: int
    resume: bool
    batch_tokens: int
    micro_batches: int
    width: int
    layers: int
    heads: int
    feed_width: int
    checkpoint_minutes: float


@train_app.callback()
def _keep_the_subcommand() -> None:
    """Train models."""


@train_app.command("sft")
def sft_command(
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics.jsonl, tokenizer and the exported model.")],
    minutes: Annotated[float | None, typer.Option(help="End after this much training time.")] = None,
    steps: Annotated[int | None, typer.Option(help="End after this many steps.")] = None,
    data: Annotated[
        Path | None, typer.Option(help='JSON lines: {"prompt": ..., "answer": ...} or {"messages": [...]}.')
    ] = None,
    mix: Annotated[
        str, typer.Option(help="Shares of the built-in tasks, in tokens; used without --data.")
    ] = "functions=0.6,sudoku=0.15,words=0.25",
    exclude_sudoku: Annotated[
        Path | None, typer.Option(help="Folder of JSONL puzzles that must not occur in training.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, data and noise.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share each step.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 1,
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint in --out.")] = False,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one micro-batch.")] = 2048,
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of one step, shared by the processes.")] = 2,
    width: Annotated[int, typer.Option(help="Hidden size.")] = 192,
    layers: Annotated[int, typer.Option(help="Transformer layers.")] = 6,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 6,
    feed_width: Annotated[int, typer.Option(help="Inner size of the feed-forward part.")] = 512,
    checkpoint_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 3.0,
) -> None:
    """Supervised training with LLaDA's masked cross-entropy."""
    try:
        settings = _Settings(
            out=out, data=data, mix=parse_mix(mix), exclude=_puzzles(exclude_sudoku), minutes=minutes, steps=steps,
            seed=seed, processes=processes, threads=threads, resume=resume, batch_tokens=batch_tokens,
            micro_batches=micro_batches, width=width, layers=layers, heads=heads, feed_width=feed_width,
            checkpoint_minutes=checkpoint_minutes,
        )  # fmt: skip
        if not resume and latest_checkpoint(out) is not None:
            raise TrainingError(f"{out} already has checkpoints: pass --resume, or choose another --out")
        _prepare_tokenizer(settings)
        _launch(settings)
        newest = latest_checkpoint(out)
        assert newest is not None, "a finished run leaves a checkpoint"
        export(newest, out, out / "model")
        Console().print(f"model written to {out / 'model'}")
    except UnmaskError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        raise typer.Exit(1) from None


def parse_mix(text: str) -> dict[str, float]:
    """Read "functions=0.6,sudoku=0.4".

    Raises:
        DataError: if a part is no `task=share` with a positive share.
    """
    mix = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            mix[name.strip()] = float(share)
        except ValueError:
            raise DataError(f'--mix: expected task=share, got "{part}", e.g. functions=0.6,sudoku=0.4') from None
        if mix[name.strip()] <= 0:
            raise DataError(f'--mix: shares must be positive, got "{part}"')
    return mix


def _puzzles(folder: Path | None) -> frozenset[str]:
    if folder is None:
        return frozenset()
    try:
        return frozenset(problem.key for problem in load_sudoku(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"--exclude-sudoku: {error}") from None


def _prepare_tokenizer(settings: _Settings) -> None:
    """Train and write the tokenizer of a new model, unless the folder has one."""
    if (settings.out / "tokenizer.json").exists():
        return
    settings.out.mkdir(parents=True, exist_ok=True)

    def texts() -> Iterator[str]:
        share = TOKENIZER_PROBLEMS // len(settings.mix)
        for task in settings.mix:
            for _, problem in zip(range(share), training_problems({task: 1.0}, settings.seed, settings.exclude)):
                yield f"{problem.prompt}\n{problem.answer}"

    save_tokenizer(train_tokenizer(texts()), settings.out)


def _launch(settings: _Settings) -> None:
    """Run in this process, or as one of torchrun's, or start the processes."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        _work(settings)
        dist.destroy_process_group()
    elif settings.processes == 1:
        _work(settings)
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
                _worker, (settings, f"file://{folder}/rendezvous"), nprocs=settings.processes, start_method="spawn"
            )


def _worker(rank: int, settings: _Settings, address: str) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=settings.processes)
    _work(settings)
    dist.destroy_process_group()


def _work(settings: _Settings) -> None:
    from transformers import AutoTokenizer

    torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(settings.out)
    mask_id, end_id = (tokenizer.convert_tokens_to_ids(token) for token in (MASK_TOKEN, END_TOKEN))
    config = small_config(
        len(tokenizer), width=settings.width, num_layers=settings.layers, num_heads=settings.heads,
        feed_width=settings.feed_width,
    )  # fmt: skip
    model: Backbone = fresh_model(config, settings.seed)
    encoder = ChatEncoder(tokenizer, end_id)
    source: ExampleSource
    if settings.data is None:
        source = GeneratedExamples(settings.mix, encoder, settings.seed, settings.exclude)
    else:
        source = FileExamples(settings.data, encoder, settings.seed, config.max_length)
    run = sft(
        model,
        BucketedBatches(
            source, batch_tokens=settings.batch_tokens, end_id=end_id, seed=settings.seed, max_length=config.max_length
        ),
        mask_id=mask_id,
        steps=settings.steps,
        minutes=settings.minutes,
        micro_batches=settings.micro_batches,
        seed=settings.seed,
        folder=settings.out,
        checkpoint_minutes=settings.checkpoint_minutes,
        facts=config_facts(config, mask_id=mask_id, end_id=end_id),
    )
    first = not dist.is_initialized() or dist.get_rank() == 0
    with _display(first, f"{trainable(model) / 1e6:.2f} M parameters") as show:
        for record in train(run, resume=settings.resume):
            show(record)


@contextmanager
def _display(active: bool, title: str) -> Iterator[Any]:
    """A progress bar on a terminal, a line every half minute elsewhere."""
    console = Console()
    if not active:
        yield lambda record: None
        return
    if not console.is_terminal:
        console.print(title)
        last = [0.0]

        def line(record: Progress) -> None:
            if time.monotonic() - last[0] > 30 or record.progress >= 1.0:
                last[0] = time.monotonic()
                console.print(_summary(record), highlight=False, soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.percentage:>3.0f}%"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda record: bar.update(task, completed=record.progress, description=_summary(record))


def _summary(record: Progress) -> str:
    parts = " ".join(f"{label} {value:.3f}" for label, value in record.losses.items() if label)
    return (
        f"step {record.step} loss {record.loss:.3f} ({parts}) {record.tokens / 1e6:.2f} M tokens "
        f"{record.tokens_per_second:.0f}/s rate {record.factor:.3f} {record.seconds / 60:.1f} min"
    )


if __name__ == "__main__":
    train_app()
