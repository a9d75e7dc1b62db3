"""Objects under keys in the memory and on the disks of all nodes, found by a master.

Bytes are moved by `inlay.transfer`. `inlay.store.policy` holds what decides which objects are kept,
`inlay.store.aio` the calls for asyncio. The package knows keys and bytes, no KV pages, models or
engines.

Source: what it offers follows Mooncake Store (arXiv 2407.00079).
"""

from inlay.store.options import Contribution, Disk, ObjectStat, PutOptions, PutResult
from inlay.store.policy import EvictionPolicy, Newcomer
from inlay.store.store import Store
from inlay.store.view import ObjectView

__all__ = [
    "Contribution",
    "Disk",
    "EvictionPolicy",
    "Newcomer",
    "ObjectStat",
    "ObjectView",
    "PutOptions",
    "PutResult",
    "Store",
]
