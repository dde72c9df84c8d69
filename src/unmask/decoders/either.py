"""Two methods at once: what either of them commits is committed.

Source: this project; the union of commit rules is how LocalLeap and LEAP extend a base rule. Deviates: nowhere.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.core.canvas import Canvas
from unmask.core.extras import beside
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.compound import Compound, decision_of

Pair = tuple[Memory, Memory]


@dataclass(frozen=True, slots=True)
class Either(Compound):
    """Commit every slot that one of two methods would commit.

    Both see the same prediction, made from the canvas of the one that shows more than the committed tokens; each keeps
    a memory of its own. A slot that both commit gets the same candidate. Where both add extra slots (WINO and LEAP),
    all of them stand behind the answer, neither kind sees the other, and each method hears its own.
    """

    first: Decoder  # a method
    second: Decoder  # another one; at most one of the two may show drafts, and one may take tokens back

    @property
    def parts(self) -> tuple[Decoder, Decoder]:
        return self.first, self.second

    def quarrel(self) -> str:
        first, second = (type(part).__name__ for part in self.parts)
        if not any(part.shows_plainly for part in self.parts) and not self._both_add:
            return (
                f"Either cannot hold {first} and {second}: both change what the model is shown, and it sees one "
                'canvas. Pair one of them with a method that shows the plain canvas, such as "threshold".'
            )
        if all(part.revokes for part in self.parts):
            return (
                f"Either cannot hold {first} and {second}: both take tokens back, and together they might undo each "
                'other for ever. Pair one of them with a method that does not, such as "threshold".'
            )
        one, other = (part.schedule for part in self.parts)
        if one and other and not (issubclass(one, other) or issubclass(other, one)):
            return (
                f"Either cannot hold {first} and {second}: they work on the schedules {one.__name__} and "
                f"{other.__name__} only. Replace one of them."
            )
        return ""

    @property
    def _both_add(self) -> bool:
        """Do both leave the answer as it is and add slots behind it?"""
        return all(part.reshapes and not part.drafts for part in self.parts)

    def begin(self, state: DenoisingState) -> Pair:
        return self.first.begin(state), self.second.begin(state)

    def view(self, state: DenoisingState, window: Window, memory: Pair) -> Canvas:
        if self._both_add:
            return beside(self.first.view(state, window, memory[0]), self.second.view(state, window, memory[1]))
        if self.first.shows_plainly:
            return self.second.view(state, window, memory[1])
        return self.first.view(state, window, memory[0])

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        return self.first.asks(state, window, canvas) | self.second.asks(state, window, canvas)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Pair) -> tuple[Move, Pair]:
        first, second = self._heard(state, window, prediction, memory)
        one, first_memory = decision_of(self.first, state, window, first, memory[0])
        other, second_memory = decision_of(self.second, state, window, second, memory[1])
        tokens = torch.where(one.commit, one.tokens, other.tokens)
        revoke = other.revoke if one.revoke is None else one.revoke
        return Move(one.commit | other.commit, tokens, revoke), (first_memory, second_memory)

    def _heard(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Pair
    ) -> tuple[Prediction, Prediction]:
        """What each is told: extra slots are nobody's business but of the one that added them."""
        if not self._both_add:
            plain = prediction.without_extras()
            first, second = (prediction if part.reshapes else plain for part in self.parts)
            return first, second
        own = self.first.view(state, window, memory[0]).extra
        return prediction.with_extras(0, own), prediction.with_extras(own, prediction.num_slots)
