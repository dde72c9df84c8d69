"""Cache policies by their public names."""

from unmask.caches.base import CachePolicy, KVStore
from unmask.caches.delayed import Delayed
from unmask.caches.fast_dllm import Dual, NoCache, Prefix
from unmask.caches.features import Features
from unmask.caches.finished_blocks import FinishedBlocks
from unmask.caches.window import Windowed
from unmask.registry import Registry

CACHES: Registry[CachePolicy] = Registry(
    "cache",
    "unmask.caches",
    {
        "none": NoCache,
        "prefix": Prefix,
        "dual": Dual,
        "delayed": Delayed,
        "window": Windowed,
        "features": Features,
        "finished-blocks": FinishedBlocks,
    },
    CachePolicy,
)

__all__ = ["CACHES", "CachePolicy", "KVStore"]
