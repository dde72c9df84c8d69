"""A tiny model and made-up examples for the training tests."""

from pathlib import Path
from typing import Any

import torch

from unmask.models.backbone import Backbone
from unmask.models.config import BackboneConfig
from unmask.training.corruption import CleanBatch
from unmask.training.data import BucketedBatches, Example, Tail
from unmask.training.loop import Progress, RunSettings, Schedule, TrainingRun, train
from unmask.training.recipes.sft import fresh_model, sft

MASK, END, VOCABULARY = 31, 0, 32


def tiny_config(**changes: object) -> BackboneConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "width": 16,
        "num_layers": 2,
        "num_heads": 2,
        "num_key_heads": 2,
        "feed_width": 24,
        "tied": True,
        "normed_embedding": True,
        "max_length": 64,
    }
    return BackboneConfig(**(sizes | changes))  # type: ignore[arg-type]


def tiny_model(seed: int = 0) -> Backbone:
    return fresh_model(tiny_config(), seed)


class Copies:
    """Answers that repeat the prompt."""

    def chunk(self, index: int) -> list[Example]:
        generator = torch.Generator().manual_seed(index)
        examples = []
        for _ in range(24):
            length = int(torch.randint(2, 9, (1,), generator=generator))
            words = tuple(torch.randint(1, 20, (length,), generator=generator).tolist())
            examples.append(Example((*words, 30), (*words, END), "copy" if length % 2 else "even"))
        return examples


def copy_batches(batch_tokens: int = 96) -> BucketedBatches:
    return BucketedBatches(
        Copies(),
        batch_tokens=batch_tokens,
        pad_id=END,
        seed=1,
        max_length=64,
        tail=Tail(short=4, middle=12, longest=16),
    )


def clean_batch(rows: int = 6, length: int = 40, start: int = 5) -> CleanBatch:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 30, (rows, length), generator=generator)
    weights = torch.ones(rows, length)
    weights[:, :start] = 0.0
    return CleanBatch(
        tokens, weights, torch.full((rows,), start), torch.ones(rows, length, dtype=torch.bool), ("",) * rows
    )


def tiny_run(folder: Path | None = None, *, model: Backbone | None = None, **settings: Any) -> TrainingRun:
    """A run of eight steps on copies; `settings` are fields of `RunSettings`."""
    usual = {"steps": 8, "schedule": Schedule(warmup_steps=2), "checkpoint_minutes": 1e9, "folder": folder}
    return sft(model or tiny_model(), copy_batches(), RunSettings(**(usual | settings)), mask_id=MASK)


def losses_of(run: TrainingRun, *, resume: bool = False, stop: int | None = None) -> list[float]:
    records: list[Progress] = []
    for record in train(run, resume=resume):
        records.append(record)
        if record.step == stop:
            break
    return [record.loss for record in records]
