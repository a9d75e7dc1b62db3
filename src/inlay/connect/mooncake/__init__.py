"""Mooncake's Python interface over Inlay's store and transfer engine.

`activate()` makes `import mooncake.store`, `mooncake.engine` and what else callers import resolve
to it; `python -m inlay.connect.mooncake SCRIPT` does so for a script. Calls return the codes that
Mooncake returns where callers depend on them (`inlay.connect.mooncake.codes`), and log what Inlay
says of the failure; `docs/guides/mooncake.md` lists what differs.

Source: the interface is that of Mooncake (arXiv 2407.00079), version 0.3.13, written anew from its
documentation and from what calls of it answer.
"""

from inlay.connect.mooncake.activation import activate, deactivate
from inlay.connect.mooncake.config import MooncakeConfig
from inlay.connect.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from inlay.connect.mooncake.host_memory import BufferHandle, MooncakeHostMemAllocator
from inlay.connect.mooncake.replicas import ReplicateConfig, SoftPinAction
from inlay.connect.mooncake.store import MooncakeDistributedStore

__all__ = [
    "BufferHandle",
    "MooncakeConfig",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ReplicateConfig",
    "SoftPinAction",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "activate",
    "deactivate",
]
