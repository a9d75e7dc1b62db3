import os
from pathlib import Path

import pytest

from inlay.core.cgroup import Limits, read_limits
from inlay.core.settings import read_settings
from inlay.kernels import _backend, native_problem, num_threads
from inlay.kernels.limits import memory_probe_bytes
from inlay.serve.doctor import disk as disk_module
from inlay.serve.doctor.bandwidth import measure_bandwidth
from inlay.serve.doctor.cpu import read_cpu
from inlay.serve.doctor.disk import read_disk
from inlay.serve.doctor.gpu import parse_query
from inlay.serve.doctor.kernels import read_kernels
from inlay.serve.doctor.memory import read_memory
from inlay.serve.doctor.software import read_software
from inlay.serve.doctor.transports import read_restriction, read_sharing, read_transports
from tests.support.system_files import tree

NO_LIMITS = Limits()
needs_extension = pytest.mark.skipif(native_problem() is not None, reason="needs the extension")


def test_memory_and_numa(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 800 kB\nSwapTotal: 0 kB\n"
            "HugePages_Total: 4\nHugePages_Free: 3\nHugepagesize: 2048 kB\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/devices/system/node/online": "0-1\n",
            "sys/devices/system/node/node0/cpulist": "0-3\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 600 kB\n"
            "Node 0 MemFree: 500 kB\n",
            "sys/devices/system/node/node0/distance": "10 21\n",
        },
    )
    memory = read_memory(Limits(memory_bytes=600 * 1024, memory_left_bytes=500 * 1024), root)
    assert (memory.total_bytes, memory.available_bytes) == (1000 * 1024, 500 * 1024)
    assert (memory.transparent_huge_pages, memory.huge_pages_free) == ("madvise", 3)
    first, second = memory.numa_nodes
    assert (first.cpus, first.free_bytes, first.distances) == ("0-3", 500 * 1024, (10, 21))
    assert (second.node, second.total_bytes) == (1, None)


def test_cpu(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "model name : Example 9000\nflags : fpu avx2 amx_tile hypervisor\n",
    }
    for cpu in range(256):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = "0"
    cpu = read_cpu(Limits(cpu_quota_cores=0.5), tree(tmp_path, files))
    assert cpu.model == "Example 9000"
    assert cpu.features == ("avx2", "amx_tile")
    assert (cpu.usable_cores, cpu.physical_cores, cpu.hypervisor) == (1, 1, True)


@pytest.mark.parametrize("scope", ["0\n", "1\n", "3\n", None])
def test_restriction(tmp_path: Path, scope: str | None) -> None:
    files = {} if scope is None else {"proc/sys/kernel/yama/ptrace_scope": scope}
    said = read_restriction(tree(tmp_path, files))
    if scope in ("0\n", None):
        assert said is None
    else:
        assert said is not None and f"ptrace_scope is {scope.strip()}, not 0" in said


def test_unsafe_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_sharing() is None
    monkeypatch.setattr("inlay.transfer.runtime_dir.Path", lambda name: tmp_path / str(name)[1:])
    directory = tmp_path / f"run/user/{os.getuid()}/inlay"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    said = read_sharing()
    assert said is not None and str(directory) in said and "0700" in said


@needs_extension
def test_transports() -> None:
    states = {state.name: state for state in read_transports()}
    assert states["tcp"].problem is None
    fabric = states["fabric"]
    if fabric.problem is None:
        assert any(port.startswith("verbs ") for port in fabric.ports)
    else:
        assert any(reason in fabric.problem for reason in ("RDMA", "libfabric", "headers"))


def test_this_machine_can_be_read() -> None:
    limits = read_limits()
    cpu, memory = read_cpu(limits), read_memory(limits)
    assert cpu.usable_cores >= 1 and memory.total_bytes > 0
    kernels = read_kernels(read_settings())
    assert kernels.selected is not None and kernels.threads >= 1
    assert read_software().packages["torch"] is not None


@needs_extension
def test_bandwidth_is_measured() -> None:
    found = measure_bandwidth(100 * 2**30)
    assert found is not None
    assert found.threads == num_threads()
    assert found.read_gbs > 0.1 and found.read_one_core_gbs > 0.1
    assert found.buffer_bytes >= 512 * 2**20


@needs_extension
def test_bandwidth_takes_at_most_half_of_the_memory() -> None:
    needed = 2 * memory_probe_bytes(num_threads())
    assert measure_bandwidth(needed) is not None
    assert measure_bandwidth(needed - 2) is None
    assert measure_bandwidth(0) is None


def test_bandwidth_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backend, "problem", "not built")
    assert measure_bandwidth(100 * 2**30) is None


def test_disk_is_measured_and_left_clean(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "not" / "there", budget_s=0.05)
    assert disk.write_gbs and disk.read_gbs and disk.problem is None
    assert disk.cache_dir.endswith("not/there")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk_module, "_measure", refuse)
    disk = read_disk(tmp_path)
    assert disk.problem == "cannot write there: Permission denied" and disk.write_gbs is None


def test_nvidia_smi() -> None:
    (gpu,) = parse_query("NVIDIA H200, 143771, 143162, 570.86, 9.0\ngarbage\n")
    assert gpu.name == "NVIDIA H200" and gpu.memory_total_bytes == 143771 * 2**20
    assert gpu.compute_capability == "9.0"
