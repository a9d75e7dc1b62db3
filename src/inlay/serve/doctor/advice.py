"""From facts to advice: what Inlay will use, what holds it back, and the line that fixes it.

Pure: reads no file and measures nothing, so tests give it machines nobody has at hand.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inlay.core.units import format_bytes
from inlay.serve.doctor.bandwidth import Bandwidth
from inlay.serve.doctor.cpu import Cpu, is_busy
from inlay.serve.doctor.disk import Disk
from inlay.serve.doctor.gpu import Gpus
from inlay.serve.doctor.kernels import Kernels
from inlay.serve.doctor.memory import Memory
from inlay.serve.doctor.software import REQUIRED, Software
from inlay.serve.doctor.store import StoreRoom
from inlay.serve.doctor.transports import TransportState
from inlay.serve.doctor.weights import Weights

Level = Literal["problem", "warning", "note"]

# Weights, activations and everything else must fit; what is left after weights holds the KV cache.
_WEIGHT_SHARE = 0.8
_LOW_DISK_BYTES = 10 * 10**9
_SMALL_MEMORY_BYTES = 4 * 2**30
_SMALL_SHARED_BYTES = 2**30  # containers get 64 MiB where nobody asks for more


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything the probes found; `weights` of the model that was named, if one was."""

    cpu: Cpu
    memory: Memory
    bandwidth: Bandwidth | None
    disk: Disk
    gpus: Gpus
    software: Software
    kernels: Kernels
    weights: Weights | None = None
    transports: tuple[TransportState, ...] = ()
    store: StoreRoom | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What Inlay will use here by default.

    Attributes:
        device: where `--device auto` runs a model.
        largest_bf16_parameters: parameters whose bf16 weights fit into the device's memory.
        decode_ceiling_tps: tokens per second of one stream per 10^9 active bf16 parameters, if
            reading weights were all; None where bandwidth was not measured.
    """

    device: str
    device_name: str
    kernels: str
    threads: int
    nodes: int
    memory_bytes: int
    largest_bf16_parameters: int
    decode_ceiling_tps: float | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know. `problem`: Inlay does not work; `warning`: slower than it could be."""

    level: Level
    topic: str
    message: str
    fix: str | None = None


def make_plan(facts: Facts) -> Plan:
    """What will be used."""
    gpu_usable = bool(facts.gpus.devices) and facts.software.torch_cuda is not None
    gpu = facts.gpus.devices[0] if gpu_usable else None
    memory = gpu.memory_free_bytes if gpu else facts.memory.available_bytes
    kernels = facts.kernels.selected or "none"
    ceiling = None
    if gpu is None and facts.bandwidth is not None:
        ceiling = facts.bandwidth.read_gbs / 2
    return Plan(
        device="cuda" if gpu else "cpu",
        device_name=gpu.name if gpu else facts.cpu.model,
        kernels=kernels,
        threads=facts.kernels.threads,
        nodes=facts.kernels.nodes,
        memory_bytes=memory,
        largest_bf16_parameters=int(memory * _WEIGHT_SHARE / 2),
        decode_ceiling_tps=ceiling,
    )


def find(facts: Facts) -> list[Finding]:
    """All findings, the gravest first."""
    findings = [
        *_software(facts),
        *_kernels(facts),
        *_weights(facts.weights),
        *_cores(facts.cpu),
        *_memory(facts),
        *_gpu(facts),
        *_disk(facts.disk),
        *_store(facts.store),
    ]
    grave: tuple[Level, ...] = ("problem", "warning", "note")
    return sorted(findings, key=lambda finding: grave.index(finding.level))


def _software(facts: Facts) -> Iterator[Finding]:
    missing = [name for name in REQUIRED if facts.software.packages.get(name) is None]
    if missing:
        yield Finding(
            level="problem",
            topic="packages",
            message=f"not installed: {', '.join(missing)}",
            fix=f"pip install {' '.join(missing)}",
        )


def _kernels(facts: Facts) -> Iterator[Finding]:
    kernels = facts.kernels
    if kernels.problem is not None:
        yield Finding(
            level="problem",
            topic="kernels",
            message=kernels.problem,
            fix="unset INLAY_ISA" if kernels.forced else None,
        )
    elif not kernels.native:
        install = "pip install --force-reinstall --no-deps inlay"
        compiler = "" if facts.software.compiler else "apt-get install g++; "
        yield Finding(
            level="warning",
            topic="kernels",
            message="NumPy references run, many times slower than the compiled kernels: "
            f"{kernels.why_not}",
            fix="unset INLAY_NATIVE" if facts.kernels.switched_off else compiler + install,
        )
    elif kernels.forced:
        yield Finding(
            level="note",
            topic="kernels",
            message=f"INLAY_ISA forces {kernels.forced}",
            fix="unset INLAY_ISA",
        )
    if kernels.native and kernels.selected == "scalar" and not kernels.forced:
        yield Finding(
            level="warning",
            topic="kernels",
            message="this processor has none of AVX2, AVX-512 and AMX: plain scalar kernels run",
        )


def _weights(weights: Weights | None) -> Iterator[Finding]:
    if weights is not None and weights.problem is not None:
        yield Finding(level="problem", topic="weights", message=weights.problem)


def _cores(cpu: Cpu) -> Iterator[Finding]:
    if cpu.quota_cores is not None and cpu.quota_cores < cpu.affinity_cores:
        yield Finding(
            level="warning",
            topic="cores",
            message=f"a CPU quota of {cpu.quota_cores:g} cores limits {cpu.affinity_cores} visible "
            "ones",
            fix="give the container more, e.g. docker run --cpus=N",
        )
    if cpu.affinity_cores < cpu.cores_online:
        yield Finding(
            level="note",
            topic="cores",
            message=f"this process may run on {cpu.affinity_cores} of {cpu.cores_online} "
            f"processors ({cpu.affinity})",
            fix=f"taskset -c 0-{cpu.cores_online - 1} inlay ...",
        )
    if cpu.physical_cores is not None and cpu.physical_cores < cpu.usable_cores:
        yield Finding(
            level="note",
            topic="cores",
            message=f"{cpu.affinity_cores} logical processors on {cpu.physical_cores} cores: one "
            "thread per core is often as fast",
            fix=f"inlay serve --threads {cpu.physical_cores}",
        )
    if is_busy(cpu):
        yield Finding(
            level="note",
            topic="cores",
            message=f"other work is running (load {cpu.load_1m:.1f} on {cpu.usable_cores} cores): "
            "what was measured here is less than the machine can do",
        )
    if cpu.governor in ("powersave", "conservative") and not cpu.hypervisor:
        yield Finding(
            level="note",
            topic="cores",
            message=f"the frequency governor is {cpu.governor}",
            fix="sudo cpupower frequency-set -g performance",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    memory = facts.memory
    if memory.limit_bytes is not None and memory.limit_bytes < memory.total_bytes:
        yield Finding(
            level="note",
            topic="memory",
            message=f"a limit of {format_bytes(memory.limit_bytes)} holds for this process; the "
            f"machine has {format_bytes(memory.total_bytes)}",
        )
    if memory.available_bytes < _SMALL_MEMORY_BYTES:
        yield Finding(
            level="warning",
            topic="memory",
            message=f"only {format_bytes(memory.available_bytes)} available: small models only",
        )
    if memory.transparent_huge_pages == "never":
        yield Finding(
            level="warning",
            topic="huge pages",
            message="transparent huge pages are off: reading weights misses the TLB more often",
            fix="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if len(memory.numa_nodes) > 1:
        yield Finding(
            level="note",
            topic="NUMA",
            message=f"{len(memory.numa_nodes)} memory nodes: weights on the far one are read more "
            "slowly",
            fix="numactl --interleave=all inlay serve ...",
        )
    if facts.bandwidth is None:
        yield Finding(
            level="note", topic="bandwidth", message="not measured: too little memory available"
        )


def _gpu(facts: Facts) -> Iterator[Finding]:
    gpus, cuda = facts.gpus, facts.software.torch_cuda
    if gpus.problem is not None:
        yield Finding(
            level="warning",
            topic="GPU",
            message=gpus.problem,
            fix="check the driver with nvidia-smi; in a container: docker run --gpus all",
        )
    elif gpus.devices and cuda is None:
        yield Finding(
            level="warning",
            topic="GPU",
            message=f"{gpus.devices[0].name} is present, but the installed torch is a CPU build",
            fix="pip install --force-reinstall torch=="
            f"{(facts.software.packages.get('torch') or '').split('+')[0]}",
        )
    elif not gpus.devices:
        yield Finding(level="note", topic="GPU", message="none found: models run on the CPU")


def _disk(disk: Disk) -> Iterator[Finding]:
    fix = "set INLAY_CACHE_DIR to a directory with space that you may write"
    if disk.problem is not None:
        yield Finding(
            level="warning", topic="disk", message=f"{disk.cache_dir}: {disk.problem}", fix=fix
        )
    elif disk.free_bytes < _LOW_DISK_BYTES:
        yield Finding(
            level="warning",
            topic="disk",
            message=f"{format_bytes(disk.free_bytes)} free under {disk.cache_dir}: too little for "
            "most models",
            fix=fix,
        )


def _store(room: StoreRoom | None) -> Iterator[Finding]:
    if room is None:
        return
    if room.problem is not None:
        yield Finding(
            level="warning",
            topic="store",
            message=f"no node can keep memory here: {room.problem}",
            fix="mount a tmpfs at /dev/shm that this user may write",
        )
        return
    if room.free_bytes < _SMALL_SHARED_BYTES:
        yield Finding(
            level="warning",
            topic="store",
            message=f"only {format_bytes(room.free_bytes)} free in the shared memory where nodes "
            f"keep objects ({room.directory})",
            fix="in a container: docker run --shm-size=16g; else: mount -o remount,size=16g "
            "/dev/shm",
        )
    if room.huge_pages in ("never", "deny"):
        yield Finding(
            level="note",
            topic="store",
            message=f"shared memory comes in small pages (shmem_enabled is {room.huge_pages}): "
            "nodes of the store take longer to start and to copy",
            fix="echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
