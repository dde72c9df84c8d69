"""WINO+, trajectory injection: a model learns the order in which WINO decided its answers, and then does without it.

Every step of a kept trajectory is a sample: what was committed before it is shown, its commits are the targets. The
trajectories are those of `unmask rollout`. Decode the result with a plain threshold on the confidence. Several stages
are several runs, each on the adapter or the model of the one before.

Source: the release that goes with Hong et al., WINO (arXiv 2507.18578). Deviates: see `TrajectorySamples` and
`VerifiedOrder`; the learning rate decays as the run's schedule says, constant there for LLaDA; all kept trajectories
are trained on, three fifths of the file there.
"""

from dataclasses import dataclass

from unmask.models.backbone import Backbone
from unmask.training.loop import RunSettings, TrainingRun
from unmask.training.objectives import VerifiedOrder
from unmask.training.optimizers import adamw
from unmask.training.replay import Replay, TrajectorySamples
from unmask.training.run import must_be_bidirectional


@dataclass(frozen=True, slots=True)
class WinoPlusOptions:
    """Settings of the recipe; the defaults are the authors' for LLaDA."""

    unmask: float = 0.1  # weight of the entropy of targets that are right but shy
    remask: float = 1.0  # weight of the entropy of guesses that are wrong but bold
    shy: float = 0.9  # confidence of a right target below which it is to become surer; the bound itself does not
    bold: float = 0.6  # confidence of a wrong guess above which it is to become less sure; the bound itself does not
    block_length: int = 128  # in which wrong guesses count, slots, counted from the end of the prompt
    rate: float = 2e-5  # learning rate of AdamW
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW, its decay rates
    weight_decay: float = 0.01  # of AdamW

    def __post_init__(self) -> None:
        for name in ("unmask", "remask"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} must be at least 0: got {getattr(self, name)}")
        for name in ("shy", "bold"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1: got {getattr(self, name)}")
        if self.block_length < 1:
            raise ValueError(f"block_length must be at least 1: got {self.block_length}")
        if not self.rate > 0.0:
            raise ValueError(f"rate must be above 0: got {self.rate}")


def wino_plus(
    model: Backbone,
    samples: TrajectorySamples,
    settings: RunSettings,
    *,
    mask_id: int,
    shift: int = 0,
    options: WinoPlusOptions = WinoPlusOptions(),
) -> TrainingRun:
    """A run of trajectory injection.

    Args:
        model: trained in place, as far as its parameters require a gradient: all of it, or its adapter; bidirectional.
        samples: of the trajectories, see `rollouts.read_answers`.
        settings: of the run.
        mask_id: the mask token.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
        options: weights, bounds and rates.

    Raises:
        TrainingError: if the model's attention is not bidirectional.
    """
    must_be_bidirectional(model, "wino_plus")
    return TrainingRun(
        model=model,
        batches=samples,
        corruption=Replay(mask_id),
        objective=VerifiedOrder(options.unmask, options.remask, options.shy, options.bold, options.block_length, shift),
        optimizers=[adamw(model, lr=options.rate, betas=options.betas, weight_decay=options.weight_decay)],
        settings=settings,
    )
