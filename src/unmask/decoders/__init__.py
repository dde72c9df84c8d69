"""Decoding methods by their public names."""

from unmask.decoders.base import Decoder
from unmask.decoders.dc_leap import DcLeap
from unmask.decoders.edit import Edit
from unmask.decoders.either import Either
from unmask.decoders.entropy_bound import EntropyBound
from unmask.decoders.every_slot import EverySlot
from unmask.decoders.klass import Klass
from unmask.decoders.leap import Leap
from unmask.decoders.local_leap import LocalLeap
from unmask.decoders.lopa import Lopa
from unmask.decoders.prophet import Prophet
from unmask.decoders.quota import Entropy, LowConfidence, MaskgitPlus, Origin, Random, TopkMargin
from unmask.decoders.threshold import Dynamic, EntropyThreshold, Factor, Threshold
from unmask.decoders.wino import Wino
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
        "dynamic": Dynamic,
        "entropy-threshold": EntropyThreshold,
        "entropy-bound": EntropyBound,
        "every-slot": EverySlot,
        "local-leap": LocalLeap,
        "klass": Klass,
        "wino": Wino,
        "dc-leap": DcLeap,
        "leap": Leap,
        "either": Either,
        "edit": Edit,
        "prophet": Prophet,
        "lopa": Lopa,
    },
    Decoder,
)
