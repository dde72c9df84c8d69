"""What a training is: model, data, corruption, objective, optimizers, and how long, how often, where to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch

from unmask.models.backbone import Backbone
from unmask.training.checkpoints import TrainingError
from unmask.training.corruption import CleanBatch, Corruption
from unmask.training.objectives import Objective

NOISE_STRIDE = 1_000  # micro-batches of a step never get beyond this
Precision = Literal["auto", "float32", "bfloat16"]


@runtime_checkable
class BatchSource(Protocol):
    """Clean batches whose order depends on nothing but counters."""

    state: Any

    def take(self, count: int) -> list[CleanBatch]: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate factor: linear warm-up, constant, then down.

    Raises:
        ValueError: if a number is out of range.
    """

    warmup_steps: int = 100  # until the factor is 1
    decay_start: float = 0.5  # part of the run after which it falls, 0..1; 1 = never
    last: float = 0.02  # factor at the end of the run
    shape: Literal["linear", "cosine"] = "linear"  # of the fall

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0: got {self.warmup_steps}")
        for name in ("decay_start", "last"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1: got {getattr(self, name)}")
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f'shape must be "linear" or "cosine": got "{self.shape}"')

    def factor(self, step: int, progress: float) -> float:
        """Factor of a step (from 0) at a progress in 0..1."""
        warm = min((step + 1) / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        if self.decay_start == 1.0:
            return warm
        fallen = min(max((progress - self.decay_start) / (1.0 - self.decay_start), 0.0), 1.0)
        if self.shape == "cosine":
            fallen = (1.0 - math.cos(math.pi * fallen)) / 2.0
        return warm * (1.0 - (1.0 - self.last) * fallen)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A look at the averaged weights now and then, and at the end; the training goes on as if it had not been.

    Args:
        measure: figures of a model, by name; called by the first process only.
        steps: steps between two looks, or None.
        minutes: training time between two looks, or None.
    """

    measure: Callable[[Backbone], Mapping[str, float]]
    steps: int | None = None
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How long, how often, where to: what every recipe hands on to its run.

    Args:
        steps: end after this many steps, or None.
        minutes: end after this much time (of all sittings together), or None; one of both is needed. The schedule
            follows whichever is further along.
        micro_batches: batches per step, over all processes; the gradient is that of their union.
        seed: of all noise.
        schedule: factor on every optimizer's learning rate.
        clip: largest norm of the gradient.
        ema_decay: of the averaged weights, per step.
        precision: "auto" takes bfloat16 where the hardware multiplies it natively.
        folder: for checkpoints and metrics.jsonl; None writes nothing.
        checkpoint_minutes: time between checkpoints.
        metrics_steps: steps between lines of metrics.jsonl.
        facts: free settings that travel in the checkpoints (model sizes, token ids, the command).
        evaluation: what to look at during the training.

    Raises:
        ValueError: if a number is out of range.
    """

    steps: int | None = None
    minutes: float | None = None
    micro_batches: int = 2
    seed: int = 0
    schedule: Schedule = Schedule()
    clip: float = 1.0
    ema_decay: float = 0.998
    precision: Precision = "auto"
    folder: Path | None = None
    checkpoint_minutes: float = 3.0
    metrics_steps: int = 10
    facts: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        for name in ("micro_batches", "metrics_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.micro_batches > NOISE_STRIDE:
            raise ValueError(f"micro_batches must be at most {NOISE_STRIDE}: got {self.micro_batches}")
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0: got {self.clip}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and below 1: got {self.ema_decay}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}: got {self.precision}")


@dataclass(slots=True)
class TrainingRun:
    """Everything a training needs; recipes make it.

    Args:
        model: trained in place.
        batches: clean micro-batches.
        corruption: clean to masked.
        objective: masked to loss.
        optimizers: their parameters together are those that are trained.
        settings: the rest.
    """

    model: Backbone
    batches: BatchSource
    corruption: Corruption
    objective: Objective
    optimizers: list[torch.optim.Optimizer]
    settings: RunSettings = RunSettings()


def must_be_bidirectional(model: Backbone, recipe: str) -> None:
    """Raises TrainingError, which names the recipe, unless every slot of the model sees every other one."""
    if model.config.attention != "bidirectional":
        raise TrainingError(f"{recipe} trains bidirectional models, this one is {model.config.attention}")


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step did."""

    step: int  # steps done, this one included
    progress: float  # 0..1
    seconds: float  # of training so far, over all sittings
    loss: float  # nats, the objective's sum over its count
    losses: Mapping[str, float]  # the same by label, this process's part
    gradient_norm: float  # before clipping
    factor: float  # of the learning rates
    tokens: int  # slots trained so far, padding included, over all processes
    tokens_per_second: float  # of this step
    evaluation: Mapping[str, float] = field(default_factory=dict)  # empty where none was due; of the first process
