"""How `inlay doctor --topology` draws recorded machines."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from inlay.kernels import native_problem
from inlay.serve.doctor.topology import print_topology, topology_as_dict
from inlay.transfer import read_topology
from tests.support.sysfs import MACHINES, make_sysfs

pytestmark = pytest.mark.skipif(native_problem() is not None, reason="needs the extension")


def drawn(machine: str, root: Path, width: int = 100) -> list[str]:
    output = io.StringIO()
    print_topology(Console(width=width, file=output), read_topology(make_sysfs(machine, root)))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_a_gpu_is_drawn_beside_its_card(tmp_path: Path) -> None:
    lines = drawn("8gpu_8nic", tmp_path)
    card = lines.index("  │   │   ├── ibp24s0 = mlx5_0  0000:18:00.0, 400 Gbit/s")
    assert lines[card - 2 : card] == ["  ├── root 0000:15", "  │   ├── switch 0000:16:00.0"]
    assert lines[card + 1] == "  │   │   └── cuda:0  0000:19:00.0, PCIe 63.0 GB/s"
    text = "\n".join(lines)
    assert "node 1  cpus 56-111,168-223, distances 21 10" in text
    assert "ibp191s0 = mlx5_7  0000:bf:00.0, no link" in text
    assert "docker0   virtual" in text
    (row,) = (line for line in lines if line.split()[:1] == ["cuda:0"])
    assert row.split()[1:4] == ["ibp24s0", "mlx5_0", "eno1"]


def test_a_narrow_slot_is_pointed_out(tmp_path: Path) -> None:
    text = "\n".join(drawn("dual_socket", tmp_path))
    assert "ens6f0np0  0000:ca:00.0, 100 Gbit/s, PCIe carries only 63 Gbit/s" in text
    assert text.count("PCIe carries only") == 1


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_port_is_drawn_once(machine: str, width: int, tmp_path: Path) -> None:
    lines = drawn(machine, tmp_path, width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines[: lines.index("Ports by distance from each memory")])
    for nic in read_topology(tmp_path).nics:
        assert text.replace("=", " ").split().count(nic.name) == 1, nic.name


def test_as_json(tmp_path: Path) -> None:
    topology = read_topology(make_sysfs("dual_socket", tmp_path))
    record = json.loads(json.dumps(topology_as_dict(topology)))
    assert record["schema"] == 2
    assert record["topology"]["tiers"]["cpu:1"] == [["ens6f0np0"], [], ["ens1f0np0"]]
    assert record["topology"]["nics"][0]["bandwidth_gbs"] == 12.5
