"""What memories and network ports this machine has, and how near they are to each other.

Only reads; which path a slice takes is the engine's choice. The same reading, in the compiled core,
is what engines use.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inlay.transfer import _backend

NicKind = Literal["hardware", "stacked", "veth", "virtual", "loopback", "rdma"]


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """One NUMA node.

    Attributes:
        cpus: its processors as the kernel lists them, such as "0-15,32-47".
        distances: to each node, 10 is itself; empty where the system does not say.
    """

    number: int
    cpus: str
    distances: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Nic:
    """One network port.

    Attributes:
        name: "eth0", "mlx5_0"; of a card with several RDMA ports "mlx5_0:2".
        kind: "stacked" is a bond, bridge or VLAN above hardware, "rdma" a port of
            /sys/class/infiniband.
        up: enabled, with a carrier.
        member: a bond or bridge carries its traffic.
        usable: fit to carry slices to other machines, once it has an address.
        bandwidth_gbs: 10^9 bytes per second; None where the system does not know.
        interface: of an RDMA port, the network interface on it.
        addresses: as "10.0.0.1/24", IPv4 before IPv6; of an RDMA port its interface's.
        pci_path: PCI devices from the root complex down to its own; empty off PCI.
        pci_gbs: what its PCI Express link carries as it is now; None where unknown.
        numa_node: None where the system does not say.
    """

    name: str
    kind: NicKind
    up: bool
    member: bool
    usable: bool
    bandwidth_gbs: float | None
    interface: str | None
    addresses: tuple[str, ...]
    pci_path: tuple[str, ...]
    pci_gbs: float | None
    numa_node: int | None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that CUDA can use.

    Attributes:
        location: "cuda:0", counted by PCI address. That is CUDA's order where all GPUs are alike
            or CUDA_DEVICE_ORDER is PCI_BUS_ID.
        pci_path, pci_gbs, numa_node: as of `Nic`.
        nic_hops: steps over PCI to each port below the same root complex, by name.
    """

    location: str
    pci_path: tuple[str, ...]
    pci_gbs: float | None
    numa_node: int | None
    nic_hops: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Memories, ports, and for each memory the ports by their distance.

    Attributes:
        nodes: at least one.
        tiers: for "cpu:0" (the memory of NUMA node 0) or "cuda:0" the names of usable ports: those
            with the fewest PCI hops (for a node's memory, the node's), then others of its node,
            then all others, among them those whose place the system does not tell.
    """

    nodes: tuple[NumaNode, ...]
    nics: tuple[Nic, ...]
    gpus: tuple[Gpu, ...]
    tiers: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]


def read_topology(root: Path | str = "/sys") -> Topology:
    """Read the topology of this machine, or of a recorded sysfs.

    What the system does not tell stays empty or None. A recorded sysfs has no addresses.

    Raises:
        ArgumentError: `root` is no directory.
        TransportUnavailableError: the compiled extension is missing.

    Cost: about 1 ms, more with hundreds of devices.
    """
    record = _backend.read_topology(str(root))
    return Topology(
        nodes=tuple(NumaNode(**node) for node in record["nodes"]),
        nics=tuple(Nic(**nic) for nic in record["nics"]),
        gpus=tuple(Gpu(**gpu) for gpu in record["gpus"]),
        tiers=record["tiers"],
    )
