"""What a store was asked and what it acknowledged, and what a reader may find by that.

A value follows from its key and version, so that whoever reads it can tell a wrong byte. A version
of 0 is that of an object that never changes.
"""

import hashlib
import random
import struct
import threading
from dataclasses import dataclass, field

HEAD = struct.Struct("<QQ")
SIZES = (0, 100, 4096, 40_000, 70_000, 300_000)


def value_of(key: str, version: int) -> bytes:
    """The only right bytes."""
    draw = random.Random(f"{key}/{version}")
    size = draw.choice(SIZES)
    size = draw.randrange(size // 2, size + 1)
    if version == 0 and size == 0:
        return b""
    body = hashlib.shake_128(f"{key}/{version}".encode()).digest(size)
    return HEAD.pack(version, len(body)) + body


def problem_of(key: str, value: bytes, low: int, high: int) -> str | None:
    """What is wrong with a value whose version has to be in low..high."""
    version = HEAD.unpack_from(value)[0] if len(value) >= HEAD.size else 0
    if version > high or value != value_of(key, version):
        return f"{key}: wrong bytes, {len(value)} of version {version}"
    if version < low:
        return f"{key}: version {version}, and {low} was acknowledged before it was read"
    return None


@dataclass
class _Entry:
    asked: int = -1  # the latest version
    stored: int = -1  # the latest acknowledged
    on_disk: int = -1  # the latest that a disk has
    lost: bool = False  # with the memory, or the disk, that it was on, perhaps
    removing: bool = False
    removed: bool = False


@dataclass(frozen=True)
class Bounds:
    """What may be found: a version of low..high; nothing, if `absent`; nothing else, if `gone`."""

    low: int
    high: int
    absent: bool
    gone: bool


@dataclass
class Ledger:
    """All keys of one store. Any thread may note and ask.

    Attributes:
        acknowledged: puts, upserts and removals.
    """

    acknowledged: int = 0
    unknown: int = 0
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, line: str) -> None:
        """Take a line of a writer: `? put KEY@VERSION...`, then `! ...`, or `x ...` with an error;
        the same with `put-on-disk KEY@VERSION...` and `rm KEY...`."""
        sign, verb, *items = line.split()
        with self._lock:
            self.acknowledged += sign == "!"
            self.unknown += sign == "x"
            for item in items:
                key, _, version = item.partition("@")
                entry = self._entries.setdefault(key, _Entry())
                if verb == "rm":
                    entry.removing = True
                    entry.removed |= sign == "!"
                elif sign == "?":
                    entry.asked = int(version)
                elif sign == "!":
                    entry.stored = max(entry.stored, int(version))
                    entry.lost = False
                    if verb == "put-on-disk":
                        entry.on_disk = entry.stored

    def bounds(self, key: str) -> Bounds | None:
        """What a read that begins now may find; None: it is forgotten."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            return Bounds(
                max(entry.stored, 0),
                entry.asked,
                entry.stored < 0 or entry.removing or entry.lost,
                entry.removed,
            )

    def keys(self) -> list[str]:
        """All of them."""
        with self._lock:
            return list(self._entries)

    def stored_keys(self) -> list[str]:
        """Those that have to be found."""
        with self._lock:
            return [
                key
                for key, entry in self._entries.items()
                if entry.stored >= 0 and not entry.removing and not entry.lost
            ]

    def lose_memory(self) -> None:
        """What no disk has may be gone; nothing older may be found for it."""
        with self._lock:
            for entry in self._entries.values():
                entry.lost |= entry.on_disk < entry.asked

    def lose(self, keys: list[str]) -> None:
        """These may be gone."""
        with self._lock:
            for key in keys:
                self._entries[key].lost = True

    def forget(self, keys: list[str]) -> None:
        """Ask no more about these."""
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)
