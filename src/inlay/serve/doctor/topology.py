"""Draws a topology: what hangs where on PCIe, and which ports are near to which memory."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from inlay.serve.doctor.report import SCHEMA
from inlay.transfer.topology import Gpu, Nic, Topology


def topology_as_dict(topology: Topology) -> dict[str, Any]:
    """The topology for machines; bandwidths are 10^9 bytes/s, what is unknown is null."""
    return {"schema": SCHEMA, "topology": asdict(topology)}


def print_topology(console: Console, topology: Topology) -> None:
    """Write the topology for people."""
    console.print(Text("Machine", style="bold"))
    only_node = len(topology.nodes) == 1
    placed = {node.number for node in topology.nodes}
    for node in topology.nodes:
        title = Text(f"node {node.number}", style="cyan")
        title.append(f"  cpus {node.cpus or '?'}", style="default")
        if not only_node and node.distances:
            title.append(f", distances {' '.join(map(str, node.distances))}", style="dim")
        devices = _devices(topology, {None, *placed} if only_node else {node.number})
        _print_tree(console, title, devices)
    if not only_node and (lost := _devices(topology, {None})):
        _print_tree(console, Text("node unknown", style="cyan"), lost)
    others = [nic for nic in topology.nics if not nic.pci_path]
    if others:
        console.print(Text("Interfaces of no card", style="bold"))
        grid = Table.grid(padding=(0, 2))
        for nic in others:
            grid.add_row(Text(f"  {nic.name}"), nic.kind, _state(nic), ", ".join(nic.addresses))
        console.print(grid)
    console.print(Text("Ports by distance from each memory", style="bold"))
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=True)
    for heading in ("memory", "nearest", "same node", "elsewhere"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "memory")
    for location, tiers in topology.tiers.items():
        table.add_row(location, *(" ".join(names) or "-" for names in tiers))
    console.print(table)


@dataclass
class _Bridge:
    """A root complex, port or switch with what is below it."""

    name: str
    below: dict[str, "_Bridge"] = field(default_factory=dict)
    devices: list[Text] = field(default_factory=list)


def _devices(topology: Topology, nodes: set[int | None]) -> list[tuple[tuple[str, ...], Text]]:
    """PCI paths and descriptions of the cards on these nodes, in the order of their addresses."""
    rdma = {nic.interface: nic for nic in topology.nics if nic.interface is not None}
    found = [(gpu.pci_path, _gpu(gpu)) for gpu in topology.gpus if gpu.numa_node in nodes]
    for nic in topology.nics:
        if nic.pci_path and nic.numa_node in nodes and nic.interface is None:
            found.append((nic.pci_path, _nic(nic, rdma.get(nic.name))))
    return sorted(found, key=lambda device: device[0])


def _print_tree(console: Console, title: Text, devices: list[tuple[tuple[str, ...], Text]]) -> None:
    top = _Bridge("")
    for path, text in devices:
        bridge = top
        for name in path[:-1]:
            bridge = bridge.below.setdefault(name, _Bridge(name))
        bridge.devices.append(text)
    tree = Tree(title, guide_style="dim")
    for bridge in top.below.values():
        _grow(tree, bridge)
    table = Table.grid(padding=(0, 2))
    table.add_row("", tree)
    console.print(table)


def _grow(tree: Tree, bridge: _Bridge) -> None:
    """Add a bridge; one that leads to a single thing is left out."""
    if len(bridge.below) + len(bridge.devices) > 1:
        kind = "root" if bridge.name.startswith("pci") else "switch"
        tree = tree.add(Text(f"{kind} {bridge.name.removeprefix('pci')}", style="dim"))
    for text in bridge.devices:
        tree.add(text)
    for below in bridge.below.values():
        _grow(tree, below)


def _gpu(gpu: Gpu) -> Text:
    text = Text(gpu.location, style="bold")
    text.append(f"  {gpu.pci_path[-1] if gpu.pci_path else ''}", style="dim")
    if gpu.pci_gbs is not None:
        text.append(f", PCIe {gpu.pci_gbs:.1f} GB/s", style="default")
    return text


def _nic(nic: Nic, rdma: Nic | None) -> Text:
    text = Text(nic.name, style="bold")
    if rdma is not None:
        text.append(f" = {rdma.name}", style="bold")
    text.append(f"  {nic.pci_path[-1]}, ", style="dim")
    text.append_text(_state(nic if rdma is None or not rdma.up else rdma))
    if nic.member:
        text.append(", member of another")
    if nic.kind not in ("hardware", "rdma"):
        text.append(f", {nic.kind}")
    if nic.addresses:
        text.append(f", {', '.join(nic.addresses)}")
    if nic.pci_gbs is not None and nic.pci_gbs < (nic.bandwidth_gbs or 0):
        text.append(f", PCIe carries only {nic.pci_gbs * 8:.0f} Gbit/s", style="yellow")
    return text


def _state(nic: Nic) -> Text:
    if not nic.up:
        return Text("no link", style="yellow" if nic.kind in ("hardware", "rdma") else "dim")
    if nic.bandwidth_gbs is None:
        return Text("up" if nic.kind == "loopback" else "speed unknown", style="default")
    return Text(f"{nic.bandwidth_gbs * 8:g} Gbit/s", style="default")
