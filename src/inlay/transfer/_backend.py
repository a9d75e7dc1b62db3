"""The compiled classes, or stand-ins that say why there are none."""

from typing import TYPE_CHECKING, Any

from inlay.core.errors import TransportUnavailableError
from inlay.core.settings import read_settings

if TYPE_CHECKING:
    from inlay._native import transfer as native

    Batch = native.Batch
    Completions = native.Completions
    Engine = native.Engine
    Peer = native.Peer
    Ranges = native.Ranges
    RemoteSegment = native.RemoteSegment
    RemoteView = native.RemoteView
    Segment = native.Segment
    SegmentView = native.SegmentView
    Transfer = native.Transfer
    TransferStatus = native.TransferStatus
    crc32c = native.crc32c
    crc32c_of_parts = native.crc32c_of_parts
    find_cuda = native.find_cuda
    find_fabric = native.find_fabric
    hold = native.hold
    leave_waiters = native.leave_waiters
    paths = native.paths
    port_counts = native.port_counts
    read_topology = native.read_topology
    stop = native.stop
else:

    def _missing(name: str, problem: str) -> type:
        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            raise TransportUnavailableError(f"{name} needs the compiled extension: {problem}")

        return type(name, (), {"__init__": refuse, "__doc__": f"Not there: {problem}."})

    _NAMES = (
        "Batch", "Completions", "Engine", "Peer", "Ranges", "RemoteSegment", "RemoteView",
        "Segment", "SegmentView", "Transfer", "TransferStatus", "crc32c", "crc32c_of_parts",
        "find_cuda", "find_fabric", "hold", "paths", "port_counts", "read_topology", "stop",
    )  # fmt: skip
    try:
        if not read_settings().native:
            raise ImportError("switched off by INLAY_NATIVE=0")
        from inlay import _native
    except ImportError as error:
        globals().update({name: _missing(name, str(error)) for name in _NAMES})
    else:
        globals().update({name: getattr(_native.transfer, name) for name in _NAMES})
        leave_waiters = _native.transfer.leave_waiters
