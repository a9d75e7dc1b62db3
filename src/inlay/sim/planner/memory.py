"""What holds keys and values behind the GPUs of a fleet, and what of it is bought.

Hosts have memory, which is paid with them. Each instance has its share of it for itself, or all of
it is one store that all instances share. Disks are of hosts; nodes with nothing but memory join the
store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inlay.core.cache_parts import cache_parts
from inlay.sim.capacity import tiers, token_bytes
from inlay.sim.planner.candidates import Candidate
from inlay.sim.tier_file import AUTO, CacheTable, StoreTable


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of hosts, and parts of the catalogue (`core.cache_parts`).

    Attributes:
        hosts: whether hosts' memory holds blocks.
        shared: whether it is one store; else each instance has its own.
        disks: of each host, where memory is not shared.
        nodes: in the store.
    """

    hosts: bool = True
    shared: bool = False
    disks: int = 0
    nodes: int = 0

    @property
    def name(self) -> str:
        """For people; empty where each instance has its part of its host and nothing else."""
        if self.shared:
            nodes = f" and {self.nodes} x {_NODE.title}" if self.nodes else ""
            return f"a store of hosts' memory{nodes}"
        if not self.hosts:
            return "nothing behind the GPUs"
        return f"{self.disks} disks in each host" if self.disks else ""

    def price_usd(self, hosts: float) -> float:
        """Of what is bought besides hosts."""
        return self.disks * hosts * _DISK.price_usd + self.nodes * _NODE.price_usd

    def bought_tb(self, hosts: float) -> float:
        """10^12 bytes of it."""
        return (self.disks * hosts * _DISK.size_gb + self.nodes * _NODE.size_gb) / 1e3

    def has_no_less(self, other: "Memory") -> bool:
        """Whether all that another one has is here, in the same way."""
        return (
            (self.hosts, self.shared) == (other.hosts, other.shared)
            and self.disks >= other.disks
            and self.nodes >= other.nodes
        )

    def more(self, count: int) -> "Memory":
        """With so many more nodes where it is shared, else disks in each host."""
        if self.shared:
            return replace(self, nodes=self.nodes + count)
        return replace(self, hosts=True, disks=self.disks + count)

    def cache(self, one: Candidate) -> CacheTable:
        """Of an instance."""
        if self.shared or not self.hosts or not host_bytes(one):
            return CacheTable()
        if not self.disks:
            return CacheTable(host=AUTO)
        disks, links = self.disks * one.design.hosts, one.gpus * one.design.gpu.link_gbs
        return CacheTable(
            host=AUTO,
            disk=f"{disks * _DISK.size_gb * 1e9:.0f}B",
            disk_gbs=min(links, disks * _DISK.read_gbs),
            disk_write_gbs=min(links, disks * _DISK.write_gbs),
        )

    def store(self, counts: Mapping[Candidate, int]) -> StoreTable | None:
        """That all instances share, if they do and it has room.

        Args:
            counts: instances of the fleet.
        """
        size = sum(count * host_bytes(one) for one, count in counts.items())
        size += self.nodes * node_bytes()
        if not self.shared or not size:
            return None
        links = sum(count * one.instance.out_bytes_per_s for one, count in counts.items()) / 1e9
        return StoreTable(memory=f"{size}B", network_gbs=links + self.nodes * _NODE.read_gbs)


def host_bytes(one: Candidate) -> int:
    """Memory of its hosts that an instance has for blocks."""
    found = next((tier for tier in tiers(one.design) if tier.name == "host"), None)
    return 0 if found is None else int(found.tokens * token_bytes(one.design))


def node_bytes() -> int:
    """Of a node with nothing but memory."""
    return int(_NODE.size_gb * 1e9)


_DISK, _NODE = (cache_parts()[name] for name in ("disk", "node"))

MEMORIES = (
    Memory(),
    Memory(disks=4),
    Memory(shared=True),
    *(Memory(shared=True, nodes=nodes) for nodes in (1, 4)),
)
"""What is searched, the cheapest first."""
