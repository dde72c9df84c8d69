"""Decoding methods by their public names."""

from unmask.decoders.base import Decoder
from unmask.decoders.quota import Entropy, LowConfidence, MaskgitPlus, Origin, Random, TopkMargin
from unmask.decoders.threshold import Factor, Threshold
from unmask.registry import Registry

__all__ = ["DECODERS", "Decoder"]

DECODERS: Registry[Decoder] = Registry(
    "decoder",
    "unmask.decoders",
    {
        "low-confidence": LowConfidence,
        "random": Random,
        "maskgit-plus": MaskgitPlus,
        "topk-margin": TopkMargin,
        "entropy": Entropy,
        "origin": Origin,
        "threshold": Threshold,
        "factor": Factor,
    },
    Decoder,
)
