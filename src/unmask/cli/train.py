"""`unmask train sft`: train a small model from nothing, or fine-tune a checkpoint."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
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
from unmask.models.checkpoints import load_checkpoint
from unmask.models.config import BackboneConfig
from unmask.models.text import Text
from unmask.training.data import BucketedBatches, ChatEncoder, DataError, ExampleSource, FileExamples, GeneratedExamples
from unmask.training.export import MODEL_FILES, checkpoint_facts, export
from unmask.training.loop import Progress, TrainingError, latest_checkpoint, read_checkpoint, train
from unmask.training.recipes.sft import fresh_model, sft, small_config
from unmask.training.tokenizer import END_TOKEN, MASK_TOKEN, save_tokenizer, train_tokenizer

train_app = typer.Typer(no_args_is_help=True, help="Train models.")

TOKENIZER_PROBLEMS = 20_000  # problems from which the tokenizer of a new model is trained
LINE_SECONDS = 30.0  # between progress lines where there is no terminal

# glibc gives large blocks back to the system at once and fetches them again in the next step; keeping them makes CPU
# training 11 % faster. Read when a process starts, so only spawned workers profit.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
}


@dataclass(frozen=True, slots=True)
class _Settings:
    """Everything a process needs to build its run; sent to each."""

    out: Path
    init: str | None
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
    config: dict[str, int]  # sizes of a new model
    checkpoint_minutes: float


@train_app.callback()
def _keep_the_subcommand() -> None:
    """Train models."""


@train_app.command("sft")
def sft_command(
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics.jsonl and the exported model.")],
    init: Annotated[
        str | None, typer.Option(help="Checkpoint to fine-tune; without it a small model is trained from nothing.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help='JSON lines: {"prompt": ..., "answer": ...} or {"messages": [...]}.')
    ] = None,
    mix: Annotated[
        str, typer.Option(help="Built-in tasks and their shares in tokens, used where no --data is given.")
    ] = "functions=0.88,sudoku=0.12",
    exclude_sudoku: Annotated[
        Path | None, typer.Option(help="Puzzles (JSONL file or folder) that must not occur in training.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="End after this much training time.")] = None,
    steps: Annotated[int | None, typer.Option(help="End after this many steps.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    seed: Annotated[int, typer.Option(help="Of weights, data and noise.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share each step.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process; by default the cores are shared out.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=16, help="Tokens of one micro-batch.")] = 2048,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step, over all processes.")] = 2,
    width: Annotated[int, typer.Option(help="Hidden size of a new model.")] = 192,
    layers: Annotated[int, typer.Option(help="Layers of a new model.")] = 6,
    heads: Annotated[int, typer.Option(help="Attention heads of a new model.")] = 6,
    feed_width: Annotated[int, typer.Option(help="Inner size of a new model's feed-forward part.")] = 512,
    checkpoint_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 3.0,
) -> None:
    """Supervised training with LLaDA's masked cross-entropy."""
    try:
        settings = _Settings(
            out=out,
            init=init,
            data=data,
            mix=parse_mix(mix),
            exclude=_puzzles(exclude_sudoku),
            minutes=minutes,
            steps=steps,
            seed=seed,
            processes=processes,
            threads=threads or max((os.cpu_count() or 1) // processes, 1),
            resume=resume,
            batch_tokens=batch_tokens,
            micro_batches=micro_batches,
            config={"width": width, "num_layers": layers, "num_heads": heads, "feed_width": feed_width},
            checkpoint_minutes=checkpoint_minutes,
        )
        _check(settings)
        _launch(settings)
    except UnmaskError as error:
        _complain(error)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; go on with --resume", highlight=False)
        raise typer.Exit(130) from None


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
        if not 0.0 < mix[name.strip()] < float("inf"):
            raise DataError(f'--mix: shares must be positive, got "{part}"')
    return mix


def _puzzles(path: Path | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    try:
        return frozenset(problem.key for problem in load_sudoku(path))
    except (OSError, ValueError) as error:
        raise DataError(f"--exclude-sudoku: {error}") from None


def _check(settings: _Settings) -> None:
    """Refuse before anything is written."""
    newest = latest_checkpoint(settings.out)
    if newest is not None and not settings.resume:
        raise TrainingError(f"{settings.out} already has checkpoints: pass --resume, or choose another --out")
    if settings.minutes is None and settings.steps is None:
        raise TrainingError("a run needs an end: give --minutes, --steps or both")
    if settings.data is not None and not settings.data.is_file():
        raise DataError(f"--data: no file {settings.data}")
    if settings.micro_batches % settings.processes:
        raise TrainingError(
            f"--processes must divide --micro-batches: got {settings.processes} and {settings.micro_batches}"
        )


def _prepare_folder(settings: _Settings) -> None:
    """Put tokenizer files in place: those of the checkpoint to fine-tune, or a newly trained tokenizer."""
    settings.out.mkdir(parents=True, exist_ok=True)
    if (settings.out / "tokenizer_config.json").exists():
        return
    if settings.init is not None:
        folder = load_checkpoint(settings.init, device="cpu").folder
        for name in MODEL_FILES:
            if (folder / name).exists():
                shutil.copyfile(folder / name, settings.out / name)
        return

    def texts() -> Iterator[str]:
        for task in settings.mix:
            problems = training_problems({task: 1.0}, settings.seed, exclude=settings.exclude)
            for problem in islice(problems, TOKENIZER_PROBLEMS // len(settings.mix)):
                yield f"{problem.prompt}\n{problem.answer}"

    save_tokenizer(train_tokenizer(texts()), settings.out)


def _launch(settings: _Settings) -> None:
    """Run in this process, or as one of torchrun's, or start the processes; then export."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            _prepare_folder(settings)
        dist.barrier()
        _work(settings)
        first = dist.get_rank() == 0
        dist.destroy_process_group()
    else:
        _prepare_folder(settings)
        if settings.processes == 1:
            _work(settings)
        else:
            _start_processes(settings)
        first = True
    if first:
        newest = latest_checkpoint(settings.out)
        assert newest is not None, "a finished run leaves a checkpoint"
        export(newest, settings.out / "model")
        Console().print(f"model written to {settings.out / 'model'}", highlight=False, markup=False, soft_wrap=True)


def _start_processes(settings: _Settings) -> None:
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/rendezvous"
        try:
            torch.multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
                _worker, (settings, address), nprocs=settings.processes, start_method="spawn"
            )
        except torch.multiprocessing.ProcessExitedException:  # type: ignore[attr-defined]
            # The worker has said what was wrong.
            raise typer.Exit(1) from None


def _worker(rank: int, settings: _Settings, address: str) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=settings.processes)
    try:
        _work(settings)
    except UnmaskError as error:
        if rank == 0:
            _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    dist.destroy_process_group()


def _work(settings: _Settings) -> None:
    torch.set_num_threads(settings.threads)
    text = Text.load(settings.out)
    model, facts = _model(settings, text)
    encoder = ChatEncoder(text, facts["end_id"])
    source: ExampleSource
    if settings.data is None:
        source = GeneratedExamples(settings.mix, encoder, settings.seed, settings.exclude)
    else:
        source = FileExamples(settings.data, encoder, settings.seed, model.config.max_length)
    run = sft(
        model,
        BucketedBatches(
            source,
            batch_tokens=settings.batch_tokens,
            pad_id=facts["pad_id"],
            seed=settings.seed,
            max_length=model.config.max_length,
        ),
        mask_id=facts["mask_id"],
        shift=facts["shift"],
        steps=settings.steps,
        minutes=settings.minutes,
        micro_batches=settings.micro_batches,
        seed=settings.seed,
        folder=settings.out,
        checkpoint_minutes=settings.checkpoint_minutes,
        facts=facts,
    )
    first = not dist.is_initialized() or dist.get_rank() == 0
    trained = sum(parameter.numel() for parameter in model.parameters())
    with _display(first, f"{trained / 1e6:.2f} M parameters") as show:
        for record in train(run, resume=settings.resume):
            show(record)


def _model(settings: _Settings, text: Text) -> tuple[Backbone, dict[str, Any]]:
    """The backbone to train and its checkpoint facts."""
    newest = latest_checkpoint(settings.out)
    if newest is not None:
        facts = read_checkpoint(newest)["facts"]
        ids = {"pad_id": facts["end_id"], "shift": 0, "family": "llada"} | facts
        return Backbone(BackboneConfig(**facts["config"])), ids
    if settings.init is not None:
        loaded = load_checkpoint(settings.init, device="cpu", dtype="float32")
        known = loaded.facts
        # Of several end tokens the first is end of text, which pads, and the last end of turn.
        facts = checkpoint_facts(
            loaded.backbone.config,
            mask_id=known.mask_id,
            end_id=known.end_ids[-1],
            pad_id=known.end_ids[0],
            shift=known.shift,
            family=known.family,
        )
        return loaded.backbone.requires_grad_(True), facts
    mask_id, end_id = text.id_of(MASK_TOKEN), text.id_of(END_TOKEN)
    if mask_id is None or end_id is None:
        raise TrainingError(f"the tokenizer in {settings.out} lacks {MASK_TOKEN} or {END_TOKEN}")
    config = small_config(text.vocab_size, **settings.config)
    facts = checkpoint_facts(config, mask_id=mask_id, end_id=end_id, pad_id=end_id, shift=0, family="llada")
    return fresh_model(config, settings.seed), facts


@contextmanager
def _display(active: bool, title: str) -> Iterator[Callable[[Progress], None]]:
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
            yield lambda record: bar.update(task, completed=record.progress, description=_summary(record))
    else:
        console.print(title, highlight=False)
        yield _Lines(console)


class _Lines:
    """Prints a record now and then."""

    def __init__(self, console: Console) -> None:
        self.console, self.printed = console, float("-inf")

    def __call__(self, record: Progress) -> None:
        if time.monotonic() - self.printed > LINE_SECONDS or record.progress >= 1.0:
            self.printed = time.monotonic()
            self.console.print(_summary(record), highlight=False, soft_wrap=True)


def _summary(record: Progress) -> str:
    parts = ", ".join(f"{label} {value:.3f}" for label, value in record.losses.items() if label)
    return (
        f"step {record.step}, loss {record.loss:.3f}{f' ({parts})' if parts else ''}, "
        f"{record.tokens / 1e6:.2f} M tokens at {record.tokens_per_second:.0f}/s, rate {record.factor:.2f}, "
        f"{record.seconds / 60:.1f} min"
    )


def _complain(error: UnmaskError) -> None:
    Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    train_app()
