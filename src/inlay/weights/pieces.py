"""The pieces of one pull: which are wanted, under way and here, and which are what they should be.

Knows no peers. Legend: P pieces, N some of them.
"""

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inlay.transfer import crc32c, crc32c_of_parts
from inlay.weights.choice import ASKED, HERE, NOTHING
from inlay.weights.landing import Bytes, Landing, Numbers
from inlay.weights.manifest import Entry, Manifest, ranges


class Source(Protocol):
    """A version that is here already: `Held` is one."""

    manifest: Manifest

    def read(self, entry: Entry, start: int, room: Bytes) -> bool:
        """Fill `room` with bytes of an entry as they were published, from `start` on; False: they
        cannot be had.
        """
        ...


class Pieces:
    """See the module.

    Args:
        missing_P: which are wanted; kept.

    Attributes:
        missing_P: that are not here yet.
        have_P: what others read of each; its owner may move it, with what it has.
        left: how many are missing.
        total_bytes: of all that were wanted.
        progressed_s: when the last one came.
    """

    def __init__(
        self, manifest: Manifest, landing: Landing, missing_P: npt.NDArray[np.bool_]
    ) -> None:
        self._manifest = manifest
        self._landing = landing
        self.missing_P = missing_P
        self.have_P: npt.NDArray[np.uint8] = np.zeros(manifest.num_pieces, np.uint8)
        self.left = int(missing_P.sum())
        self.total_bytes = self.missing_bytes
        self.progressed_s = time.monotonic()
        self._under_way_P = np.zeros_like(missing_P)

    @property
    def missing_bytes(self) -> int:
        """Of what is not here yet."""
        return int(self._manifest.sizes_P[self.missing_P].sum())

    @property
    def wanted_P(self) -> npt.NDArray[np.bool_]:
        """What nobody has been asked for."""
        wanted_P: npt.NDArray[np.bool_] = self.missing_P & ~self._under_way_P
        return wanted_P

    def some_missing(self) -> str:
        """For people: entries of which pieces are missing, three at most."""
        pieces = np.flatnonzero(self.missing_P)
        numbers = np.unique(np.searchsorted(self._manifest.first_pieces, pieces, side="right") - 1)
        return ", ".join(ranges(self._manifest.entries[number]) for number in numbers[:3].tolist())

    @property
    def any_under_way(self) -> bool:
        """Whether somebody has been asked for something."""
        return bool(self._under_way_P.any())

    def begin(self, pieces_N: Numbers) -> tuple[Numbers, Numbers]:
        """Those of them for which there is room are under way; and where they land."""
        offsets_N = self._landing.place(pieces_N)
        pieces_N = pieces_N[: len(offsets_N)]
        self._under_way_P[pieces_N] = True
        self.have_P[pieces_N] = ASKED
        return pieces_N, offsets_N

    def end(self, pieces_N: Numbers, good_N: npt.NDArray[np.bool_]) -> None:
        """They have come; those that are not good are wanted again."""
        came = pieces_N[good_N]
        if len(came):
            self._landing.take(came)
            self.missing_P[came] = False
            self.have_P[came] = HERE
            self.left -= len(came)
            self.progressed_s = time.monotonic()
        self.give_up(pieces_N[~good_N])
        self._under_way_P[came] = False

    def give_up(self, pieces_N: Numbers) -> None:
        """They have not come."""
        self._landing.drop(pieces_N)
        self.have_P[pieces_N] = NOTHING
        self._under_way_P[pieces_N] = False

    def check(
        self, pieces_N: Numbers, offsets_N: Numbers, checksum: int | None
    ) -> npt.NDArray[np.bool_]:
        """Which of the pieces that landed there are what they should be.

        Args:
            checksum: CRC32C of all of them, one behind the other, as they landed; None: it is not
                known. Where it is right, no byte is read again.
        """
        manifest = self._manifest
        expected = crc32c_of_parts(manifest.checksums_P[pieces_N], manifest.sizes_P[pieces_N])
        if checksum == expected:
            return np.ones(len(pieces_N), np.bool_)
        ends_N = offsets_N + manifest.sizes_P[pieces_N]
        found = [
            crc32c(self._landing.memory[start:end])
            for start, end in zip(offsets_N.tolist(), ends_N.tolist(), strict=True)
        ]
        good_N: npt.NDArray[np.bool_] = np.array(found) == manifest.checksums_P[pieces_N]
        return good_N

    def keep(self, previous: Source) -> int:
        """Copy entries that another version has, too; returns their bytes."""
        known = {
            (entry.digest, entry.dtype, entry.shape): entry for entry in previous.manifest.entries
        }
        kept = 0
        for number, entry in enumerate(self._manifest.entries):
            same = known.get((entry.digest, entry.dtype, entry.shape))
            of_entry = self._manifest.pieces_of(number)
            if same is None or not self.missing_P[of_entry.start : of_entry.stop].any():
                continue
            for piece in of_entry:
                if self.missing_P[piece]:
                    kept += self._copy(entry, piece, previous, same)
        return kept

    def _copy(self, entry: Entry, piece: int, previous: Source, same: Entry) -> int:
        """One piece of an entry that is here: how many of its bytes are right."""
        size = int(self._manifest.sizes_P[piece])
        pieces_N, offsets_N = self.begin(np.array([piece]))
        assert len(offsets_N) == 1, "nothing else is under way yet"
        start, place = int(self._manifest.starts_P[piece]) - entry.start, int(offsets_N[0])
        if previous.read(same, start, self._landing.memory[place : place + size]):
            good_N = self.check(pieces_N, offsets_N, None)
        else:
            good_N = np.zeros(1, np.bool_)
        self.end(pieces_N, good_N)
        return size if good_N[0] else 0
