"""How logits become one candidate token per slot.

Noise is counter-based: every random number is a function of (seed of the row, name of the stream, step of the row,
slot, token id). A row therefore draws the same numbers alone and in any batch, with any cache, and after a resume.

Shape letters: b batch rows, a asked targets, v vocabulary.
"""

import zlib
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import RequestError

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed 64-bit number
_MIX_1 = -4658895280553007687  # multipliers of the splitmix64 finaliser (Steele, Lea, Flood 2014)
_MIX_2 = -7723592293110705685


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of the draw, the same for every method.

    Confidence is the probability of the drawn token: under the model's own distribution ("raw", as LLaDA's samplers
    have it) or under the tempered and truncated one it was drawn from ("drawn", as Dream's sampler has it). At
    temperature 0 without truncation both are the same.

    Source: Nie et al., LLaDA (arXiv 2502.09992) and its Gumbel draw in float64; Ye et al., Dream (arXiv 2508.15487).
    """

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    confidence: Literal["raw", "drawn"] = "raw"
    forbid: tuple[int, ...] = ()  # token ids that are never predicted (beside those the model bans itself)
    distrust: tuple[int, ...] = ()  # token ids that may be predicted, but with confidence 0 and renormalised others
    precision: torch.dtype = torch.float32  # of confidence, entropy and margin

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0 or self.temperature == float("inf"):
            raise RequestError(f"temperature must be a number from 0 up: got {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must be 0 (off) or a number of tokens: got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be above 0 and at most 1: got {self.top_p}")
        if self.confidence not in ("raw", "drawn"):
            raise RequestError(f'confidence must be "raw" or "drawn": got "{self.confidence}"')


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers of the rows at one step."""

    seed: Int[Tensor, " b"]
    step: Int[Tensor, " b"]

    def uniform(self, stream: str, slots: Int[Tensor, "b a"], width: int | None = None) -> Float[Tensor, "..."]:
        """Numbers in (0, 1), float64: one per slot, (b, a), or `width` per slot, (b, a, width).

        Args:
            stream: a name, so that two uses at one step do not share numbers.
            slots: slot indices.
        """
        key = _mix(self.seed * _GOLDEN + zlib.crc32(stream.encode()))
        key = _mix(key + self.step * _GOLDEN)
        key = _mix(key[:, None] + slots * _GOLDEN)
        if width is not None:
            key = _mix(key[..., None] + torch.arange(width, device=slots.device) * _GOLDEN)
        # 52 bits and a half: one bit more, and the largest number would be rounded to 1
        return ((key >> 12) & ((1 << 52) - 1)).double().add_(0.5).mul_(2.0**-52)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def draw(
    logits: Float[Tensor, "b a v"], slots: Int[Tensor, "b a"], noise: Noise, sampling: Sampling
) -> Int[Tensor, "b a"]:
    """One token per slot: argmax at temperature 0, else a Gumbel draw in float64 (low precision harms the tail)."""
    if sampling.temperature == 0.0:
        return logits.argmax(-1)
    tempered = truncate(logits.double() / sampling.temperature, sampling)
    gumbel = -torch.log(-torch.log(noise.uniform("token", slots, logits.shape[-1])))
    return (tempered + gumbel).argmax(-1)


def ban(logits: Float[Tensor, "b a v"], ids: tuple[int, ...]) -> Float[Tensor, "b a v"]:
    """Rule out some tokens, in place."""
    if ids:
        logits[..., list(ids)] = float("-inf")
    return logits


def truncate(logits: Float[Tensor, "b a v"], sampling: Sampling) -> Float[Tensor, "b a v"]:
    """Top-p, then top-k, of already tempered logits; dropped tokens get -inf. The best token always stays."""
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        beyond = probability.cumsum(-1) - probability >= sampling.top_p
        logits = logits.masked_fill(_unsort(beyond, order), float("-inf"))
    if 0 < sampling.top_k < logits.shape[-1]:
        bound = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < bound, float("-inf"))
    return logits


def _unsort(flags: Bool[Tensor, "b a v"], order: Int[Tensor, "b a v"]) -> Bool[Tensor, "b a v"]:
    return torch.zeros_like(flags).scatter(-1, order, flags)
