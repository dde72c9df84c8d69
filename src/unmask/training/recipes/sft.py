"""Supervised fine-tuning of a masked diffusion model, also from nothing: the recipe of the built-in model.

Source: Nie et al., Large Language Diffusion Models (arXiv 2502.09992), alg. 2. Deviates: half of the rows are masked
block by block, end tokens after the answer share a fixed weight, and matrices are moved by Muon.
"""

import math
from dataclasses import dataclass

import torch

from unmask.models.adapters import adapted_layers
from unmask.models.backbone import Backbone, Block
from unmask.models.config import BackboneConfig
from unmask.training.corruption import BlockMask, Mixed, RandomMask
from unmask.training.loop import BatchSource, RunSettings, TrainingRun
from unmask.training.objectives import MaskedCrossEntropy
from unmask.training.optimizers import Muon, adamw
from unmask.training.run import must_be_bidirectional


@dataclass(frozen=True, slots=True)
class SFTOptions:
    """Settings of the recipe; the defaults made the built-in model."""

    muon_rate: float = 0.01
    muon_momentum: float = 0.95
    adam_rate: float = 2e-3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adapter_rate: float = 1e-4  # of AdamW, where an adapter is all that is trained
    lowest: float = 0.1  # smallest masking ratio t
    block_length: int = 32  # of block-wise masking, tokens


def small_config(
    vocab_size: int, *, width: int = 192, num_layers: int = 6, num_heads: int = 6, feed_width: int = 512
) -> BackboneConfig:
    """A LLaDA-shaped backbone in its training form: tied, RMS-normed embedding (see `export`)."""
    return BackboneConfig(
        vocab_size=vocab_size,
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_key_heads=num_heads,
        feed_width=feed_width,
        tied=True,
        normed_embedding=True,
        max_length=512,
    )


def fresh_model(config: BackboneConfig, seed: int) -> Backbone:
    """A backbone with starting weights.

    Matrices that write into the residual stream start at zero, so that every layer starts as the identity; the
    embedding has standard deviation 0.02, other matrices 1 / sqrt(inputs).
    """
    model = Backbone(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.embedding.weight.normal_(0.0, 0.02, generator=generator)
        if not config.tied:
            model.head.weight.normal_(0.0, 0.02, generator=generator)
        for block in model.blocks:
            assert isinstance(block, Block)
            for linear in (block.query, block.key, block.value, block.gate, block.up):
                linear.weight.normal_(0.0, 1.0 / math.sqrt(linear.in_features), generator=generator)
            for linear in (block.query, block.key, block.value):
                if linear.bias is not None:
                    linear.bias.zero_()
            block.attention_out.weight.zero_()
            block.down.weight.zero_()
    return model


def sft(
    model: Backbone,
    batches: BatchSource,
    settings: RunSettings,
    *,
    mask_id: int,
    shift: int = 0,
    options: SFTOptions = SFTOptions(),
) -> TrainingRun:
    """A run of supervised fine-tuning.

    Args:
        model: trained in place, as far as its parameters require a gradient; bidirectional.
        batches: clean micro-batches.
        settings: of the run.
        mask_id: the mask token.
        shift: 1 where the left neighbour's row speaks for a slot (Dream), else 0.
        options: rates and masking.

    Raises:
        TrainingError: if the model's attention is not bidirectional.
    """
    must_be_bidirectional(model, "sft")
    return TrainingRun(
        model=model,
        batches=batches,
        corruption=Mixed(RandomMask(mask_id, options.lowest), BlockMask(mask_id, options.block_length, options.lowest)),
        objective=MaskedCrossEntropy(per="sample", shift=shift),
        optimizers=optimizers_of(model, options),
        settings=settings,
    )


def optimizers_of(model: Backbone, options: SFTOptions) -> list[torch.optim.Optimizer]:
    """AdamW for an adapter; for whole models Muon for the matrices of the blocks and AdamW for the rest."""
    if adapted_layers(model):
        return [adamw(model, lr=options.adapter_rate, betas=options.adam_betas, weight_decay=0.0)]
    inner = {id(parameter) for parameter in model.blocks.parameters() if parameter.ndim == 2}
    matrices = [parameter for parameter in model.parameters() if id(parameter) in inner]
    others = [parameter for parameter in model.parameters() if id(parameter) not in inner]
    return [
        Muon(matrices, lr=options.muon_rate, momentum=options.muon_momentum),
        torch.optim.AdamW(others, lr=options.adam_rate, betas=options.adam_betas, weight_decay=0.0),
    ]
