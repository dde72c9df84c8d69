"""A random transformer of a few thousand parameters, for tests and examples."""

from typing import Any

import torch

from unmask.models.backbone import Backbone
from unmask.models.checkpoints.reading import empty_backbone
from unmask.models.config import BackboneConfig
from unmask.models.facts import ModelFacts


def tiny_backbone(seed: int = 0, **overrides: Any) -> Backbone:
    """A backbone with random weights, the same for the same seed, whatever the global random state.

    Args:
        seed: of the weights.
        overrides: fields of `BackboneConfig`.
    """
    sizes: dict[str, Any] = {
        "vocab_size": 24,
        "width": 16,
        "num_layers": 2,
        "num_heads": 2,
        "num_key_heads": 2,
        "feed_width": 32,
        "max_length": 256,
    }
    backbone = empty_backbone(BackboneConfig(**(sizes | overrides))).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.startswith("embedding"):
                parameter.copy_(noise)
            elif parameter.ndim == 2:  # the head is steep, so that confidences are spread over (0, 1)
                parameter.copy_(noise * (3.0 if name.startswith("head") else 1.0) * parameter.shape[1] ** -0.5)
            else:
                parameter.copy_(0.1 * noise + (1.0 if "norm" in name else 0.0))
    return backbone.eval()


def tiny_facts(backbone: Backbone, **overrides: Any) -> ModelFacts:
    """Facts for a random backbone: the last id is the mask, the one before it ends an answer.

    Args:
        backbone: whose sizes hold.
        overrides: fields of `ModelFacts`.
    """
    config = backbone.config
    facts: dict[str, Any] = {
        "mask_id": config.vocab_size - 1,
        "end_ids": (config.vocab_size - 2,),
        "banned_ids": (config.vocab_size - 1,),
        "vocab_size": config.vocab_size,
        "shift": 0,
        "attention": config.attention,
        "block_length": config.block_length,
        "family": "tiny",
        "max_length": config.max_length,
    }
    return ModelFacts(**(facts | overrides))
