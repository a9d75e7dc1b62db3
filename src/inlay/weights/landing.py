"""Where pulled pieces land, and memory of this process as such a place.

Memory takes pieces where they stay. Files (`directory_landing`) and parts of tensors
(`parts_landing`) take them through a ring of buffers of bounded size. Legend: N pieces.
"""

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError
from inlay.transfer import Segment, TransferEngine
from inlay.weights.manifest import Entry, Manifest
from inlay.weights.offer import Stretch, deregister, segment_name

RING_BYTES = 64 << 20

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class Landing(ABC):
    """What becomes of pieces. Called by the loop of one pull.

    Attributes:
        segment: where pieces land, registered.
        in_memory: what others may read of it is memory, no files.
    """

    segment: Segment
    in_memory = False

    @cached_property
    def memory(self) -> Bytes:
        """The segment's bytes."""
        return np.frombuffer(memoryview(self.segment), np.uint8)

    @abstractmethod
    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """Make room; returns which pieces are wanted.

        Raises:
            WeightsMismatchError: what is wanted is not what is published.
        """

    @abstractmethod
    def place(self, pieces_N: Numbers) -> Numbers:
        """Where in the segment pieces are to land: of the first ones, as far as there is room
        before others have been taken.
        """

    @abstractmethod
    def take(self, pieces_N: Numbers) -> None:
        """Pieces are there, and are what they should be."""

    @abstractmethod
    def drop(self, pieces_N: Numbers) -> None:
        """Pieces did not come; their places are free again."""

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """What others may read of it, once pieces are taken; nothing: it keeps no whole pieces."""
        return [], []

    def content(self, entry: Entry) -> Bytes | None:
        """The bytes of an entry as they were published, to be read; None: they are not kept so."""
        return None

    def read(self, entry: Entry, start: int, room: Bytes) -> bool:
        """Fill `room` with bytes of an entry as they were published, from `start` on.

        False: they are not kept so, or not there any more.
        """
        return False

    @abstractmethod
    def finish(self) -> None:
        """All that is wanted has been taken."""

    @abstractmethod
    def close(self) -> None:
        """Give the room back, unless others hold it."""


class MemoryLanding(Landing):
    """All tensors and files in memory of this process, which others can read.

    Args:
        room: memory to land in, of `engine.allocate`, large enough, which stays its owner's; None:
            memory of the landing's own. Versions that land in turn in two of them spare the system
            new pages each time.
    """

    in_memory = True

    def __init__(self, room: Segment | None = None) -> None:
        self._room = room

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`. Cost: 0.2 s per GiB without room."""
        self._manifest = manifest
        if self._room is None:
            name = segment_name(manifest.name, manifest.version, "data0")
            self.segment = engine.allocate(max(1, manifest.size_bytes), name=name)
        elif self._room.size < manifest.size_bytes:
            raise WeightsMismatchError(
                f"{manifest.name} {manifest.version} has {manifest.size_bytes} bytes, and there is "
                f"room for {self._room.size}"
            )
        else:
            self.segment = self._room
        return np.ones(manifest.num_pieces, np.bool_)

    def place(self, pieces_N: Numbers) -> Numbers:
        """As `Landing`: where they stay."""
        return self._manifest.starts_P[pieces_N]

    def take(self, pieces_N: Numbers) -> None:
        """As `Landing`: they are where they stay."""

    def drop(self, pieces_N: Numbers) -> None:
        """As `Landing`."""

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """As `Landing`: all of it."""
        return [self.segment], [Stretch(0, self._manifest.size_bytes, 0, 0)]

    def finish(self) -> None:
        """As `Landing`."""

    def close(self) -> None:
        """As `Landing`."""
        if self._room is None:
            deregister([self.segment])

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry, to be read."""
        return self.memory[entry.start : entry.start + entry.size_bytes]

    def read(self, entry: Entry, start: int, room: Bytes) -> bool:
        """As `Landing`."""
        room[:] = self.content(entry)[start : start + len(room)]
        return True


class Ring:
    """Buffers of one piece each, between the network and where pieces go."""

    def __init__(self, engine: TransferEngine, manifest: Manifest) -> None:
        self._piece_bytes = manifest.piece_bytes
        slots = max(2, RING_BYTES // manifest.piece_bytes)
        self.segment = engine.allocate(slots * manifest.piece_bytes)
        self._free = list(range(slots))
        self._of: dict[int, int] = {}

    def place(self, pieces_N: Numbers) -> Numbers:
        """As `Landing.place`."""
        placed = []
        for piece in pieces_N[: len(self._free)].tolist():
            self._of[piece] = self._free.pop()
            placed.append(self.start(piece))
        return np.array(placed, np.int64)

    def start(self, piece: int) -> int:
        """Where its buffer begins."""
        return self._of[piece] * self._piece_bytes

    def drop(self, piece: int) -> None:
        """Its buffer is free."""
        self._free.append(self._of.pop(piece))


class RingLanding(Landing):
    """Takes pieces out of a ring."""

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`."""
        self._manifest = manifest
        self._ring = Ring(engine, manifest)
        self.segment = self._ring.segment
        return self.wanted(manifest)

    @abstractmethod
    def wanted(self, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """Which pieces, and room for what becomes of them."""

    def place(self, pieces_N: Numbers) -> Numbers:
        """As `Landing`."""
        return self._ring.place(pieces_N)

    def take(self, pieces_N: Numbers) -> None:
        """As `Landing`."""
        manifest = self._manifest
        numbers_N = np.searchsorted(manifest.first_pieces, pieces_N, side="right") - 1
        for piece, number in zip(pieces_N.tolist(), numbers_N.tolist(), strict=True):
            start = self._ring.start(piece)
            content = self.memory[start : start + int(manifest.sizes_P[piece])]
            first = piece - int(manifest.first_pieces[number])
            self.put(manifest.entries[number], first * manifest.piece_bytes, content)
            self._ring.drop(piece)

    @abstractmethod
    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """Bytes of an entry, from `start` on."""

    def drop(self, pieces_N: Numbers) -> None:
        """As `Landing`."""
        for piece in pieces_N.tolist():
            self._ring.drop(piece)

    def close(self) -> None:
        """As `Landing`."""
        deregister([self.segment])
