"""The only training loop.

A recipe makes a `TrainingRun`; `train` carries it out and yields a `Progress` record per step. Every step is a
function of the run's seed, the step and the state of the last step: noise comes from (seed, step, micro-batch), data
from counters. So a resumed run repeats the losses bit by bit, and the number of processes changes only the order of
sums.

Processes: start each with the same run inside an initialised `torch.distributed` group (`torchrun`, or `unmask train
--processes`). They share the micro-batches of a step; see `sharing`.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from unmask.models.adapters import adapted_layers
from unmask.training.checkpoints import (
    TrainingError,
    last_good,
    latest_checkpoint,
    read_checkpoint,
    remove_leftovers,
    unwritable,
    write_checkpoint,
)
from unmask.training.corruption import CleanBatch
from unmask.training.metrics import Metrics
from unmask.training.run import (
    NOISE_STRIDE,
    BatchSource,
    Evaluation,
    Precision,
    Progress,
    RunSettings,
    Schedule,
    TrainingRun,
)
from unmask.training.sharing import gradients_of, load_state, local, place, put, whole, whole_state

ByLabel = dict[str, tuple[float, float]]  # label -> sum of costs, their count

__all__ = [
    "BatchSource",
    "Evaluation",
    "Progress",
    "RunSettings",
    "Schedule",
    "TrainingError",
    "TrainingRun",
    "latest_checkpoint",
    "read_checkpoint",
    "train",
]


def train(run: TrainingRun, *, resume: bool = False) -> Iterator[Progress]:
    """Carry out a run, or the rest of it.

    Args:
        run: what to train.
        resume: go on from the newest checkpoint in `run.settings.folder`; without one the run starts anew.

    Yields:
        One record per step. Leaving early keeps the last checkpoint.

    Raises:
        TrainingError: if neither steps nor minutes are given, if a loss or gradient is not finite (the last good
            checkpoint stays), if the folder has checkpoints and `resume` is False, or a checkpoint does not fit.
    """
    if run.settings.steps is None and run.settings.minutes is None:
        raise TrainingError("a run needs an end: give steps, minutes or both")
    trainer = _Trainer(run)
    trainer.start(resume)
    while trainer.progress < 1.0:
        yield trainer.step()
    trainer.save()


class _Trainer:
    """State of a running training; `train` is its only user."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.settings = run, run.settings
        self.rank, self.world = place()
        moved = [p for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]]
        chosen = {id(p) for p in moved}
        self.trained = {name: p for name, p in run.model.named_parameters() if id(p) in chosen}
        self.base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in run.optimizers]
        self.device = moved[0].device
        self.gradients = gradients_of(moved)
        self.ema = {name: p.detach().clone() for name, p in self.trained.items()}
        self.metrics = Metrics(self.settings.folder if self.rank == 0 else None, self.settings.metrics_steps)
        self.steps, self.tokens, self.seconds, self.saved_at, self.evaluated_at = 0, 0, 0.0, 0.0, 0.0
        self.started = time.monotonic()
        self.autocast = _autocasts(self.settings.precision, self.device)
        # Only dropout draws inside the model; without it the global stream of numbers is left alone.
        self.dropout = any(layer.dropout > 0 for layer in adapted_layers(run.model))

    @property
    def progress(self) -> float:
        """How far the run is, 0..1; equal on all processes, because `seconds` is the first one's clock."""
        steps, minutes = self.settings.steps, self.settings.minutes
        parts = [0.0]
        if steps is not None:
            parts.append(self.steps / steps if steps else 1.0)
        if minutes is not None:
            parts.append(self.seconds / (60.0 * minutes) if minutes > 0 else 1.0)
        return min(max(parts), 1.0)

    def start(self, resume: bool) -> None:
        folder = self.settings.folder
        if folder is not None:
            newest = latest_checkpoint(folder)
            if newest is not None and not resume:
                raise TrainingError(f"{folder} already has checkpoints: pass resume, or choose another folder")
            if self.rank == 0:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise unwritable(folder, error) from None
                remove_leftovers(folder)
            if newest is not None:
                self._load(newest)
        self.started = time.monotonic() - self.seconds
        self.saved_at = self.evaluated_at = self.seconds
        self.run.model.train()

    def step(self) -> Progress:
        """Forward, backward, sum over processes, move."""
        run, begun = self.run, time.monotonic()
        self.gradients.clear()
        # loss sum, count, targets, slots, seconds of the first process
        totals = torch.zeros(5, dtype=torch.float64, device=self.device)
        by_label: ByLabel = defaultdict(lambda: (0.0, 0.0))
        for index, clean in enumerate(run.batches.take(self.settings.micro_batches)):
            if index % self.world != self.rank:
                continue
            totals[:4] += self._learn(clean, index, by_label)
        if self.rank == 0:
            totals[4] = time.monotonic() - self.started
        self.gradients.gather()
        if self.world > 1:
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
            losses={label: cost / max(count, 1.0) for label, (cost, count) in sorted(by_label.items())},
            gradient_norm=norm,
            factor=self.settings.schedule.factor(self.steps - 1, self.progress),
            tokens=self.tokens,
            tokens_per_second=slots / max(time.monotonic() - begun, 1e-9),
        )
        self._report(record)
        if self.seconds - self.saved_at > 60.0 * self.settings.checkpoint_minutes:
            self.save()
        return self._evaluated(record)

    def _learn(self, clean: CleanBatch, index: int, by_label: ByLabel) -> torch.Tensor:
        """Add a micro-batch's gradient; returns loss sum, count, targets and slots."""
        seed = (self.settings.seed * 1_000_003 + self.steps) * NOISE_STRIDE + index
        # Noise is drawn on the CPU, so that every device sees the same.
        masked = self.run.corruption(clean, torch.Generator().manual_seed(seed)).to(self.device)
        with self._own_random(self.dropout):
            if self.dropout:
                torch.manual_seed(seed)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                loss = self.run.objective(self.run.model, masked)
            loss.total.backward()  # type: ignore[no-untyped-call]
        for label, cost, count in zip(clean.labels, loss.rows.tolist(), loss.counts.tolist(), strict=False):
            before = by_label[label]
            by_label[label] = before[0] + cost, before[1] + count
        parts = [loss.total.item(), loss.count, loss.targets, clean.tokens.numel()]
        return torch.tensor(parts, dtype=torch.float64, device=self.device)

    def _move(self, count: float, total: float) -> float:
        """Divide by the global count, clip, step the optimizers and the average; returns the norm before clipping."""
        run = self.run
        self.gradients.divide(max(count, 1.0))
        norm = self.gradients.norm()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise TrainingError(
                f"step {self.steps + 1}: loss {total / max(count, 1.0)} or gradient norm {norm} is not finite; "
                f"{last_good(self.settings.folder)}. Lower the learning rates or look at the data."
            )
        if norm > self.settings.clip:
            self.gradients.scale(self.settings.clip / norm)
        factor = self.settings.schedule.factor(self.steps, self.progress)
        for optimizer, rates in zip(run.optimizers, self.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
        # A young average forgets faster, or the start's weights would stay in it for long.
        decay = min(self.settings.ema_decay, (1.0 + self.steps) / (10.0 + self.steps))
        averages, weights = [local(value) for value in self.ema.values()], [local(p) for p in self.trained.values()]
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        return norm

    def _report(self, record: Progress) -> None:
        averaged = {"loss": record.loss, "tokens_per_second": record.tokens_per_second}
        latest = {"seconds": round(record.seconds, 1), "tokens": record.tokens}
        latest |= {"factor": round(record.factor, 5), "gradient_norm": round(record.gradient_norm, 4)}
        by_label = {f"loss/{label}": value for label, value in record.losses.items()}
        self.metrics.add(record.step, averaged | by_label, latest)

    def _evaluated(self, record: Progress) -> Progress:
        """The record with an evaluation of the averaged weights, if one is due."""
        wanted = self.settings.evaluation
        if wanted is None or self.rank != 0:
            return record
        due = record.progress >= 1.0 or (wanted.steps is not None and record.step % wanted.steps == 0)
        if wanted.minutes is not None and self.seconds - self.evaluated_at >= 60.0 * wanted.minutes:
            due = True
        if not due:
            return record
        begun = time.monotonic()
        with self._averaged(), torch.no_grad(), self._own_random():
            found = dict(wanted.measure(self.run.model))
        self.metrics.write({"step": record.step, "seconds": round(record.seconds, 1)} | found)
        self.evaluated_at = self.seconds
        self.started += time.monotonic() - begun  # it is no time of training
        return replace(record, evaluation=found)

    def _own_random(self, enabled: bool = True) -> AbstractContextManager[None]:
        """Inside, torch's global numbers may be drawn without anybody noticing afterwards."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [], enabled=enabled)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        own = {name: local(parameter).clone() for name, parameter in self.trained.items()}
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(self.ema[name])
        self.run.model.eval()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.trained.items():
                    local(parameter).copy_(own[name])
            self.run.model.train()

    def save(self) -> None:
        """Write a checkpoint (the first process only), keep the newest two."""
        self.saved_at = self.seconds
        if self.settings.folder is None:
            return
        content = {
            "step": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "model": {name: whole(parameter) for name, parameter in self.trained.items()},
            "ema": {name: whole(value) for name, value in self.ema.items()},
            "optimizers": [whole_state(optimizer) for optimizer in self.run.optimizers],
            "batches": self.run.batches.state,
            "seed": self.settings.seed,
            "facts": dict(self.settings.facts),
        }
        if self.rank == 0:
            write_checkpoint(self.settings.folder, self.steps, content)

    def _load(self, path: Path) -> None:
        content = read_checkpoint(path)
        try:
            for part in ("model", "ema"):
                if content[part].keys() != self.trained.keys():
                    other = sorted(content[part].keys() ^ self.trained.keys())
                    raise ValueError(
                        f"{len(other)} parameters are trained in one of them only, the first is {other[0]}"
                    )
            for name, parameter in self.trained.items():
                put(parameter, content["model"][name])
                put(self.ema[name], content["ema"][name])
            for optimizer, state in zip(self.run.optimizers, content["optimizers"], strict=True):
                load_state(optimizer, state)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(f"{path} does not fit this run (other sizes or recipe?): {error}") from None
        if content["seed"] != self.settings.seed:
            raise TrainingError(f"{path} was trained with seed {content['seed']}, not {self.settings.seed}")
        self.run.batches.state = content["batches"]
        self.steps, self.tokens, self.seconds = content["step"], content["tokens"], content["seconds"]
        self.metrics.cut(self.steps)


def _autocasts(precision: Precision, device: torch.device) -> bool:
    """Whether to multiply in bfloat16: without native instructions it is slower than float32."""
    if precision == "auto" and device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if precision == "auto":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return precision == "bfloat16"
