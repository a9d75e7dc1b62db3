"""CPUs for each instance of a machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from inlay.core.system_files import read_text

_CPUS = Path("/sys/devices/system/cpu")


def divide_cpus(
    parts: int, *, allowed: Sequence[int] | None = None, system: Path = _CPUS
) -> list[tuple[int, ...]]:
    """Divide the CPUs that this process may use, neighbours together.

    The two of a core go to the same part, and parts are within a socket as far as that works out.
    Where there are more parts than CPUs, parts share.
    """
    cpus = sorted(os.sched_getaffinity(0)) if allowed is None else list(allowed)
    cpus.sort(key=lambda cpu: (*_core(cpu, system), cpu))
    if parts >= len(cpus):
        return [(cpus[part % len(cpus)],) for part in range(parts)]
    ends = [round(len(cpus) * part / parts) for part in range(parts + 1)]
    return [tuple(cpus[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]


def _core(cpu: int, system: Path) -> tuple[int, int]:
    """Socket and core of a CPU; where the system does not tell, each is a core."""
    topology = system / f"cpu{cpu}" / "topology"
    socket, core = (read_text(topology / name) for name in ("physical_package_id", "core_id"))
    return int(socket or 0), int(core) if core else cpu
