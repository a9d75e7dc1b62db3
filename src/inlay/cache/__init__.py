"""Paged KV cache of one instance: which page holds what, who uses it, and what may go.

Knows page ids and block names only; the memory itself belongs to the model's pool.
"""

from inlay.cache.block_names import BlockNames
from inlay.cache.config import CacheConfig
from inlay.cache.events import BlockRemoved, BlockStored, KvEvent
from inlay.cache.kv_cache import KvCache, PageCounts, PageHold, PrefixMatch
from inlay.cache.paged_kv_cache import PagedKvCache

__all__ = [
    "BlockNames",
    "BlockRemoved",
    "BlockStored",
    "CacheConfig",
    "KvCache",
    "KvEvent",
    "PageCounts",
    "PageHold",
    "PagedKvCache",
    "PrefixMatch",
]
