"""Engines elsewhere: found by address or name, and what they have registered."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from inlay.connect.mooncake.buffer_table import BufferReader, segment_name
from inlay.connect.mooncake.host_memory import Places
from inlay.connect.mooncake.names import plain_name
from inlay.core.errors import ArgumentError
from inlay.transfer import Peer, RemoteSegment, TransferEngine

CONNECT_S = 5.0
Found = TypeVar("Found")


class Known:
    """A peer, its table of buffers as it was read last, and its segments by number."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.places: Places | None = None
        self._segments: dict[int, RemoteSegment] = {}

    def segment(self, value: tuple[int, Any]) -> RemoteSegment:
        """The segment behind a row of the table. Raises what asking the peer raises."""
        number = value[0]
        found = self._segments.get(number)
        if found is None:
            found = self._segments[number] = self.peer[segment_name(number)]
        return found


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
        self, target: str, look: Callable[[Places], Found | None]
    ) -> tuple[Known, Places, Found]:
        """The peer, its buffers, and what `look` finds among them.

        Args:
            target: as callers name it.
            look: gives None where there is no such range.

        Raises:
            ArgumentError: it finds nothing, also by the table as it is now.
        """
        known = self.connect(target)
        places = known.places
        if places is not None and (found := look(places)) is not None:
            return known, places, found
        places = self._read(known)
        found = look(places)
        if found is None:
            raise ArgumentError(
                f"a range at {target} is in no memory that it has registered ("
                f"{len(places.values)} buffers)"
            )
        return known, places, found

    def first_address(self, target: str) -> int:
        """The lowest address that it has registered, or 0."""
        places = self._read(self.connect(target))
        return places.starts[0] if places.starts else 0

    def _read(self, known: Known) -> Places:
        with self._lock:
            if self._reader is None:
                self._reader = BufferReader(self._engine)
            known.places = self._reader.read(known.peer)
        return known.places
