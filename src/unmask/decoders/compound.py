"""Methods made of methods. What such a method declares about itself follows from its parts.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots.
"""

from typing import Any

from unmask.core.prediction import Prediction
from unmask.core.schedules import Schedule
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory


class Compound(Decoder):
    """A method that holds others; subclasses name them and decide what becomes of their moves."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The methods inside."""
        raise NotImplementedError

    @property
    def revokes(self) -> bool:  # type: ignore[override]
        return any(part.revokes for part in self.parts)

    @property
    def reshapes(self) -> bool:  # type: ignore[override]
        return any(part.reshapes for part in self.parts)

    @property
    def overreaches(self) -> bool:  # type: ignore[override]
        return any(part.overreaches for part in self.parts)

    @property
    def drafts(self) -> bool:  # type: ignore[override]
        return any(part.drafts for part in self.parts)

    @property
    def schedule(self) -> type[Schedule] | None:  # type: ignore[override]
        """The narrowest one that a part names."""
        named = [part.schedule for part in self.parts if part.schedule is not None]
        return max(named, key=lambda one: len(one.__mro__), default=None)

    @property
    def confined(self) -> bool:
        return any(part.confined for part in self.parts)

    @property
    def idles(self) -> bool:
        return all(part.idles for part in self.parts)

    @property
    def spreads(self) -> bool:
        return any(part.spreads for part in self.parts)

    @property
    def shows_plainly(self) -> bool:
        return all(part.shows_plainly for part in self.parts)

    @property
    def clash(self) -> str:
        inside = next((part.clash for part in self.parts if part.clash), "")
        branching = next((type(part).__name__ for part in self.parts if part.branches > 1), "")
        if inside or not branching:
            return inside or self.quarrel()
        method = type(self).__name__
        return (
            f"{method} cannot hold {branching}: candidate canvases are for the outermost method to weigh. Put "
            f"{method} inside {branching}."
        )

    def quarrel(self) -> str:
        """Why just these parts do not go together, and a way out; empty if they do."""
        return ""


def decision_of(
    part: Decoder, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory
) -> tuple[Move, Any]:
    """What a part decides, and its next memory, whether it has one or not."""
    decision = part.decide(state, window, prediction, memory)
    return decision if isinstance(decision, tuple) else (decision, memory)
