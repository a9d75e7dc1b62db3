"""Paged KV cache of one instance: which page holds what, who uses it, and what may go.

Knows page ids and block names only; the memory itself belongs to the model's pool.

Exports load on first use, so that front ends get the configuration without all else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.cache.block_names import BlockNames
    from inlay.cache.block_store import BlockStore, KvStore
    from inlay.cache.config import CacheConfig
    from inlay.cache.events import BlockRemoved, BlockStored, KvEvent
    from inlay.cache.kv_cache import KvCache, PageCounts, PageHold, PrefixMatch
    from inlay.cache.loader import Loader
    from inlay.cache.outgoing import Outgoing
    from inlay.cache.paged_kv_cache import PagedKvCache
    from inlay.cache.prefetch import Prefetch
    from inlay.cache.sessions import Sessions
    from inlay.cache.store_opening import open_store
    from inlay.cache.stream import Incoming, KvStream
    from inlay.cache.stream_opening import PageMemory, open_stream, serve_rank
    from inlay.cache.stream_thread import Mark
    from inlay.cache.tier_counts import TierCounts
    from inlay.cache.tiers import Tiers
    from inlay.cache.write_back import WriteBack

_MODULES = {
    "BlockNames": "block_names",
    "BlockRemoved": "events",
    "BlockStore": "block_store",
    "BlockStored": "events",
    "CacheConfig": "config",
    "Incoming": "stream",
    "KvCache": "kv_cache",
    "KvEvent": "events",
    "KvStore": "block_store",
    "KvStream": "stream",
    "Loader": "loader",
    "Mark": "stream_thread",
    "Outgoing": "outgoing",
    "PageCounts": "kv_cache",
    "PageHold": "kv_cache",
    "PageMemory": "stream_opening",
    "PagedKvCache": "paged_kv_cache",
    "Prefetch": "prefetch",
    "PrefixMatch": "kv_cache",
    "Sessions": "sessions",
    "TierCounts": "tier_counts",
    "Tiers": "tiers",
    "WriteBack": "write_back",
    "open_store": "store_opening",
    "open_stream": "stream_opening",
    "serve_rank": "stream_opening",
}

__all__ = [
    "BlockNames",
    "BlockRemoved",
    "BlockStore",
    "BlockStored",
    "CacheConfig",
    "Incoming",
    "KvCache",
    "KvEvent",
    "KvStore",
    "KvStream",
    "Loader",
    "Mark",
    "Outgoing",
    "PageCounts",
    "PageHold",
    "PageMemory",
    "PagedKvCache",
    "Prefetch",
    "PrefixMatch",
    "Sessions",
    "TierCounts",
    "Tiers",
    "WriteBack",
    "open_store",
    "open_stream",
    "serve_rank",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
