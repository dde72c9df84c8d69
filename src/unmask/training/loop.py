"""The only training loop.

A recipe makes a `TrainingRun`; `train` carries it out and yields a `Progress` record per step. Every step is a
function of the run's seed, the step and the state of the last step: noise comes from (seed, step, micro-batch), data
from counters. So a resumed run repeats the losses bit by bit, and the number of processes changes only the order of
sums.

Processes: start each with the same run inside an initialised `torch.distributed` group (`torchrun`, or `unmask train
--processes`). They share the micro-batches of a step and sum gradients in one message.
"""

import json
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from unmask.errors import UnmaskError
from unmask.models.backbone import Backbone
from unmask.training.corruption import CleanBatch, Corruption
from unmask.training.objectives import Objective

logger = logging.getLogger(__name__)

FORMAT = 1  # of checkpoint files
NOISE_STRIDE = 1_000  # micro-batches of a step never get beyond this
Precision = Literal["auto", "float32", "bfloat16"]


class TrainingError(UnmaskError):
    """A run that cannot start, resume or go on."""


@runtime_checkable
class BatchSource(Protocol):
    """Clean batches whose order depends on nothing but counters."""

    state: Any

    def take(self, count: int) -> list[CleanBatch]: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate factor: linear warm-up, constant, linear decay.

    Args:
        warmup_steps: steps until the factor is 1.
        decay_start: part of the run after which it falls, 0..1.
        last: factor at the end of the run.
    """

    warmup_steps: int = 100
    decay_start: float = 0.5
    last: float = 0.02

    def factor(self, step: int, progress: float) -> float:
        """Factor of a step (from 0) at a progress in 0..1."""
        warm = min((step + 1) / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        fallen = min(max((progress - self.decay_start) / (1.0 - self.decay_start), 0.0), 1.0)
        return warm * (1.0 - (1.0 - self.last) * fallen)


@dataclass(slots=True)
class TrainingRun:
    """Everything a training needs; recipes make it.

    Args:
        model: trained in place.
        batches: clean micro-batches.
        corruption: clean to masked.
        objective: masked to loss.
        optimizers: their parameters together are those that are trained.
        schedule: factor on every optimizer's learning rate.
        steps: end after this many steps, or None.
        minutes: end after this much time (of all sittings together), or None; one of both is needed. The schedule
            follows whichever is further along.
        micro_batches: batches per step, over all processes; the gradient is that of their union.
        clip: largest norm of the gradient.
        ema_decay: of the averaged weights, per step.
        seed: of all noise.
        precision: "auto" takes bfloat16 where the hardware multiplies it natively.
        folder: for checkpoints and metrics.jsonl; None writes nothing.
        checkpoint_minutes: time between checkpoints.
        metrics_steps: steps between lines of metrics.jsonl.
        facts: free settings that travel in the checkpoints (model sizes, token ids, the command).
    """

    model: Backbone
    batches: BatchSource
    corruption: Corruption
    objective: Objective
    optimizers: list[torch.optim.Optimizer]
    schedule: Schedule = field(default_factory=Schedule)
    steps: int | None = None
    minutes: float | None = None
    micro_batches: int = 2
    clip: float = 1.0
    ema_decay: float = 0.998
    seed: int = 0
    precision: Precision = "auto"
    folder: Path | None = None
    checkpoint_minutes: float = 3.0
    metrics_steps: int = 10
    facts: dict[str, Any] = field(default_factory=dict)


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


def train(run: TrainingRun, *, resume: bool = False) -> Iterator[Progress]:
    """Carry out a run, or the rest of it.

    Args:
        run: what to train.
        resume: go on from the newest checkpoint in `run.folder`; without one the run starts anew.

    Yields:
        One record per step. Leaving early keeps the last checkpoint.

    Raises:
        TrainingError: if neither steps nor minutes are given, if a loss or gradient is not finite (the last good
            checkpoint stays), if the folder has checkpoints and `resume` is False, or a checkpoint does not fit.
    """
    if run.steps is None and run.minutes is None:
        raise TrainingError("a run needs an end: give steps, minutes or both")
    trainer = _Trainer(run)
    trainer.start(resume)
    while trainer.progress < 1.0:
        yield trainer.step()
    trainer.finish()


class _Trainer:
    """State of a running training; `train` is its only user."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.parameters = [
            p for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        self.base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in run.optimizers]
        # One buffer behind all gradients: clipping and the message between processes need no copies.
        self.device = self.parameters[0].device
        self.gradient = torch.zeros(sum(p.numel() for p in self.parameters), device=self.device)
        parts = torch.split(self.gradient, [p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.grad = part.view_as(p)
        self.ema = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
        self.steps, self.tokens, self.seconds, self.saved_at = 0, 0, 0.0, 0.0
        self.started = time.monotonic()
        self.recent: dict[str, list[float]] = defaultdict(list)
        self.autocast = _autocasts(run.precision, self.device)

    @property
    def progress(self) -> float:
        """How far the run is, 0..1; equal on all processes, because `seconds` is the first one's clock."""
        parts = [0.0]
        if self.run.steps is not None:
            parts.append(self.steps / self.run.steps if self.run.steps else 1.0)
        if self.run.minutes is not None:
            parts.append(self.seconds / (60.0 * self.run.minutes) if self.run.minutes > 0 else 1.0)
        return min(max(parts), 1.0)

    def start(self, resume: bool) -> None:
        folder = self.run.folder
        if folder is not None:
            newest = latest_checkpoint(folder)
            if newest is not None and not resume:
                raise TrainingError(f"{folder} already has checkpoints: pass resume, or choose another folder")
            if newest is not None:
                self._load(newest)
            elif self.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic() - self.seconds
        self.saved_at = self.seconds
        self.run.model.train()

    def step(self) -> Progress:
        """Forward, backward, sum over processes, move."""
        run, begun = self.run, time.monotonic()
        self.gradient.zero_()
        totals = torch.zeros(
            5, dtype=torch.float64, device=self.device
        )  # loss sum, count, targets, slots, seconds of the first process
        by_label: dict[str, list[float]] = defaultdict(list)
        for index, clean in enumerate(run.batches.take(run.micro_batches)):
            if index % self.world != self.rank:
                continue
            noise = torch.Generator().manual_seed((run.seed * 1_000_003 + self.steps) * NOISE_STRIDE + index)
            # Noise is drawn on the CPU, so that every device sees the same.
            masked = run.corruption(clean, noise).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                loss = run.objective(run.model, masked)
            loss.total.backward()  # type: ignore[no-untyped-call]
            parts = [loss.total.item(), loss.count, loss.targets, clean.tokens.numel()]
            totals[:4] += torch.tensor(parts, dtype=torch.float64, device=self.device)
            for label, value in zip(clean.labels, loss.rows.tolist(), strict=False):
                by_label[label].append(value)
        if self.rank == 0:
            totals[4] = time.monotonic() - self.started
        if self.world > 1:
            dist.all_reduce(self.gradient)
            dist.all_reduce(totals)
        total, count, _, slots, self.seconds = totals.tolist()
        norm = self._move(count, total)
        self.steps += 1
        self.tokens += int(slots)
        record = Progress(
            step=self.steps,
            progress=self.progress,
            seconds=self.seconds,
            loss=total / max(count, 1.0),
            losses={label: sum(values) / len(values) for label, values in sorted(by_label.items())},
            gradient_norm=norm,
            factor=run.schedule.factor(self.steps - 1, self.progress),
            tokens=self.tokens,
            tokens_per_second=slots / max(time.monotonic() - begun, 1e-9),
        )
        self._report(record)
        if self.seconds - self.saved_at > 60.0 * run.checkpoint_minutes:
            self.save()
        return record

    def _move(self, count: float, total: float) -> float:
        """Divide by the global count, clip, step the optimizers and the average; returns the norm before clipping."""
        run = self.run
        self.gradient.div_(max(count, 1.0))
        norm = float(self.gradient.norm())
        if not (math.isfinite(total) and math.isfinite(norm)):
            kept = latest_checkpoint(run.folder) if run.folder is not None else None
            raise TrainingError(
                f"step {self.steps + 1}: loss {total / max(count, 1.0)} or gradient norm {norm} is not finite; "
                f"last good checkpoint: {kept or 'none'}. Lower the learning rates or look at the data."
            )
        if norm > run.clip:
            self.gradient.mul_(run.clip / norm)
        factor = run.schedule.factor(self.steps, self.progress)
        for optimizer, rates in zip(run.optimizers, self.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
        # A young average forgets faster, or the start's weights would stay in it for long.
        decay = min(run.ema_decay, (1.0 + self.steps) / (10.0 + self.steps))
        weights = run.model.state_dict()
        torch._foreach_lerp_(list(self.ema.values()), [weights[name].detach() for name in self.ema], 1.0 - decay)
        return norm

    def _report(self, record: Progress) -> None:
        if self.rank != 0 or self.run.folder is None:
            return
        self.recent["loss"].append(record.loss)
        self.recent["tokens_per_second"].append(record.tokens_per_second)
        for label, value in record.losses.items():
            self.recent[f"loss/{label}"].append(value)
        if record.step % self.run.metrics_steps == 0:
            line: dict[str, float] = {name: round(sum(v) / len(v), 5) for name, v in self.recent.items()}
            line |= {"step": record.step, "seconds": round(record.seconds, 1), "tokens": record.tokens}
            line |= {"factor": round(record.factor, 5), "gradient_norm": round(record.gradient_norm, 4)}
            with (self.run.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.recent.clear()

    def finish(self) -> None:
        """Write the last checkpoint."""
        self.save()

    def save(self) -> None:
        """Write a checkpoint (the first process only), keep the newest two."""
        self.saved_at = self.seconds
        if self.rank != 0 or self.run.folder is None:
            return
        content = {
            "format": FORMAT,
            "step": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "model": self.run.model.state_dict(),
            "ema": self.ema,
            "optimizers": [optimizer.state_dict() for optimizer in self.run.optimizers],
            "batches": self.run.batches.state,
            "seed": self.run.seed,
            "facts": self.run.facts,
        }
        target = self.run.folder / f"step-{self.steps:08d}.pt"
        temporary = target.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        for old in sorted(self.run.folder.glob("step-*.pt"))[:-2]:
            old.unlink()

    def _load(self, path: Path) -> None:
        content = read_checkpoint(path)
        try:
            self.run.model.load_state_dict(content["model"])
            for optimizer, state in zip(self.run.optimizers, content["optimizers"], strict=True):
                optimizer.load_state_dict(state)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(f"{path} does not fit this run (other sizes or recipe?): {error}") from None
        if content["seed"] != self.run.seed:
            raise TrainingError(f"{path} was trained with seed {content['seed']}, not {self.run.seed}")
        self.ema = {name: content["ema"][name].to(value.device) for name, value in self.ema.items()}
        self.run.batches.state = content["batches"]
        self.steps, self.tokens, self.seconds = content["step"], content["tokens"], content["seconds"]
        metrics = path.parent / "metrics.jsonl"
        if self.rank == 0 and metrics.exists():
            lines = metrics.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line)["step"] <= self.steps]
            metrics.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    return max(folder.glob("step-*.pt"), default=None)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Contents of a checkpoint file.

    Raises:
        TrainingError: if it is missing, damaged or of another format.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TrainingError(f"{path} cannot be read as a training checkpoint: {error}") from None
    if content.get("format") != FORMAT:
        raise TrainingError(f"{path} has checkpoint format {content.get('format')}; this version reads {FORMAT}")
    return content


def _autocasts(precision: Precision, device: torch.device) -> bool:
    """Whether to multiply in bfloat16: without native instructions it is slower than float32."""
    if precision == "auto" and device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if precision == "auto":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return precision == "bfloat16"
