"""What a client, and the disk of a node, tell of themselves."""

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


@dataclass(frozen=True, kw_only=True)
class ClientFigures:
    """What a store's client has done since it was made. A call counts when it ends without error.

    Attributes:
        known, asked: locations that reads wanted: the client had them, or asked the master.
        absent: keys that reads wanted, and that had no object.
        read: values, views among them, and ranges of them.
        read_bytes: of what was asked for of them.
        again: tries of reads after which another replica, or the master again, was asked.
        damaged: reads of which no replica had the bytes that were put.
        stored: values.
        kept: puts of keys that had an object, which stayed.
    """

    known: int
    asked: int
    absent: int
    read: int
    read_bytes: int
    again: int
    damaged: int
    stored: int
    stored_bytes: int
    kept: int
