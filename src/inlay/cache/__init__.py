"""Paged KV cache of one instance: which page holds what, who uses it, and what may go.

Knows page ids and block names only; the memory itself belongs to the model's pool.
"""

from inlay.cache.block_names import BlockNames
from inlay.cache.block_store import BlockStore, KvStore
from inlay.cache.config import CacheConfig
from inlay.cache.events import BlockRemoved, BlockStored, KvEvent
from inlay.cache.kv_cache import KvCache, PageCounts, PageHold, PrefixMatch
from inlay.cache.loader import Loader
from inlay.cache.open_store import open_store
from inlay.cache.open_stream import PageMemory, open_stream, serve_rank
from inlay.cache.outgoing import Outgoing
from inlay.cache.paged_kv_cache import PagedKvCache
from inlay.cache.pause import TierCounts
from inlay.cache.prefetch import Prefetch
from inlay.cache.sessions import Sessions
from inlay.cache.stream import Incoming, KvStream
from inlay.cache.stream_thread import Mark
from inlay.cache.tiers import Tiers
from inlay.cache.write_back import WriteBack

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
