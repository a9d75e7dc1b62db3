"""The tables of a deployment's file: processes that are alike, and who uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inlay.cluster.policies import DEFAULT_POLICY, make_policy
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import ROLES, Role
from inlay.core.tables import Settings
from inlay.core.units import parse_bytes

MAX_COUNT = 256


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """Instances that are alike.

    Attributes:
        role: which phases they are for.
        count: how many there are at the start.
        device: of each, as `engine.device`: one for all, or a list with one for each.
        threads: of each, as `engine.threads`.
        host: address of the machine that they run on; empty: this one.
        engine: settings that differ from those of all instances.
    """

    role: Role = "both"
    count: int = 1
    device: tuple[str, ...] = ("auto",)
    threads: int | None = None
    host: str = ""
    engine: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role is {self.role!r}: it must be one of {', '.join(ROLES)}")
        _check_range("count", self.count, 0, MAX_COUNT)
        if self.threads is not None:
            _check_range("threads", self.threads, 1, 4096)
        if len(self.device) != 1 and len(self.device) < max(1, self.count):
            raise ConfigError(
                f"device has {len(self.device)} entries and count is {self.count}: write one for "
                "each instance, or a single one for all"
            )

    def device_of(self, index: int) -> str:
        """The device of one of them; beyond the list it begins again."""
        return self.device[index % len(self.device)]


@dataclass(frozen=True, kw_only=True)
class DispatcherGroup:
    """The dispatchers, which share one address.

    Attributes:
        port: 0 takes a free one.
        policy: name of what chooses instances.
        options: of the policy.
        roles: `auto` lets instances take another role when the mix of work shifts; `fixed` not.
        instance_wait_s: how long a request may wait while no instance is there.
        stall_s: an instance that says nothing for so long, though a step takes less than a
            twentieth of that, is killed and started again.
        serve: other settings of `inlay serve`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    count: int = 1
    policy: str = DEFAULT_POLICY
    options: Settings = field(default_factory=dict)
    roles: Literal["fixed", "auto"] = "fixed"
    api_key: str | None = None
    instance_wait_s: float = 10.0
    stall_s: float = 30.0
    serve: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host is empty: write an address, for example 127.0.0.1")
        _check_range("port", self.port, 0, 65535)
        _check_range("count", self.count, 1, 64)
        if not self.stall_s >= 5:
            raise ConfigError(
                f"stall is {self.stall_s:g} s: it must be at least 5 s, since instances report "
                "once a second"
            )
        make_policy(self.policy, self.options)
        if self.roles not in ("fixed", "auto"):
            raise ConfigError(f"roles is {self.roles!r}: it must be fixed or auto")


@dataclass(frozen=True, kw_only=True)
class StoreNode:
    """A process that contributes memory, and a disk, to the store.

    Attributes:
        memory: a size such as `"4GiB"`.
        disk: a directory and a size, such as `"/var/cache/inlay:20GiB"`.
        host: address of the machine that it runs on; empty: this one.
    """

    memory: str = "1GiB"
    disk: str | None = None
    host: str = ""

    def __post_init__(self) -> None:
        if parse_bytes(self.memory) < 1 << 20:
            raise ConfigError(f"memory is {self.memory!r}: it must be at least 1MiB")
        if self.disk is not None:
            path, colon, size = self.disk.rpartition(":")
            if not colon or not path or parse_bytes(size) < 1:
                raise ConfigError(
                    f"disk is {self.disk!r}: write a directory and a size, for example "
                    "/var/cache/inlay:20GiB"
                )


@dataclass(frozen=True, kw_only=True)
class StoreGroup:
    """The store of KV blocks that all instances share.

    Attributes:
        host, port: of the first master, and each further one is a port higher; 0 takes free ones.
        masters: one of them is the master, the others are standbys.
        etcd: where masters are elected, as `inlay store master --etcd` takes it.
        nodes: by name.
    """

    host: str = "127.0.0.1"
    port: int = 0
    masters: int = 1
    etcd: str | None = None
    nodes: Mapping[str, StoreNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65535)
        _check_range("masters", self.masters, 1, 8)
        if self.masters > 1 and self.etcd is None:
            raise ConfigError(
                f"masters is {self.masters}, and nothing says where they are elected: add "
                'etcd = "etcd://HOST:2379/NAME", or let masters be 1'
            )


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """How requests of one tenant stand to those of others.

    Attributes:
        weight: its share of the instances where there is not enough for all.
        priority: added to that of each of its requests, of which lower ones go first.
    """

    weight: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ConfigError(f"weight is {self.weight}: it must be above 0")
        _check_range("priority", self.priority, -1000, 1000)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}: it must be in {low}..{high}")
