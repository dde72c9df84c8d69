"""How much an approximate cache has changed: commits whose token would have been another one without it.

Measured step by step, on the run as it was: every forward pass is done once more, on the canvas that was shown and with
nothing stored, and the same questions are answered with the same noise. So it is the error of single steps, not how far
a run with the cache and one without it part; docs/metrics.md has the definition.

Shape letters: b batch rows, l canvas slots.
"""

from collections import Counter
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.core.canvas import plan
from unmask.core.denoise import Cache, MaskPredictor, Step
from unmask.core.sampling import ban


def drifted(predictor: MaskPredictor, step: Step, plain: Cache) -> tuple[Bool[Tensor, "b l"], Bool[Tensor, "b l"]]:
    """Which commits of a step can be compared, and which of these have another candidate without a cache.

    Not compared are commits on slots that the step did not ask about: a candidate canvas that won brings some.

    Args:
        predictor: the one that the loop ran on.
        plain: a cache policy that freezes nothing.
    """
    asked = replace(step.prediction, held=None)
    work = plan(step.canvas, step.window, asked.known, None, predictor.facts.shift)
    with torch.inference_mode():
        logits = predictor(step.canvas, work, plain, predictor.open_store(step.before, plain))
        exact = replace(asked, logits=ban(logits, asked.sampling.forbid), work=work)
        slots = step.before.num_slots
        compared = step.move.commit & asked.known[:, :slots]
        return compared, compared & (exact.tokens != asked.tokens)[:, :slots]


class Drift:
    """The share of changed commits, collected while a run goes on; it costs one more forward pass per step.

    Args:
        predictor: the one that the loop runs on.
        plain: a cache policy that freezes nothing.
    """

    def __init__(self, predictor: MaskPredictor, plain: Cache) -> None:
        self._predictor, self._plain = predictor, plain
        self._compared: Counter[int] = Counter()
        self._changed: Counter[int] = Counter()

    def add(self, step: Step) -> None:
        """Compare the commits of a step."""
        compared, changed = drifted(self._predictor, step, self._plain)
        for row, count, others in zip(
            step.row_ids.tolist(), compared.sum(-1).tolist(), changed.sum(-1).tolist(), strict=True
        ):
            self._compared[row] += count
            self._changed[row] += others

    def share(self, row: int) -> float:
        """Changed commits of a row / those that were compared, 0..1; 0 where nothing was."""
        return self._changed[row] / self._compared[row] if self._compared[row] else 0.0
