"""Tiers as a scenario's file says them, in the words of a deployment's.

[instances.all.cache]
host = "auto"          # what the machine has
disk = "15TB"
[store]
memory = "8TB"
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from inlay.cache.config import WriteWhen
from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes
from inlay.sim.capacity import DISK_LATENCY_S, HOST_LATENCY_S
from inlay.sim.tier import Tier, TierName
from inlay.store.policy import POLICIES

AUTO = "auto"
STORE_LATENCY_S = 200e-6
"""Assumption: a question to the master, and one to a node over the network."""
_LATENCY_S = {"host": HOST_LATENCY_S, "disk": DISK_LATENCY_S}


@dataclass(frozen=True, kw_only=True)
class CacheTable:
    """What is behind the device of an instance, `[instances.NAME.cache]`.

    Attributes:
        host: memory, such as `"800GB"`; `auto`: what the machine has free.
        disk: room on its disks, such as `"15TB"`, a directory before it as in a deployment counts
            for nothing; `auto`: what the machine has. It needs `host`.
        write: when a block is copied there and to the store, as in `cache.CacheConfig`.
        eviction: of the host's memory, one of the store's policies.
        host_gbs: rate of the memory in each direction; by default the machine's.
        disk_gbs, disk_write_gbs: rates of the disks; by default the machine's, and the first one.
    """

    host: str | None = None
    disk: str | None = None
    write: WriteWhen = "through"
    eviction: str = POLICIES[0]
    host_gbs: float | None = None
    disk_gbs: float | None = None
    disk_write_gbs: float | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_gbs") and value is not None and not value > 0:
                raise ConfigError(f"cache.{one.name} must be above 0, got {value}")

    def tiers(self, token_bytes: float, machine: Sequence[Tier] = ()) -> dict[str, Any]:
        """`host`, `disk` and `write` of a `world.InstanceConfig`.

        Args:
            token_bytes: keys and values of a token.
            machine: what the machine has, where the instance stands on one.
        """
        found: dict[str, Any] = {"write": self.write}
        has: Mapping[TierName, Tier] = {tier.name: tier for tier in machine}
        if self.host is not None:
            host = _tier("host", self.host, token_bytes, has, self.host_gbs, self.host_gbs)
            found["host"] = replace(host, eviction=self.eviction)
        if self.disk is not None:
            size = self.disk.rpartition(":")[2]
            write_gbs = self.disk_write_gbs or self.disk_gbs
            found["disk"] = _tier("disk", size, token_bytes, has, self.disk_gbs, write_gbs)
        return found


@dataclass(frozen=True, kw_only=True)
class StoreTable:
    """The store that all instances share, `[store]`.

    Attributes:
        memory: of all its nodes, such as `"8TB"`.
        eviction: one of its policies.
        network_gbs: of all its nodes, one direction; by default the links of instances are the
            limit.
        latency_s: of a call.
    """

    memory: str
    eviction: str = POLICIES[0]
    network_gbs: float | None = None
    latency_s: float = STORE_LATENCY_S

    def tier(self, token_bytes: float) -> Tier:
        """The store, for tokens of that size."""
        rate = math.inf if self.network_gbs is None else self.network_gbs * 1e9
        return Tier(
            name="store",
            tokens=int(parse_bytes(self.memory) // token_bytes),
            read_bytes_per_s=rate,
            write_bytes_per_s=rate,
            latency_s=self.latency_s,
            eviction=self.eviction,
        )


def _tier(
    name: TierName,
    size: str,
    token_bytes: float,
    has: Mapping[TierName, Tier],
    read_gbs: float | None,
    write_gbs: float | None,
) -> Tier:
    """One of an instance's own; sizes and rates that the file leaves out are the machine's."""
    of_machine = has.get(name)
    if of_machine is None and (size == AUTO or read_gbs is None):
        raise ConfigError(
            f"cache.{name}: no machine says how much there is and how fast it is: write a size and "
            f"cache.{name}_gbs" + (", or disk_gb and disk_gbs of its file" * (name == "disk"))
        )
    latency_s = _LATENCY_S[name]
    tokens = 0 if size == AUTO else int(parse_bytes(size) // token_bytes)
    if of_machine is None:
        assert read_gbs is not None and write_gbs is not None
        return Tier(
            name=name,
            tokens=tokens,
            read_bytes_per_s=read_gbs * 1e9,
            write_bytes_per_s=write_gbs * 1e9,
            latency_s=latency_s,
        )
    read = of_machine.read_bytes_per_s if read_gbs is None else read_gbs * 1e9
    write = of_machine.write_bytes_per_s if write_gbs is None else write_gbs * 1e9
    if tokens > of_machine.tokens:
        raise ConfigError(
            f"cache.{name} is {size}: the machine has room for "
            f"{of_machine.tokens * token_bytes / 1e9:,.0f} GB"
        )
    return replace(
        of_machine,
        tokens=tokens or of_machine.tokens,
        read_bytes_per_s=read,
        write_bytes_per_s=write,
    )
