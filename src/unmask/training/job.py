"""What can be said about a training on a command line: groups of options, and what each recipe brings.

The comment beside a field is the help text of its option; the first line of a docstring is the heading of its group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unmask.decoders import DECODERS
from unmask.training.checkpoints import TrainingError, latest_checkpoint
from unmask.training.data import DataError, Tail
from unmask.training.run import Precision, RunSettings, Schedule, TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Run"""

    out: Path  # Folder for checkpoints, metrics.jsonl and the exported model.
    minutes: float | None = None  # End after this much training time.
    steps: int | None = None  # End after this many steps.
    resume: bool = False  # Go on from the newest checkpoint in --out.
    seed: int = 0  # Of weights, data and noise.
    checkpoint_minutes: float = 3.0  # Time between checkpoints.


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Model"""

    init: str | None = None  # Checkpoint to start from: a folder, a hub name or builtin.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """New model, where there is no --init"""

    width: int = 192  # Hidden size.
    layers: int = 6  # Number of layers.
    heads: int = 6  # Attention heads.
    feed_width: int = 512  # Inner size of the feed-forward part.


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapting:
    """LoRA adapter"""

    lora_rank: int | None = None  # Rank of a new adapter; without it, all weights or what the recipe's paper trains.
    lora_alpha: float | None = None  # Its scale, alpha / rank; the rank itself by default.
    lora_dropout: float | None = None  # Of the adapter's input.
    lora_targets: str | None = None  # Layers, as the checkpoint calls them: q_proj,v_proj; all of a block by default.
    adapter: str | None = None  # Adapter to go on with, in place of a new one: a folder or a hub name.
    full: bool = False  # Train all weights although the recipe's paper trains an adapter.
    merge: bool = False  # Also export the model with the adapter added to its weights, as merged/.


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Data"""

    data: Path | None = None  # JSON lines: {"prompt": ..., "answer": ...} or {"messages": [...]}.
    mix: str = "functions=0.88,sudoku=0.12"  # Built-in tasks and their shares in tokens, used where no data is given.
    exclude_sudoku: Path | None = None  # Puzzles (JSONL file or folder) that must not occur in training.
    max_length: int | None = None  # Longest prompt with its answer, tokens; the model's context by default.
    truncate: bool = False  # Cut answers that are too long instead of leaving them out.


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoded answers"""

    rollouts: Path | None = None  # Folder of unmask rollout: the model's own answers and how they came about.
    keep_step_ratio: float | None = None  # Keep the leading answers with this share of all steps, 0..1.


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps"""

    batch_tokens: int = 2048  # Tokens of one micro-batch.
    micro_batches: int = 2  # Micro-batches of a step, over all processes; their gradients are summed.
    warmup_steps: int | None = None  # Steps until the learning rate is reached.
    schedule: Literal["constant", "linear", "cosine"] | None = None  # How the learning rate falls.
    decay_start: float | None = None  # Part of the run after which it falls, 0..1.
    last_rate: float | None = None  # Part of the learning rate that is left at the end, 0..1.
    clip: float = 1.0  # Largest norm of a step's gradient.
    ema_decay: float = 0.998  # Of the averaged weights, which are exported; 0 exports the last ones.
    precision: Precision = "auto"  # What products are computed in; auto is bfloat16 where the hardware has it.
    gradient_checkpointing: bool = False  # Compute blocks twice instead of keeping what they computed: less memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Evaluation while training"""

    eval_steps: int | None = None  # Steps between evaluations.
    eval_minutes: float | None = None  # Training time between evaluations.
    eval_data: Path | None = None  # Problems, JSON lines with prompt and answer; held-out built-in ones by default.
    eval_tasks: str | None = None  # Only these tasks, with commas between them.
    eval_problems: int = 20  # Problems of each task.
    eval_decoder: str | None = None  # How they are decoded, e.g. "threshold(threshold=0.9)".
    eval_length: int = 128  # Answer slots, tokens.


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processes"""

    processes: int = 1  # Processes that share each step; torchrun and accelerate launch work, too.
    threads: int | None = None  # Threads of each process; by default the cores are shared out.
    device: str = "auto"  # auto, cpu, cuda.
    shard: bool = False  # Cut the weights into one part per process (FSDP2), for models too large for one device.


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapter that a paper trains."""

    rank: int
    alpha: float
    dropout: float = 0.0
    linears: tuple[str, ...] | None = None  # the backbone's names of layers; None = all of a block


@dataclass(frozen=True, slots=True)
class RecipeEntry:
    """A recipe and what goes with it."""

    name: str
    make: Callable[..., TrainingRun]  # (model, batches, settings, *, mask_id, shift, options)
    options: type[Any]
    summary: str
    schedule: Schedule = field(default_factory=Schedule)
    lora: Lora | None = None  # None: all weights are trained
    tail: Tail = field(default_factory=Tail)  # end tokens behind the answers of its batches
    replays: bool = False  # its batches are samples of decoded answers
    masks: bool = True  # takes mask_id and shift
    teacher: bool = False  # needs the weights it started from, also when it resumes


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a process needs to build its run; sent to each."""

    recipe: RecipeEntry
    length: Length
    start: Start
    sizes: Sizes
    adapting: Adapting
    texts: Texts
    decoded: Decoded
    steps: Steps
    looks: Looks
    machine: Machine
    options: Any  # of the recipe
    mix: Mapping[str, float]  # what `texts.mix` says
    exclude: frozenset[str]  # keys of the problems of `texts.exclude_sudoku`

    @property
    def schedule(self) -> Schedule:
        """The recipe's, with what was asked for."""
        usual, steps = self.recipe.schedule, self.steps
        start = usual.decay_start if steps.decay_start is None else steps.decay_start
        if steps.schedule == "constant":
            start = 1.0
        elif steps.schedule is not None and steps.decay_start is None and start == 1.0:
            start = 0.0
        return Schedule(
            warmup_steps=usual.warmup_steps if steps.warmup_steps is None else steps.warmup_steps,
            decay_start=start,
            last=usual.last if steps.last_rate is None else steps.last_rate,
            shape=usual.shape if steps.schedule in (None, "constant") else steps.schedule,  # type: ignore[arg-type]
        )

    @property
    def lora(self) -> Lora | None:
        """The adapter to train, if it is one."""
        asked, usual = self.adapting, self.recipe.lora
        if asked.full or (asked.lora_rank is None and usual is None):
            return None
        rank = asked.lora_rank or (usual.rank if usual else 0)
        alpha = usual.alpha if usual and asked.lora_rank is None else float(rank)
        return Lora(
            rank=rank,
            alpha=alpha if asked.lora_alpha is None else asked.lora_alpha,
            dropout=(usual.dropout if usual else 0.0) if asked.lora_dropout is None else asked.lora_dropout,
            linears=usual.linears if usual else None,
        )

    def settings(self, facts: dict[str, Any], **more: Any) -> RunSettings:
        """Of the run, apart from what processes build for themselves."""
        length, steps = self.length, self.steps
        return RunSettings(
            steps=length.steps,
            minutes=length.minutes,
            micro_batches=steps.micro_batches,
            seed=length.seed,
            schedule=self.schedule,
            clip=steps.clip,
            ema_decay=steps.ema_decay,
            precision=steps.precision,
            folder=length.out,
            checkpoint_minutes=length.checkpoint_minutes,
            facts=facts,
            **more,
        )

    def check(self, processes: int) -> None:
        """Refuse what cannot work before anything is written.

        Raises:
            UnmaskError: with the name of the option.
        """
        self._check_run(processes)
        self._check_adapter()
        if self.looks.eval_decoder is not None:
            DECODERS.make(self.looks.eval_decoder)
        if self.recipe.replays and self.decoded.rollouts is None:
            raise DataError(f"{self.recipe.name} learns from decoded answers: give --rollouts")
        for name, path in (("data", self.texts.data), ("eval-data", self.looks.eval_data)):
            if path is not None and not path.is_file():
                raise DataError(f"--{name}: no file {path}")
        if self.decoded.rollouts is not None and not self.decoded.rollouts.is_dir():
            raise DataError(f"--rollouts: no folder {self.decoded.rollouts}")

    def _check_run(self, processes: int) -> None:
        length, steps = self.length, self.steps
        if latest_checkpoint(length.out) is not None and not length.resume:
            raise TrainingError(f"{length.out} already has checkpoints: pass --resume, or choose another --out")
        if length.minutes is None and length.steps is None:
            raise TrainingError("a run needs an end: give --minutes, --steps or both")
        for name, value, least in (
            ("processes", self.machine.processes, 1),
            ("threads", self.machine.threads, 1),
            ("batch-tokens", steps.batch_tokens, 16),
            ("lora-rank", self.adapting.lora_rank, 1),
            ("max-length", self.texts.max_length, 2),
            ("eval-steps", self.looks.eval_steps, 1),
        ):
            if value is not None and value < least:
                raise TrainingError(f"--{name} must be at least {least}: got {value}")
        if steps.micro_batches % processes:
            raise TrainingError(f"--processes must divide --micro-batches: got {processes} and {steps.micro_batches}")
        if self.machine.shard and processes == 1:
            raise TrainingError("--shard needs more than one process")
        if self.machine.shard and self.evaluates:
            raise TrainingError("--shard trains only: evaluate its checkpoints with unmask bench")
        try:
            self.settings({})
        except ValueError as error:
            raise TrainingError(str(error)) from None

    def _check_adapter(self) -> None:
        goes_on = self.start.init is not None or latest_checkpoint(self.length.out) is not None
        if self.recipe.lora is not None and not goes_on:
            raise TrainingError(f"{self.recipe.name} improves a model that is there: give --init")
        asked = self.adapting
        if asked.full and (asked.lora_rank is not None or asked.adapter is not None):
            raise TrainingError("--full trains all weights: leave out --lora-rank and --adapter")
        if (self.lora is not None or asked.adapter is not None) and not goes_on:
            raise TrainingError("an adapter needs a model below it: give --init")
        if self.lora is None and asked.adapter is None and (asked.merge or asked.lora_targets is not None):
            raise TrainingError("--merge and --lora-targets are about adapters: give --lora-rank or --adapter")

    @property
    def evaluates(self) -> bool:
        return self.looks.eval_steps is not None or self.looks.eval_minutes is not None
