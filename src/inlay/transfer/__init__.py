"""Moves bytes between registered memories of this process and of others.

An engine owns a port, the memory that is registered with it, and its connections. This slice moves
bytes over TCP: one connection for small and one for large transfers to each peer. The package knows
no KV pages, objects or models. Without the compiled extension it loads, and its classes say so when
they are used.

Source: what an engine offers follows Mooncake's Transfer Engine (arXiv 2407.00079); how it reports
errors follows NIXL, exceptions where a call is made and statuses where bytes move.
"""

from inlay.transfer._backend import (
    Batch,
    Peer,
    Ranges,
    RemoteSegment,
    RemoteView,
    Segment,
    SegmentView,
    Transfer,
    TransferStatus,
    crc32c,
    crc32c_of_parts,
)
from inlay.transfer.engine import TransferConfig, TransferEngine
from inlay.transfer.kinds import Access, Op
from inlay.transfer.messages import Message
from inlay.transfer.paths import PathInfo, PortCounts
from inlay.transfer.topology import Gpu, Nic, NumaNode, Topology, read_topology

__all__ = [
    "Access",
    "Batch",
    "Gpu",
    "Message",
    "Nic",
    "NumaNode",
    "Op",
    "PathInfo",
    "Peer",
    "PortCounts",
    "Ranges",
    "RemoteSegment",
    "RemoteView",
    "Segment",
    "SegmentView",
    "Topology",
    "Transfer",
    "TransferConfig",
    "TransferEngine",
    "TransferStatus",
    "crc32c",
    "crc32c_of_parts",
    "read_topology",
]
