"""LocalLeap: slots near a sure one may be committed with less confidence.

Source: Kong et al., Accelerating Diffusion LLM Inference via Local Determinism Propagation (arXiv 2510.07081).
Deviates: its early stop is `Stopping`, the same for every method.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.selection import force


@dataclass(frozen=True, slots=True)
class LocalLeap(Decoder):
    """Commit every open slot that is sure (an anchor), and those near an anchor that are nearly so.

    Anchors are slots that become sure at this very step; what was committed before is none. Where there is no anchor
    the most confident slot is committed. With `relaxed` no lower than `anchor`, or `radius` 0, this is `threshold`.
    """

    anchor: float = 0.9  # tau; smallest confidence of an anchor, the bound itself passes
    relaxed: float = 0.75  # tau_rel; smallest confidence near an anchor, the bound itself passes
    radius: int = 4  # r, slots on either side; a slot at this distance is near

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ValueError(f"radius must be a number of slots from 0 up: got {self.radius}")

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        confidence = prediction.confidence[:, : state.num_slots]
        anchors = among & (confidence >= self.anchor)
        near = among & (confidence >= self.relaxed) & around(anchors, self.radius)
        return self.move(state, force(confidence, among, anchors | near, window), prediction)


def around(slots: Bool[Tensor, "b l"], radius: int) -> Bool[Tensor, "b l"]:
    """Slots at most `radius` away from one of the given ones, itself included."""
    radius = min(radius, slots.shape[1])
    return functional.max_pool1d(slots.float(), 2 * radius + 1, stride=1, padding=radius) > 0
