"""What a caller may say of an object and of what a process contributes."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from inlay.core.errors import ArgumentError, ConfigError
from inlay.core.units import format_bytes, parse_bytes

IfExists = Literal["keep", "replace", "error"]
Durability = Literal["memory", "disk"]
_IF_EXISTS: dict[str, int] = {"keep": 0, "replace": 1, "error": 2}
MIN_DISK_BYTES = 1 << 20
_SOFT_PIN = 2
_HARD_PIN = 4


@dataclass(frozen=True, kw_only=True)
class PutOptions:
    """How an object is stored. Make it once and use it for many puts.

    Attributes:
        replicas: copies on different nodes, 1 to 8.
        all_replicas: fewer nodes than replicas are an error; else there are as many as possible.
        soft_pin: evicted only when nothing else is left.
        hard_pin: never evicted; it has to be removed.
        preferred_node: name of the node that gets the first replica if it has room.
        require_preferred: an error where that node is not there or is full.
        group: objects of a group are evicted and removed together (`Store.remove_group`).
        if_exists: what becomes of an object that is there. "keep": it stays, and `put` says so;
            what is only ever put like this never changes, so readers need no master for it.
            "replace": the new one takes its place. "error": `ObjectExists`.
        durability: when a put returns. "memory": its nodes have it in their memory, which survives
            the end of any process that is not a node's. "disk": the disk of one of them has it,
            too, written and synced, which survives the machine; `StoreFull` where none can.
        parent: key of an object without which this one is worth nothing, such as that of the block
            before it: the policy `cost` does not evict it as long as this one is there.
        recompute_us: to make the value again where its parent is there, 0 for unknown: the policy
            `cost` keeps what costs twice as much per byte for twice as long.
    """

    replicas: int = 1
    all_replicas: bool = False
    soft_pin: bool = False
    hard_pin: bool = False
    preferred_node: str | None = None
    require_preferred: bool = False
    group: str | None = None
    if_exists: IfExists = "keep"
    durability: Durability = "memory"
    parent: str | bytes | None = None
    recompute_us: int = 0

    def __post_init__(self) -> None:
        if self.if_exists not in _IF_EXISTS:
            raise ArgumentError(
                f"if_exists must be 'keep', 'replace' or 'error', got {self.if_exists!r}"
            )
        if self.durability not in ("memory", "disk"):
            raise ArgumentError(f"durability must be 'memory' or 'disk', got {self.durability!r}")
        if not 1 <= self.replicas <= 8:
            raise ArgumentError(f"replicas must be in 1..8, got {self.replicas}")
        if not 0 <= self.recompute_us < 1 << 32:
            raise ArgumentError(f"recompute_us must be in 0..2^32-1, got {self.recompute_us}")

    @cached_property
    def replacing(self) -> "PutOptions":
        """The same with `if_exists="replace"`."""
        return replace(self, if_exists="replace")

    @cached_property
    def fields(self) -> "PutFields":
        """As the compiled client takes it."""
        return (
            self.replicas,
            self.all_replicas,
            self.preferred_node or "",
            self.require_preferred,
            _IF_EXISTS[self.if_exists],
            _SOFT_PIN * self.soft_pin | _HARD_PIN * self.hard_pin,
            self.group or "",
            self.durability == "disk",
            self.recompute_us,
        )


PutFields = tuple[int, bool, str, bool, int, int, str, bool, int]


@dataclass(frozen=True)
class PutResult:
    """What became of a put.

    Attributes:
        generation: of the object that is there now; later ones are greater.
        stored: False: there was one, which `if_exists="keep"` kept.
    """

    generation: int
    stored: bool


@dataclass(frozen=True)
class ObjectStat:
    """What the master knows of an object.

    Attributes:
        generation: grows with each replacement.
        size_bytes: of the value.
        replicas: (node, tier) of each, tier "memory" or "disk".
        wanted_replicas: as it was put.
        soft_pin, hard_pin: as it was put.
        mutable: it was put with another `if_exists` than "keep".
        lease_left_s: so long it will not be evicted; 0: no lease.
        hits: how often its place was asked for, up to 15.
    """

    generation: int
    size_bytes: int
    replicas: tuple[tuple[str, str], ...]
    wanted_replicas: int
    soft_pin: bool
    hard_pin: bool
    mutable: bool
    lease_left_s: float
    hits: int

    @property
    def tier(self) -> str:
        """Where it is read from: "memory", or "disk" where it has to come from there first."""
        return "memory" if any(tier == "memory" for _, tier in self.replicas) else "disk"


@dataclass(frozen=True)
class Disk:
    """Room on a disk for what memory has no room for. It is found again by who names it again.

    Attributes:
        path: a directory, made where it is not there; for one process at a time.
        size: bytes, or "20GiB"; taken as they are needed, and not given back. May grow later.
    """

    path: str | os.PathLike[str]
    size: int | str

    @classmethod
    def parse(cls, text: str) -> "Disk":
        """Read "PATH:SIZE". Raises `ConfigError`."""
        path, colon, size = text.rpartition(":")
        if not colon or not path:
            raise ConfigError(f"a disk is PATH:SIZE, such as /var/cache/inlay:20GiB, got {text!r}")
        disk = cls(path, size)
        if disk.size_bytes < MIN_DISK_BYTES:
            raise ConfigError(f"a disk has at least {format_bytes(MIN_DISK_BYTES)}, got {text!r}")
        return disk

    @property
    def size_bytes(self) -> int:
        """As a number."""
        return parse_bytes(self.size)


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a process gives to the pool.

    Attributes:
        memory: bytes, or "4GiB"; in /dev/shm, rounded up to 2 MiB.
        disk: behind the memory: what is evicted there, and puts with `durability="disk"`, come to
            lie on it, and are there again for the next process that names it.
        name: of the node; None: drawn. A process that takes the name of one that ended with
            `keep=True`, or was killed, finds its objects again.
        failure_domain: replicas of one object go to different ones; None: the host.
        keep: the memory and what is in it outlive `close` and the end of the process, until the
            machine's.
        tenant: whose objects it holds.
    """

    memory: int | str
    name: str | None = None
    failure_domain: str | None = None
    keep: bool = False
    tenant: str = "default"
    disk: Disk | None = None

    @property
    def memory_bytes(self) -> int:
        """Rounded up."""
        size = parse_bytes(self.memory)
        if size < 1:
            raise ConfigError(f"memory must be more than 0 bytes, got {self.memory!r}")
        return -(-size // (2 << 20)) * (2 << 20)
