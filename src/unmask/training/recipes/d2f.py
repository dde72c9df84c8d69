"""D2F, discrete diffusion forcing: a bidirectional model becomes a block-causal one that bears unfinished blocks.

The student sees its own block and those before it, the teacher everything; both see the same canvas, whose later blocks
are masked more. Decode the result with `pipelined` blocks and the exact cache `finished-blocks`.

Source: Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), section 3, and the released code. Deviates:
the learning rate decays as the run's schedule says, constant there (`CONSTANT`); bfloat16 where the hardware has it,
float16 there.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace

from unmask.models.adapters import adapted_layers, adapter_off
from unmask.models.backbone import Backbone
from unmask.training.corruption import MonotoneBlockMask
from unmask.training.loop import BatchSource, RunSettings, Schedule, TrainingError, TrainingRun
from unmask.training.objectives import Distillation
from unmask.training.optimizers import adamw
from unmask.training.sharing import is_part

CONSTANT = Schedule(warmup_steps=0, decay_start=1.0)  # the published one
Teacher = Callable[[], AbstractContextManager[Backbone]]


@dataclass(frozen=True, slots=True)
class D2FOptions:
    """Settings of the recipe; the defaults are the authors' for LLaDA (for Dream they take a rate of 5e-6)."""

    block_length: int = 16  # of the student's attention, slots, counted from the end of the prompt
    lowest: float = 0.2  # smallest ratio of a first block
    highest: float = 0.7  # largest ratio of any block
    self_align: bool = True  # learn what the teacher says; else the data itself, the baseline without a teacher
    rate: float = 1e-5  # learning rate of AdamW
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW, its decay rates
    weight_decay: float = 0.05  # of AdamW

    def __post_init__(self) -> None:
        if self.block_length < 1:
            raise ValueError(f"block_length must be at least 1: got {self.block_length}")
        if not 0.0 < self.lowest <= self.highest <= 1.0:
            raise ValueError(f"lowest and highest must rise within (0, 1]: got {self.lowest} and {self.highest}")
        if not self.rate > 0.0:
            raise ValueError(f"rate must be above 0: got {self.rate}")


def d2f(
    model: Backbone,
    batches: BatchSource,
    settings: RunSettings,
    *,
    mask_id: int,
    shift: int = 0,
    options: D2FOptions = D2FOptions(),
) -> TrainingRun:
    """A run that makes a model block-causal.

    With an adapter on the model, the adapter is trained and the teacher is the model without it, at no further memory.
    Else everything is trained, and the teacher is a frozen copy of the weights as they are now: to resume a run, call
    this with the weights it started from, and let `train` load the checkpoint. The model's config then says that it is
    block-causal, and so do the run's facts and everything saved from them (see `export` and `save_adapter`).

    Args:
        model: trained in place, as far as its parameters require a gradient.
        batches: clean micro-batches; end tokens behind an answer are learned if they have weight.
        settings: of the run.
        mask_id: the mask token.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
        options: blocks, ratios and rates.

    Raises:
        TrainingError: if the model is causal, block-causal with other blocks, or shared out without an adapter.
    """
    config = replace(model.config, attention="block_causal", block_length=options.block_length)
    if model.config.attention != "bidirectional" and model.config != config:
        raise TrainingError(
            f"d2f starts from a bidirectional model, or goes on with one of blocks of {options.block_length}: this one "
            f"is {model.config.attention} with blocks of {model.config.block_length}"
        )
    teacher = _teacher(model) if options.self_align else None
    model.config = config
    return TrainingRun(
        model=model,
        batches=batches,
        corruption=MonotoneBlockMask(mask_id, options.block_length, options.lowest, options.highest),
        objective=Distillation(teacher, options.block_length, shift),
        optimizers=[adamw(model, lr=options.rate, betas=options.betas, weight_decay=options.weight_decay)],
        settings=replace(settings, facts={**settings.facts, "config": asdict(config)}),
    )


def _teacher(model: Backbone) -> Teacher:
    """Gives the network that teaches: the model without its adapter, or a frozen copy of it."""
    if adapted_layers(model):

        @contextmanager
        def without_adapter() -> Iterator[Backbone]:
            with adapter_off(model):
                yield model

        return without_adapter
    if any(is_part(parameter) for parameter in model.parameters()):
        raise TrainingError("d2f needs an adapter where weights are shared out: its teacher cannot be a copy of them")
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    return lambda: nullcontext(frozen)
