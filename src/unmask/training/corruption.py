"""Corruption: how clean text becomes training input, the forward process of masked diffusion.

Source: Nie et al., Large Language Diffusion Models (arXiv 2502.09992), alg. 2 (supervised fine-tuning), for the
uniform form; Arriola et al., Block Diffusion (arXiv 2503.09573), for training on one block with a clean left side.
Knows tokens, masks and weights; knows neither tokenizers nor models.

Shape letters: b rows of the batch, l slots of the canvas.
"""

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CleanBatch:
    """Uncorrupted canvases: prompt, answer, end padding."""

    tokens: Int[Tensor, "b l"]
    weights: Float[Tensor, "b l"]  # share of each slot in the loss, 0 on the prompt
    answer_starts: Int[Tensor, " b"]  # first slot of the answer
    exists: Bool[Tensor, "b l"]  # False on padding, which nobody attends to
    labels: tuple[str, ...] = ()  # one per row, for reports only


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """What the model sees and what it should have seen; made by corruption, consumed by an objective."""

    tokens: Int[Tensor, "b l"]  # what the model sees
    masked: Bool[Tensor, "b l"]
    targets: Int[Tensor, "b l"]
    weights: Float[Tensor, "b l"]  # 0 where no loss
    exists: Bool[Tensor, "b l"]  # False on padding, which nobody attends to
    answer_starts: Int[Tensor, " b"]  # first slot of the answer; blocks are counted from here

    def to(self, device: torch.device) -> "MaskedBatch":
        """The same batch on a device."""
        return MaskedBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


@runtime_checkable
class Corruption(Protocol):
    """A way to corrupt a batch; the same generator state gives the same result."""

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch: ...


def stratified_ratios(rows: int, lowest: float, generator: torch.Generator) -> Float[Tensor, " b"]:
    """Masking ratios t, one per row, spread evenly over [lowest, 1] and assigned to the rows at random.

    One draw per stratum lowers the variance of the loss (Kingma et al., Variational Diffusion Models, arXiv
    2107.00630).
    """
    strata = (torch.randperm(rows, generator=generator) + torch.rand(1, generator=generator)) / rows
    return lowest + (1.0 - lowest) * strata


def masked_batch(
    clean: CleanBatch,
    masked: Bool[Tensor, "b l"],
    ratios: Float[Tensor, " b"],
    mask_id: int,
    scored: Bool[Tensor, "b l"] | None = None,
) -> MaskedBatch:
    """Hide the given slots and weigh them: share of the slot / ratio / total of the row's shares.

    Args:
        clean: the canvases.
        masked: slots to hide, (b, l); never a slot of the prompt.
        ratios: probability with which a scored slot was hidden, (b,), in (0, 1].
        mask_id: the mask token.
        scored: slots whose shares make up the row's total and which may carry loss, (b, l); all by default.
    """
    assert not bool((masked & ~clean.exists).any()), "padding cannot be masked"
    shares = clean.weights if scored is None else clean.weights * scored
    totals = shares.sum(dim=1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
    return MaskedBatch(
        tokens=clean.tokens.masked_fill(masked, mask_id),
        masked=masked,
        targets=clean.tokens,
        weights=shares * masked / (ratios[:, None] * totals),
        exists=clean.exists,
        answer_starts=clean.answer_starts,
    )


@dataclass(frozen=True, slots=True)
class RandomMask:
    """LLaDA's corruption: every answer slot is masked with the row's ratio t, weights 1/t.

    Source: Nie et al. (arXiv 2502.09992), alg. 2. Deviates: t comes from [lowest, 1] instead of (0, 1], stratified
    over the batch, because weights beyond 10 made training noisy.
    """

    mask_id: int
    lowest: float = 0.1  # smallest masking ratio t

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        ratios = stratified_ratios(clean.tokens.shape[0], self.lowest, generator)
        noise = torch.rand(clean.tokens.shape, generator=generator)
        masked = (noise < ratios[:, None]) & _answer(clean)
        return masked_batch(clean, masked, ratios, self.mask_id)


@dataclass(frozen=True, slots=True)
class BlockMask:
    """What block-by-block decoding meets: left of one block clean, the block masked with ratio t, everything right
    masked.

    The block is drawn with probability proportional to its share in the loss and only its slots carry loss, so that the
    expected loss is that of all blocks together.

    Source: Arriola et al., Block Diffusion (arXiv 2503.09573), eq. 8. Deviates: attention stays bidirectional and the
    masked right side is visible, as in LLaDA's semi-autoregressive decoding.
    """

    mask_id: int
    block_length: int = 32
    lowest: float = 0.1  # smallest masking ratio t

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        rows, length = clean.tokens.shape
        answer = _answer(clean)
        blocks = block_of(clean.answer_starts, length, self.block_length).clamp_min(0)
        slot = torch.multinomial(clean.weights, 1, generator=generator)  # its block is drawn by the block's share
        chosen = blocks.gather(1, slot)
        ratios = stratified_ratios(rows, self.lowest, generator)
        noise = torch.rand(clean.tokens.shape, generator=generator)
        inside = answer & (blocks == chosen)
        masked = (inside & (noise < ratios[:, None])) | (answer & (blocks > chosen))
        return masked_batch(clean, masked, ratios, self.mask_id, scored=inside)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each row of a batch is corrupted by one of two ways, half of the rows by either."""

    first: Corruption
    second: Corruption

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        rows = clean.tokens.shape[0]
        one, other = self.first(clean, generator), self.second(clean, generator)
        # With an odd number of rows the larger half is either one's turn.
        parity = int(torch.randint(2, (1,), generator=generator))
        pick = ((torch.randperm(rows, generator=generator) + parity) % 2 == 0)[:, None]
        return MaskedBatch(
            tokens=torch.where(pick, one.tokens, other.tokens),
            masked=torch.where(pick, one.masked, other.masked),
            targets=clean.tokens,
            weights=torch.where(pick, one.weights, other.weights),
            exists=clean.exists,
            answer_starts=clean.answer_starts,
        )


@dataclass(frozen=True, slots=True)
class MonotoneBlockMask:
    """D2F's corruption: every block of the answer has its own ratio, and later blocks never a smaller one.

    The first ratio is drawn from [lowest, highest], each further one adds a share of what is left up to `highest`. A
    masked slot weighs one over the ratio of its block.

    Source: Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), section 3.2 and the released code, whose range
    (0.2 to 0.7) is taken where the text has 0.3 to 0.7. Deviates: nowhere; `weights` of the clean batch decide which
    slots may be masked, so that end padding takes part or not.
    """

    mask_id: int
    block_length: int = 16
    lowest: float = 0.2
    highest: float = 0.7

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        answer = _answer(clean) & (clean.weights > 0)
        ratios = self.ratios(clean, answer, generator)
        masked = answer & (torch.rand(clean.tokens.shape, generator=generator) < ratios)
        return MaskedBatch(
            tokens=clean.tokens.masked_fill(masked, self.mask_id),
            masked=masked,
            targets=clean.tokens,
            weights=torch.where(masked, 1.0 / ratios, 0.0),
            exists=clean.exists,
            answer_starts=clean.answer_starts,
        )

    def ratios(
        self, clean: CleanBatch, answer: Bool[Tensor, "b l"], generator: torch.Generator
    ) -> Float[Tensor, "b l"]:
        """Masking ratio of every slot, constant within a block and never falling from block to block."""
        blocks = block_of(clean.answer_starts, clean.tokens.shape[1], self.block_length).clamp_min(0)
        count = torch.where(answer, blocks + 1, 0).amax(1).clamp_min(1)
        first = self.lowest + (self.highest - self.lowest) * torch.rand(len(count), generator=generator)
        room = (self.highest - first) / (count - 1).clamp_min(1)
        steps = torch.rand(len(count), int(blocks.max()) + 1, generator=generator) * room[:, None]
        steps[:, 0] = first
        return steps.cumsum(1).gather(1, blocks).clamp_max(self.highest)


@dataclass(frozen=True, slots=True)
class NextToken:
    """No corruption at all: a causal model sees the clean text, and every slot with weight is a target.

    Nothing needs masking, because the row that speaks for a slot sees only what stands left of it.
    """

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        return MaskedBatch(
            tokens=clean.tokens,
            masked=_answer(clean) & (clean.weights > 0),
            targets=clean.tokens,
            weights=clean.weights,
            exists=clean.exists,
            answer_starts=clean.answer_starts,
        )


@dataclass(frozen=True, slots=True)
class HalvedBlock:
    """dParallel's corruption: one block half masked, everything before it clean, everything after it masked, and the
    same with the other half.

    The batch comes out twice as long: rows 2i and 2i + 1 are the two halves of row i, so that every slot of the block
    is a target exactly once. Slots behind the block are masked and carry no loss.

    Source: Chen et al., dParallel (arXiv 2509.26488) and its released code. Deviates: the block is drawn among those
    that hold a slot with loss, where the code may draw an empty tail; the halves are equally likely (0.5005 there).
    """

    mask_id: int
    block_length: int = 32

    def __call__(self, clean: CleanBatch, generator: torch.Generator) -> MaskedBatch:
        rows, length = clean.tokens.shape
        scored = _answer(clean) & (clean.weights > 0)
        blocks = block_of(clean.answer_starts, length, self.block_length).clamp_min(0)
        count = torch.where(scored, blocks + 1, 0).amax(1).clamp_min(1)
        chosen = (torch.rand(rows, generator=generator) * count).long()[:, None]
        inside = scored & (blocks == chosen)
        half = torch.rand(clean.tokens.shape, generator=generator) < 0.5
        active = torch.stack((inside & half, inside & ~half), dim=1).flatten(0, 1)
        return pair_of_halves(clean, active, _answer(clean) & (blocks > chosen), self.mask_id)


def pair_of_halves(
    clean: CleanBatch, active: Bool[Tensor, "twice l"], later: Bool[Tensor, "b l"], mask_id: int
) -> MaskedBatch:
    """Every row twice, the targets of each half masked, and what comes later masked in both.

    Args:
        clean: the canvases.
        active: targets of the halves; rows 2i and 2i + 1 belong to row i.
        later: slots that are masked without being targets.
        mask_id: the mask token.
    """

    def twice(values: Tensor) -> Tensor:
        return values.repeat_interleave(2, dim=0)

    masked = active | twice(later)
    return MaskedBatch(
        tokens=twice(clean.tokens).masked_fill(masked, mask_id),
        masked=masked,
        targets=twice(clean.tokens),
        weights=active / active.sum(1, keepdim=True).clamp_min(1),
        exists=twice(clean.exists),
        answer_starts=twice(clean.answer_starts),
    )


def block_of(answer_starts: Int[Tensor, " b"], length: int, block_length: int) -> Int[Tensor, "b l"]:
    """Block of every slot, counted from the end of the prompt, which is block -1."""
    offsets = torch.arange(length, device=answer_starts.device) - answer_starts[:, None]
    return offsets.div(block_length, rounding_mode="floor").clamp_min(-1)


def _answer(clean: CleanBatch) -> Bool[Tensor, "b l"]:
    slots = torch.arange(clean.tokens.shape[1])
    return (slots >= clean.answer_starts[:, None]) & clean.exists
