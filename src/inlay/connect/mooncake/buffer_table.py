"""Which memory an engine has registered, at which addresses: a segment that its peers read.

Mooncake's callers name remote memory by its address in the peer's process; a peer of ours is asked
for segments by name. So each engine keeps a table of (address, bytes, number), the number being in
the segment's name, in memory that peers may read.
"""

import struct
import time
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.connect.mooncake.host_memory import AddressMap, Places
from inlay.core.errors import ArgumentError, ResourceError
from inlay.transfer import Access, Peer, Segment, TransferEngine

NAME = "mooncake/buffers"
MAX_BUFFERS = 4096  # as many segments as an engine has
READ_S = 5.0
_HEAD = struct.Struct("<QI4x")  # rows, CRC of them
_COLUMNS = 3
_RETRY_S = 0.001


def segment_name(number: int) -> str:
    """Of the segment behind a row."""
    return f"mooncake/{number}"


class BufferTable:
    """The table of this process's engine. Rows are written whole; a reader compares the CRC."""

    def __init__(self, engine: TransferEngine) -> None:
        size = _HEAD.size + MAX_BUFFERS * _COLUMNS * 8
        self._segment = engine.allocate(size, name=NAME, remote=Access.READ)
        self._memory = memoryview(self._segment).cast("B")
        self.publish(AddressMap())

    def publish(self, held: AddressMap) -> None:
        """Show what is registered: values of `held` are (number, ...).

        Raises:
            ResourceError: there are too many.
        """
        if len(held) > MAX_BUFFERS:
            raise ResourceError(f"{len(held)} buffers are registered: {MAX_BUFFERS} at most")
        places = held.arrays()
        numbers = np.array([value[0] for value in places.values], np.int64)
        rows = np.stack([places.starts_P, places.ends_P - places.starts_P, numbers], axis=1)
        data = rows.astype("<i8").tobytes()
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        self._memory[: _HEAD.size] = _HEAD.pack(len(rows), zlib.crc32(data))


class BufferReader:
    """Reads tables of peers into one piece of registered memory. For one thread at a time."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._segment: Segment = engine.allocate(
            _HEAD.size + MAX_BUFFERS * _COLUMNS * 8, remote=Access.NONE
        )
        self._memory = memoryview(self._segment).cast("B")

    def read(self, peer: Peer) -> Places:
        """Where the peer's buffers are; values are (number, None).

        Raises:
            ArgumentError: it changes all the time, or is none.
            TransferError: the peer has no table, or does not answer.
        """
        table = peer[NAME]
        end = time.monotonic() + READ_S
        while time.monotonic() < end:
            rows = self._read_rows(table)
            if rows is not None:
                starts, sizes, numbers = np.ascontiguousarray(rows.T)
                return Places(starts, starts + sizes, [(int(number), None) for number in numbers])
            time.sleep(_RETRY_S)  # it is written just now
        raise ArgumentError(f"the table of buffers of {peer.address} cannot be read")

    def _read_rows(self, table: Any) -> npt.NDArray[np.int64] | None:
        head = _HEAD.size
        self._engine.read(self._segment[0:head], table[0:head], deadline_s=READ_S)
        count, _ = _HEAD.unpack_from(self._memory)
        size = min(count, MAX_BUFFERS) * _COLUMNS * 8
        self._engine.read(self._segment[0 : head + size], table[0 : head + size], deadline_s=READ_S)
        again, checksum = _HEAD.unpack_from(self._memory)
        data = self._memory[head : head + size]
        if again != count or zlib.crc32(data) != checksum:
            return None
        return np.frombuffer(bytes(data), "<i8").astype(np.int64).reshape(-1, _COLUMNS)
