"""Memory of this process that an engine offers to its peers."""

import ctypes
import itertools
import threading
from collections.abc import Sequence

import numpy as np

from inlay.connect.mooncake.buffer_table import BufferTable, segment_name
from inlay.connect.mooncake.codes import logger
from inlay.connect.mooncake.host_memory import AddressMap, Places
from inlay.core.errors import (
    ArgumentError,
    EngineClosedError,
    InlayError,
    SegmentOverlapError,
)
from inlay.transfer import Access, Segment
from inlay.transfer import TransferEngine as Engine

OK, FAILED = 0, -1
NOT_REGISTERED, OVERLAPPED = -3, -7


class EngineMemory:
    """Registered ranges, each a segment; the table of them is what peers look addresses up in."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._table: BufferTable | None = None
        self._held = AddressMap()  # values are (number, segment)
        self._places: Places | None = None
        self._numbers = itertools.count()
        self._memory_lock = threading.Lock()

    def _begin(self, engine: Engine) -> None:
        self._engine = engine
        self._table = BufferTable(engine)

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Let peers read and write memory here, until it is unregistered; it stays in place.

        Returns:
            0; -7 where some of it is registered; -1 for no memory of this process.
        """
        return self.batch_register_memory([buffer_addr], [capacity], location)

    def unregister_memory(self, buffer_addr: int) -> int:
        """0 when nobody uses it any more; -3 where nothing registered begins there."""
        return self.batch_unregister_memory([buffer_addr])

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """All of them, or none: the first code that is not 0."""
        if len(buffer_addresses) != len(capacities):
            logger.warning(
                "%d addresses and %d capacities: there must be as many",
                len(buffer_addresses),
                len(capacities),
            )
            return FAILED
        done: list[int] = []
        try:
            with self._memory_lock:
                engine = self._running()
                for address, size in zip(buffer_addresses, capacities, strict=True):
                    self._register(engine, address, size)
                    done.append(address)
                self._publish()
        except InlayError as error:
            logger.warning("register_memory: %s", error)
            self.batch_unregister_memory(done)
            return OVERLAPPED if isinstance(error, SegmentOverlapError) else FAILED
        return OK

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """All of them that there are; -3 where one is not."""
        code = OK
        with self._memory_lock:
            segments: list[Segment] = []
            for address in buffer_addresses:
                try:
                    segments.append(self._held.remove(address)[1])
                except ArgumentError as error:
                    logger.warning("unregister_memory: %s", error)
                    code = NOT_REGISTERED
            if segments:
                self._publish()
        for segment in segments:
            try:
                segment.deregister()
            except InlayError as error:
                logger.warning("unregister_memory: %s", error)
                code = FAILED
        return code

    def allocate_managed_buffer(self, length: int) -> int:
        """The address of registered memory that peers on this host map; 0 where there is none."""
        try:
            with self._memory_lock:
                number = next(self._numbers)
                segment = self._running().allocate(
                    length, name=segment_name(number), remote=Access.WRITE
                )
                address = int(np.frombuffer(memoryview(segment), np.uint8).ctypes.data)
                self._held.add(address, length, (number, segment))
                self._publish()
        except InlayError as error:
            logger.warning("allocate_managed_buffer: %s", error)
            return 0
        return address

    def free_managed_buffer(self, address: int, length: int) -> int:
        """Give `allocate_managed_buffer`'s memory back; 0 or a negative code."""
        return self.unregister_memory(address)

    def write_bytes_to_buffer(self, dest_address: int, data: bytes | str, length: int) -> int:
        """Copy bytes to memory of this process; 0, or -1 where there are not so many."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        if dest_address <= 0 or not 0 <= length <= len(content):
            return FAILED
        ctypes.memmove(dest_address, content, length)
        return OK

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Bytes of memory of this process."""
        return ctypes.string_at(source_address, length)

    def _running(self) -> Engine:
        if self._engine is None:
            raise EngineClosedError("the engine is not initialized: call initialize() first")
        return self._engine

    def _local(self) -> Places:
        """What is registered now."""
        places = self._places
        if places is None:
            with self._memory_lock:
                places = self._places = self._held.arrays()
        return places

    def _register(self, engine: Engine, address: int, size: int) -> None:
        number = next(self._numbers)
        self._held.add(address, size, None)  # first: it finds what overlaps
        self._held.remove(address)
        segment = engine.register((address, size), name=segment_name(number), remote=Access.WRITE)
        self._held.add(address, size, (number, segment))

    def _publish(self) -> None:
        """Under the lock."""
        self._places = None
        if self._table is not None:
            self._table.publish(self._held)
