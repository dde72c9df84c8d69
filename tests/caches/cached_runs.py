"""What the tests of caches share: a method of known cost, runs with it, and the logits that no cache has touched."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import contract
from unmask.caches import CACHES, CachePolicy
from unmask.core.canvas import plan
from unmask.core.denoise import Step
from unmask.core.schedules import Schedule
from unmask.core.state import DenoisingState, Move
from unmask.decoders import Decoder
from unmask.decoders.selection import first_only


@dataclass(frozen=True, slots=True)
class InOrder(Decoder):
    """Commit one slot per step: the leftmost open one, or the rightmost."""

    backwards: bool = False

    def decide(self, state: DenoisingState, window: Any, prediction: Any, memory: Any) -> Move:
        among = self.eligible(state, window, prediction)
        chosen = first_only(among.flip(-1)).flip(-1) if self.backwards else first_only(among)
        return self.move(state, chosen, prediction)


def run(
    family: str, decoder: Decoder, schedule: Schedule, policy: str | CachePolicy, length: int = 8, prompt: int = 5
) -> list[Step]:
    """The steps of one row."""
    facts = contract.model(family).facts
    state = DenoisingState.start([list(range(3, 3 + prompt))], length, mask_id=facts.mask_id)
    return list(contract.steps(family, state, decoder, schedule, CACHES.make(policy)))


def rows(taken: list[Step]) -> list[int]:
    """Hidden states computed at each step of one row."""
    return [int(step.rows_computed) for step in taken]


def uncached(step: Step, predictor: Any) -> Tensor:
    """Logits about the same slots of what this step was shown, everything computed."""
    none = CACHES.make("none")
    flags = torch.zeros_like(step.before.masked).scatter(1, step.prediction.work.asked, True)
    work = plan(step.canvas, step.window, flags, None, predictor.facts.shift)
    with torch.inference_mode():
        return predictor(step.canvas, work, none, predictor.open_store(step.before, none))  # type: ignore[no-any-return]
