"""dParallel, certainty-forcing distillation: a model learns its own answers, and to be sure of many slots at once.

Every answer is seen twice, with one and the other half of a block masked and everything behind the block masked too.
The answers to learn are the model's own, as `unmask rollout --answers` writes them. Decode the result with a threshold
on the entropy (`entropy-threshold`), which it has been trained for.

Source: Chen et al., dParallel (arXiv 2509.26488), eq. 5 and 6, and its released code. Deviates: see `HalvedBlock`; the
learning rate decays as the run's schedule says, constant there for LLaDA, a cosine after a warm-up for Dream; the
halves of a whole answer (`DREAM`) are complements too, which the paper does not say.
"""

from dataclasses import dataclass

from unmask.models.backbone import Backbone
from unmask.training.corruption import HalvedBlock
from unmask.training.loop import BatchSource, RunSettings, TrainingRun
from unmask.training.objectives import CertaintyForcing
from unmask.training.optimizers import adamw
from unmask.training.run import must_be_bidirectional

WHOLE_ANSWER = 2**30  # slots: no answer is longer


@dataclass(frozen=True, slots=True)
class DParallelOptions:
    """Settings of the recipe; the defaults are the authors' for LLaDA."""

    block_length: int = 32  # of which one half is masked, slots; 0 = the whole answer
    certainty: float = 2.0  # beta, weight of the entropy of right guesses
    temperature: float = 0.5  # T, of the distribution whose entropy it is
    rate: float = 2e-5  # learning rate of AdamW
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW, its decay rates
    weight_decay: float = 0.0  # of AdamW

    def __post_init__(self) -> None:
        if self.block_length < 0:
            raise ValueError(f"block_length must be at least 0: got {self.block_length}")
        if self.certainty < 0.0:
            raise ValueError(f"certainty must be at least 0: got {self.certainty}")
        for name in ("temperature", "rate"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0: got {getattr(self, name)}")


DREAM = DParallelOptions(block_length=0, certainty=1.0)  # what the authors take for Dream


def dparallel(
    model: Backbone,
    batches: BatchSource,
    settings: RunSettings,
    *,
    mask_id: int,
    shift: int = 0,
    options: DParallelOptions = DParallelOptions(),
) -> TrainingRun:
    """A run of certainty-forcing distillation.

    Args:
        model: trained in place, as far as its parameters require a gradient: all of it, or its adapter; bidirectional.
        batches: clean micro-batches of the model's own answers; end tokens behind an answer are learned if they have
            weight.
        settings: of the run.
        mask_id: the mask token.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
        options: blocks, certainty and rates.

    Raises:
        TrainingError: if the model's attention is not bidirectional.
    """
    must_be_bidirectional(model, "dparallel")
    return TrainingRun(
        model=model,
        batches=batches,
        corruption=HalvedBlock(mask_id, options.block_length or WHOLE_ANSWER),
        objective=CertaintyForcing(options.certainty, options.temperature, shift),
        optimizers=[adamw(model, lr=options.rate, betas=options.betas, weight_decay=options.weight_decay)],
        settings=settings,
    )
