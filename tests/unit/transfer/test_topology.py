"""The topology of recorded machines, and of this one."""

import ipaddress
from pathlib import Path

import pytest

from inlay.core.errors import ArgumentError
from inlay.kernels import native_problem
from inlay.transfer import Nic, Topology, read_topology
from tests.support.sysfs import MACHINES, make_sysfs


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


def recorded(machine: str, root: Path) -> Topology:
    return read_topology(make_sysfs(machine, root))


def nic(topology: Topology, name: str) -> Nic:
    (found,) = (nic for nic in topology.nics if nic.name == name)
    return found


def test_eight_gpus_each_have_their_card(tmp_path: Path) -> None:
    topology = recorded("8gpu_8nic", tmp_path)
    assert [node.distances for node in topology.nodes] == [(10, 21), (21, 10)]
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    cards = ["ibp24s0", "ibp29s0", "ibp58s0", "ibp63s0", "ibp154s0", "ibp159s0", "ibp186s0"]
    near = [{name, f"mlx5_{index}"} for index, name in enumerate(cards)]
    usable = set().union(*near, {"eno1"})
    for index in range(7):
        nearest, same_node, others = map(set, topology.tiers[f"cuda:{index}"])
        assert nearest == near[index]
        first = set().union(*near[:4], {"eno1"})
        node = first if index < 4 else usable - first
        assert same_node == node - nearest
        assert others == usable - node
        assert topology.gpus[index].nic_hops[cards[index]] == 4  # up to their switch and down
    # Its own card has no link: the next below the same root complex is nearest.
    assert topology.tiers["cuda:7"][0] == ("ibp186s0", "mlx5_6")
    assert topology.tiers["cuda:7"][1] == ("ibp154s0", "ibp159s0", "mlx5_4", "mlx5_5")


def test_host_memory_is_near_to_the_cards_of_its_node(tmp_path: Path) -> None:
    topology = recorded("8gpu_8nic", tmp_path)
    nearest, same_node, others = topology.tiers["cpu:1"]
    assert nearest == ("ibp154s0", "ibp159s0", "ibp186s0", "mlx5_4", "mlx5_5", "mlx5_6")
    assert same_node == ()
    assert others == topology.tiers["cpu:0"][0]
    assert others[0] == "eno1" and len(others) == 9


def test_what_is_no_card_carries_no_slices(tmp_path: Path) -> None:
    topology = recorded("8gpu_8nic", tmp_path)
    kinds = {name: nic(topology, name).kind for name in ("lo", "docker0", "veth3f2a", "eno1")}
    assert kinds == {"lo": "loopback", "docker0": "virtual", "veth3f2a": "veth", "eno1": "hardware"}
    unusable = {nic.name for nic in topology.nics if not nic.usable}
    assert unusable == {"lo", "docker0", "veth3f2a", "ibp191s0", "mlx5_7"}
    assert nic(topology, "veth3f2a").member and not nic(topology, "ibp191s0").up


def test_speeds(tmp_path: Path) -> None:
    topology = recorded("8gpu_8nic", tmp_path)
    card, port = nic(topology, "ibp24s0"), nic(topology, "mlx5_0")
    assert (card.bandwidth_gbs, port.bandwidth_gbs, port.interface) == (50.0, 50.0, "ibp24s0")
    assert card.pci_path == port.pci_path
    assert card.pci_gbs == pytest.approx(63.0, rel=0.01)
    assert nic(topology, "ibp191s0").bandwidth_gbs is None


def test_two_sockets_two_cards(tmp_path: Path) -> None:
    topology = recorded("dual_socket", tmp_path)
    assert topology.gpus == ()
    assert topology.tiers == {
        "cpu:0": (("ens1f0np0",), (), ("ens6f0np0",)),
        "cpu:1": (("ens6f0np0",), (), ("ens1f0np0",)),
    }
    narrow = nic(topology, "ens6f0np0")
    assert narrow.pci_gbs is not None and narrow.bandwidth_gbs is not None
    assert narrow.pci_gbs < narrow.bandwidth_gbs == 12.5


def test_a_virtual_machine_knows_little(tmp_path: Path) -> None:
    topology = recorded("virtual_machine", tmp_path)
    port = nic(topology, "eth0")
    assert (port.bandwidth_gbs, port.numa_node, port.usable) == (None, None, True)
    assert port.pci_path == ("pci0000:00", "0000:00:03.0")
    # Everything is near where there is one node.
    assert topology.tiers == {"cpu:0": (("eth0",), (), ())}


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    topology = recorded("nothing", tmp_path)
    assert topology.tiers == {"cpu:0": ((), (), ())}
    assert topology.nodes[0].cpus == "0-3"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_usable_port_is_in_one_tier_of_each_memory(machine: str, tmp_path: Path) -> None:
    topology = recorded(machine, tmp_path)
    usable = sorted(nic.name for nic in topology.nics if nic.usable)
    assert len(topology.tiers) == len(topology.nodes) + len(topology.gpus)
    for tiers in topology.tiers.values():
        assert sorted(name for tier in tiers for name in tier) == usable
    assert not any(nic.addresses for nic in topology.nics)


def test_no_directory_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="root: must be a directory, got '/proc/version'"):
        read_topology("/proc/version")


def test_this_machine() -> None:
    for port in read_topology().nics:
        if port.kind == "loopback" and port.up:
            assert "127.0.0.1/8" in port.addresses
        for address in port.addresses:
            ipaddress.ip_interface(address)
