"""The processor: model, features that kernels use, cores that may be used."""

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from inlay.core.cgroup import Limits
from inlay.core.system_files import format_list, key_values, read_text

# What the kernels look for, in the order of their variants.
FEATURES = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processor as this process sees it.

    Attributes:
        cores_online: logical processors of the machine.
        affinity: those that this process may run on, as a kernel list.
        usable_cores: affinity and quota together, rounded up: the threads that make sense.
        physical_cores: distinct cores among the affinity; None where /sys does not tell.
        l2_bytes, l3_bytes: one cache of each kind.
        governor: frequency governor of the first core; None on most virtual machines.
        load_1m: processes that wanted to run in the last minute, on average.
    """

    model: str
    architecture: str
    features: tuple[str, ...]
    cores_online: int
    affinity: str
    affinity_cores: int
    physical_cores: int | None
    quota_cores: float | None
    usable_cores: int
    l2_bytes: int | None
    l3_bytes: int | None
    governor: str | None
    hypervisor: bool
    load_1m: float


def read_cpu(limits: Limits, root: Path = Path("/")) -> Cpu:
    """Read the processor's description."""
    info = key_values(read_text(root / "proc/cpuinfo") or "")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    allowed = sorted(os.sched_getaffinity(0))
    system = root / "sys/devices/system/cpu"
    quota = limits.cpu_quota_cores
    usable = len(allowed) if quota is None else min(len(allowed), max(1, math.ceil(quota)))
    first = system / f"cpu{allowed[0]}"
    return Cpu(
        model=info.get("model name") or info.get("Processor") or platform.processor() or "unknown",
        architecture=platform.machine(),
        features=tuple(feature for feature in FEATURES if feature in flags),
        cores_online=os.cpu_count() or len(allowed),
        affinity=format_list(allowed),
        affinity_cores=len(allowed),
        physical_cores=_physical_cores(system, allowed),
        quota_cores=quota,
        usable_cores=usable,
        l2_bytes=_cache_bytes(first, "2"),
        l3_bytes=_cache_bytes(first, "3"),
        governor=read_text(first / "cpufreq/scaling_governor"),
        hypervisor="hypervisor" in flags,
        load_1m=os.getloadavg()[0],
    )


def is_busy(cpu: Cpu) -> bool:
    """Whether other work takes so much that what is measured says less than the machine can do."""
    return cpu.load_1m > max(1.0, cpu.usable_cores / 2)


def _physical_cores(system: Path, allowed: list[int]) -> int | None:
    """Distinct (package, core) pairs."""
    pairs = {
        (
            read_text(system / f"cpu{cpu}/topology/physical_package_id"),
            read_text(system / f"cpu{cpu}/topology/core_id"),
        )
        for cpu in allowed
    }
    return None if any(None in pair for pair in pairs) else len(pairs)


def _cache_bytes(core: Path, level: str) -> int | None:
    """Size of one core's cache of a level, such as `32768K`."""
    for index in sorted((core / "cache").glob("index*")):
        if read_text(index / "level") == level and read_text(index / "type") != "Instruction":
            size = read_text(index / "size") or ""
            units = {"K": 2**10, "M": 2**20}
            if size[-1:] in units and size[:-1].isdigit():
                return int(size[:-1]) * units[size[-1]]
    return None
