"""How an object is to be kept, and what is told of its replicas."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from inlay.connect.mooncake.names import plain_name
from inlay.core.errors import ArgumentError
from inlay.store import PutOptions

MAX_REPLICAS = 8


class SoftPinAction(enum.Enum):
    """Whether an object is among those that are evicted last."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(enum.Enum):
    """What a caller says an object is; kept by nobody."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(enum.Enum):
    """How far a replica is. Those that Inlay tells of are complete."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class ReplicateConfig:
    """How an object is to be kept. Attributes may be set at any time.

    Attributes:
        replica_num: copies on different nodes; as many as there are nodes for, 8 at most.
        soft_pin_action, soft_pin_ttl_ms: evicted last. The time is checked, and not kept: an
            object stays soft-pinned.
        with_hard_pin: never evicted.
        preferred_segment, preferred_segments: `get_hostname()` of the store that gets the first
            replica; the single one counts, else the first of the list.
        group_ids: for each key of a call the group with which it is evicted.
        nof_replica_num, dfs_replica_num, preferred_nof_segments, prefer_alloc_in_same_node,
            data_type: taken, without effect.
    """

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.with_hard_pin = False
        self.preferred_segment = ""
        self.preferred_segments: Sequence[str] = []
        self.preferred_nof_segments: Sequence[str] = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: Sequence[str] | None = None
        self._soft_pin_ttl_ms: int | None = None

    @property
    def soft_pin_ttl_ms(self) -> int | None:
        """Milliseconds, or None. Raises TypeError for another type."""
        return self._soft_pin_ttl_ms

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: int | None) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"soft_pin_ttl_ms is an int or None, got {value!r}")
        self._soft_pin_ttl_ms = value

    @property
    def with_soft_pin(self) -> bool:
        """The name of `soft_pin_action` in older versions."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def options(self, group: str | None = None) -> PutOptions:
        """As the store takes them.

        Raises:
            ArgumentError: no replica, or a soft pin's time without the pin.
        """
        if self.replica_num < 1:
            raise ArgumentError(f"replica_num must be at least 1, got {self.replica_num}")
        if self._soft_pin_ttl_ms is not None and not self.with_soft_pin:
            raise ArgumentError("soft_pin_ttl_ms needs soft_pin_action = SoftPinAction.ENABLE")
        return _options(
            min(self.replica_num, MAX_REPLICAS),
            self.with_soft_pin,
            self.with_hard_pin,
            plain_name(self.preferred_segment or next(iter(self.preferred_segments), "")) or None,
            group,
        )

    def __str__(self) -> str:
        told = ", ".join(f"{name.lstrip('_')}: {value}" for name, value in vars(self).items())
        return f"ReplicateConfig: {{ {told} }}"


@lru_cache(maxsize=1024)
def _options(
    replicas: int, soft_pin: bool, hard_pin: bool, preferred: str | None, group: str | None
) -> PutOptions:
    """Made once: the compiled client takes fields that are worked out at first use."""
    return PutOptions(
        replicas=replicas,
        soft_pin=soft_pin,
        hard_pin=hard_pin,
        preferred_node=preferred,
        group=group,
    )


DEFAULT = ReplicateConfig()


@dataclass(frozen=True)
class Descriptor:
    """Where the bytes of a replica are.

    Attributes:
        size: of the value, in bytes.
        buffer_address: 0: places are the master's, and mean nothing outside.
        transport_endpoint: `get_hostname()` of the store that holds it.
    """

    size: int
    buffer_address: int
    transport_endpoint: str


@dataclass(frozen=True)
class MemoryDescriptor:
    """Of a replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class DiskDescriptor:
    """Of a replica on a disk; `file_path` is the name of its node."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class ReplicaDescriptor:
    """A replica: on which node, in which tier ("memory" or "disk")."""

    node: str
    tier: str
    size: int

    @property
    def status(self) -> ReplicaStatus:
        """Complete: others are not told of."""
        return ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Whether it is in memory."""
        return self.tier == "memory"

    def is_disk_replica(self) -> bool:
        """Whether it is in a file system that all nodes share: never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether it is on its node's disk."""
        return self.tier == "disk"

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where. Raises RuntimeError for one that is not in memory."""
        if not self.is_memory_replica():
            raise RuntimeError(f"the replica on {self.node} is on a disk, and not in memory")
        return MemoryDescriptor(Descriptor(self.size, 0, self.node))

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Where. Raises RuntimeError for one that is in memory."""
        if self.is_memory_replica():
            raise RuntimeError(f"the replica on {self.node} is in memory, and not on a disk")
        return DiskDescriptor(self.node, self.size)


class TaskType(enum.Enum):
    """What a task does. There are none here."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(enum.Enum):
    """How far a task is."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


@dataclass(frozen=True)
class QueryTaskResponse:
    """What is told of a task."""

    id: tuple[int, int]
    type: TaskType
    status: TaskStatus
    created_at_ms_epoch: int
    last_updated_at_ms_epoch: int
    assigned_client: tuple[int, int]
    message: str
