"""Cache policies by their public names."""

from unmask.caches.base import CachePolicy, KVStore
from unmask.caches.fast_dllm import Dual, NoCache, Prefix
from unmask.registry import Registry

CACHES: Registry[CachePolicy] = Registry(
    "cache", "unmask.caches", {"none": NoCache, "prefix": Prefix, "dual": Dual}, CachePolicy
)

__all__ = ["CACHES", "CachePolicy", "KVStore"]
