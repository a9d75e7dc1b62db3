"""Engines elsewhere: found by address or name, and what they have registered."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.connect.mooncake.buffer_table import BufferReader, segment_name
from inlay.connect.mooncake.host_memory import Places
from inlay.connect.mooncake.names import plain_name
from inlay.core.errors import ArgumentError
from inlay.transfer import Peer, RemoteSegment, TransferEngine

CONNECT_S = 5.0


class Known:
    """A peer, its table of buffers as it was read last, and its segments by number."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.places: Places | None = None
        self.segments: dict[int, RemoteSegment] = {}


class Peers:
    """Peers of one engine, by the names that callers have for them.

    Args:
        by_name: names are those of a directory, and else addresses.
    """

    def __init__(self, engine: TransferEngine, *, by_name: bool) -> None:
        self._engine = engine
        self._by_name = by_name
        self._known: dict[str, Known] = {}
        self._reader: BufferReader | None = None
        self._lock = threading.RLock()

    def connect(self, target: str, *, timeout_s: float = CONNECT_S) -> Known:
        """The peer; connected again if it is lost.

        Raises what `TransferEngine.connect` raises.
        """
        with self._lock:
            known = self._known.get(target)
        if known is not None and known.peer.alive:
            return known
        address = plain_name(target) if self._by_name else target
        if not self._by_name and ":" not in target:
            raise ArgumentError(f"{target!r} is no HOST:PORT of a peer")
        known = Known(self._engine.connect(address, timeout_s=timeout_s))
        with self._lock:
            self._known[target] = known
        return known

    def forget(self, target: str) -> None:
        """Read its table again at the next use."""
        with self._lock:
            self._known.pop(target, None)

    def find(
        self, target: str, addresses_N: npt.NDArray[np.int64], lengths_N: npt.NDArray[np.int64]
    ) -> tuple[Places, npt.NDArray[np.int64]]:
        """The peer's buffers, and the number among them of the one that holds each range.

        Raises:
            ArgumentError: a range is in none, also by the table as it is now.
        """
        known = self.connect(target)
        if known.places is not None:
            found_N = known.places.find(addresses_N, lengths_N)
            if found_N is not None:
                return known.places, found_N
        places = self._read(known)
        found_N = places.find(addresses_N, lengths_N)
        if found_N is None:
            raise ArgumentError(
                f"a range at {target} is in no memory that it has registered ("
                f"{len(places.values)} buffers)"
            )
        return places, found_N

    def segment(self, target: str, value: tuple[int, Any]) -> RemoteSegment:
        """The segment behind a row of the table. Raises what asking the peer raises."""
        known = self.connect(target)
        number = value[0]
        found = known.segments.get(number)
        if found is None:
            found = known.segments[number] = known.peer[segment_name(number)]
        return found

    def first_address(self, target: str) -> int:
        """The lowest address that it has registered, or 0."""
        places = self._read(self.connect(target))
        return int(places.starts_P[0]) if len(places.starts_P) else 0

    def _read(self, known: Known) -> Places:
        with self._lock:
            if self._reader is None:
                self._reader = BufferReader(self._engine)
            known.places = self._reader.read(known.peer)
        return known.places
