"""Every open slot at once: nothing to choose, nothing to weigh.

Source: none needed. On `next-token`, whose window is one slot, this is how language models have always been decoded; on
blocks it is the careless end of the scale, one forward pass per block, that choosing methods are better than.
"""

from dataclasses import dataclass

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory


@dataclass(frozen=True, slots=True)
class EverySlot(Decoder):
    """Commit every open slot: the next token of a causal model, a whole block of any other."""

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        return self.move(state, self.eligible(state, window, prediction), prediction)
