"""EB-Sampler: as many slots as keep the joint error of committing them at once below a bound.

Source: Ben-Hamu et al., Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking
(arXiv 2505.24857). Deviates: nothing; with given text or guidance the entropies are those of what the model was shown.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.selection import Score, check_score, force, rank, score_of


@dataclass(frozen=True, slots=True)
class EntropyBound(Decoder):
    """Commit the longest run of best slots whose entropies sum up to at most `gamma`, the largest not counted.

    That sum bounds how far the joint distribution of the slots may lie from the product of their marginals. A single
    slot always passes; in the order of entropy, all slots but the last of the run have to fit into the bound.
    """

    gamma: float = 0.1  # nats; the bound itself passes; 0 commits one slot, and those of entropy exactly 0
    order: Score = "entropy"  # what makes a slot a better one (the paper's error proxy)

    def __post_init__(self) -> None:
        check_score("order", self.order)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        score = score_of(self.order, prediction, state.num_slots)
        place = rank(score, among)
        error = joint_error(prediction.entropy[:, : state.num_slots].masked_fill(~among, 0.0), place)
        commit = among & ((place == 0) | (error <= self.gamma))
        return self.move(state, force(score, among, commit, window), prediction)


def joint_error(entropy: Float[Tensor, "b l"], place: Int[Tensor, "b l"]) -> Float[Tensor, "b l"]:
    """Per slot: the sum of the entropies up to its place, less the largest of them. It never falls with the place."""
    ordered = torch.zeros_like(entropy).scatter(1, place, entropy)
    bound = ordered.cumsum(-1) - ordered.cummax(-1).values
    return bound.cummax(-1).values.gather(1, place)  # rounding may let the difference fall by a last place
