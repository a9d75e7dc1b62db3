"""What the disk of a node tells of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Records that were read, or written, since the disk was opened.

    Attributes:
        missing: records that the disk did not have, or did not take.
        seconds: in all calls together.
        calls: by how long they took: up to 2^i microseconds, and, in the last place, longer.
    """

    records: int
    bytes: int
    missing: int
    seconds: float
    calls: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DiskFigures:
    """A node's disk at one moment; no objects and no extents: it failed and is used no more.

    Attributes:
        living_bytes: of its records.
        extents: pieces of which the file is made, free ones among them.
        damaged: records and extents that were found damaged since the disk was opened.
    """

    objects: int
    living_bytes: int
    extents: int
    free_extents: int
    damaged: int
    read: Moved
    written: Moved
