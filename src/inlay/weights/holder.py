"""A holder as one that pulls sees it: where its pieces lie, which it has, how fast they come."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError
from inlay.transfer import Op, Peer, Ranges, RemoteSegment, Segment, TransferEngine
from inlay.weights.choice import ASKED, HERE
from inlay.weights.manifest import Manifest, Place
from inlay.weights.offer import Layout, segment_name

_NEWEST = 0.3  # weight of the last transfer in what is expected of the next


@dataclass(frozen=True)
class Places:
    """Where each piece lies at a holder.

    Attributes:
        segment_P: number of the data segment; -1: the holder never has it.
        offset_P: in that segment.
        names: of the data segments.
    """

    segment_P: npt.NDArray[np.int64]
    offset_P: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @staticmethod
    def of(manifest: Manifest, layout: Layout) -> "Places":
        """Of pieces as the holder's own manifest counts them.

        Raises:
            WeightsMismatchError: a piece lies nowhere.
        """
        stretches = layout.stretches
        starts_P = manifest.starts_P
        if not len(starts_P):
            return Places(np.zeros(0, np.int64), np.zeros(0, np.int64), ())
        firsts = np.array([stretch.start for stretch in stretches], np.int64)
        ends = np.array([stretch.start + stretch.size for stretch in stretches], np.int64)
        if not len(firsts):
            raise WeightsMismatchError(f"a holder of {manifest.name} says nowhere it lies")
        at_P = np.clip(np.searchsorted(firsts, starts_P, side="right") - 1, 0, None)
        if ((starts_P < firsts[at_P]) | (starts_P + manifest.sizes_P > ends[at_P])).any():
            raise WeightsMismatchError(f"a holder of {manifest.name} lacks part of what it says")
        segments = np.array([stretch.segment for stretch in stretches], np.int64)
        offsets = np.array([stretch.offset for stretch in stretches], np.int64)
        offset_P = offsets[at_P] + starts_P - firsts[at_P]
        return Places(segments[at_P], offset_P, layout.segments)

    def in_union(
        self, own: Manifest, union: Manifest, places: Sequence[Place], number: int
    ) -> "Places":
        """The same, counted as the union counts, of which this is publisher `number`."""
        segment_P = np.full(union.num_pieces, -1, np.int64)
        offset_P = np.zeros(union.num_pieces, np.int64)
        for entry, (whose, index) in enumerate(places):
            if whose == number:
                to, source = union.pieces_of(entry), own.pieces_of(index)
                segment_P[to.start : to.stop] = self.segment_P[source.start : source.stop]
                offset_P[to.start : to.stop] = self.offset_P[source.start : source.stop]
        return Places(segment_P, offset_P, self.names)


class Holder:
    """See the module.

    Args:
        places: of its pieces.
        publisher: it has them all from the beginning.
        near: its bytes are in memory of this host.

    Attributes:
        has_P: pieces that it has, as it said last.
        asked_P: pieces that it has asked others for.
        damaged: pieces of it that were not what they should be.
    """

    def __init__(
        self,
        engine: TransferEngine,
        peer: Peer,
        manifest: Manifest,
        places: Places,
        *,
        publisher: bool,
        near: bool,
    ) -> None:
        self.peer = peer
        self.address = peer.address
        self.publisher = publisher
        self.near = near
        self.damaged = 0
        self._places = places
        self._data: dict[int, RemoteSegment] = {}
        self.asked_P = np.zeros(manifest.num_pieces, np.bool_)
        self.has_P = places.segment_P >= 0 if publisher else np.zeros_like(self.asked_P)
        self._rate = 0.0
        self._engine = engine
        self._scratch: Segment | None = None
        if not publisher:
            self._have = peer[segment_name(manifest.name, manifest.version, "have")]
            self._scratch = engine.allocate(self._have.size)

    async def look(self) -> bool:
        """Read what it has now; whether anything changed.

        Raises:
            TransferError: it cannot be read.
        """
        assert self._scratch is not None
        size = self._have.size
        ranges = Ranges(Op.READ, self._scratch, self._have, _ZERO, _ZERO, size)
        await self._engine.submit([ranges], deadline_s=5.0)
        have_P = np.frombuffer(memoryview(self._scratch), np.uint8)[: len(self.has_P)]
        has_P, asked_P = have_P == HERE, have_P == ASKED
        changed = bool((has_P != self.has_P).any() or (asked_P != self.asked_P).any())
        self.has_P, self.asked_P = has_P, asked_P
        return changed

    def transfers(
        self,
        pieces_N: npt.NDArray[np.int64],
        sizes_P: npt.NDArray[np.int64],
        local: Segment,
        offsets_N: npt.NDArray[np.int64],
    ) -> list[tuple[npt.NDArray[np.int64], Ranges]]:
        """What reads these pieces into a segment: which of them, by their places in `pieces_N`.

        Raises:
            TransferError: a data segment is not offered any more.
        """
        segments_N = self._places.segment_P[pieces_N]
        moves = []
        for number in np.unique(segments_N).tolist():
            which = np.flatnonzero(segments_N == number)
            some = pieces_N[which]
            ranges = Ranges(
                Op.READ,
                local,
                self._segment(number),
                offsets_N[which],
                self._places.offset_P[some],
                sizes_P[some],
            )
            moves.append((which, ranges))
        return moves

    def took(self, num_bytes: int, began_s: float) -> None:
        """A transfer has ended that began then."""
        rate = num_bytes / max(1e-6, time.monotonic() - began_s)
        self._rate = rate if not self._rate else self._rate + _NEWEST * (rate - self._rate)

    def num_pieces(self, piece_bytes: int, target_s: float, limit: int) -> int:
        """How many to ask for at once, so that they take about `target_s`."""
        return max(1, min(limit, int(self._rate * target_s / piece_bytes)))

    def close(self) -> None:
        """Let go of the memory that its answers land in."""
        if self._scratch is not None:
            self._scratch.deregister(cancel=True)
            self._scratch = None

    def _segment(self, number: int) -> RemoteSegment:
        segment = self._data.get(number)
        if segment is None:
            segment = self._data[number] = self.peer[self._places.names[number]]
        return segment


_ZERO = np.zeros(1, np.int64)
