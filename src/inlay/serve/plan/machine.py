"""From `--machine` to a machine: a file, a name, what was saved, or a short measurement."""

import re
from dataclasses import replace
from pathlib import Path

from inlay.core.cgroup import read_limits
from inlay.core.errors import ConfigError
from inlay.core.hardware import (
    Device,
    Machine,
    catalogue_gpus,
    machine_named,
    read_machine,
)
from inlay.core.settings import Settings
from inlay.serve.doctor.bandwidth import Bandwidth, measure_bandwidth
from inlay.serve.doctor.cpu import Cpu, is_busy, read_cpu
from inlay.serve.doctor.gpu import Gpu, read_gpus
from inlay.serve.doctor.memory import Memory, read_memory
from inlay.serve.doctor.shares import measure_shares

_MEASURED = "measured by Inlay"
# Kinds of the kernels' probe; each pass takes about 10 ms.
_PEAKS = ("fp32", "bf16", "int8")
_PASSES = 5


def saved_machine_file(settings: Settings) -> Path:
    """Where a measurement of this machine is kept."""
    return settings.cache_dir / "machine.toml"


def find_machine(name: str | None, settings: Settings) -> tuple[Machine, str]:
    """A machine, and one line that says where its figures come from.

    Raises:
        ConfigError: no such file or name; or none was given and this machine cannot be measured.
    """
    if name is not None:
        file = Path(name).expanduser()
        if file.is_file():
            machine = read_machine(file)
            return machine, f"{machine.name}, from {file}"
        machine = machine_named(name)
        return machine, f"{machine.name}, from the catalogue: simulated, not measured by us"
    saved = saved_machine_file(settings)
    if saved.is_file():
        return read_machine(saved), f"this machine, as measured before ({saved})"
    machine, busy = measure_machine()
    low = "; other programs are running, so it can do more" if busy else ""
    return machine, (
        f"this machine, measured just now{low}; `inlay doctor --save {saved}` keeps a measurement"
    )


def measure_machine() -> tuple[Machine, bool]:
    """Measure memory bandwidth, peaks, and what kernels reach of both, in about 3 seconds.

    Returns:
        The machine, and whether other programs were running, which lowers both.

    Raises:
        ConfigError: there are no compiled kernels, or too little memory is free.
    """
    limits = read_limits()
    cpu, memory = read_cpu(limits), read_memory(limits)
    bandwidth = measure_bandwidth(memory.available_bytes)
    return machine_of(cpu, memory, bandwidth, read_gpus().devices), is_busy(cpu)


def machine_of(
    cpu: Cpu, memory: Memory, bandwidth: Bandwidth | None, gpus: tuple[Gpu, ...]
) -> Machine:
    """This machine, of what the doctor's probes found; peaks and shares are measured here.

    GPUs have their rates from the catalogue; one that it lacks has those of its slowest.

    Raises:
        ConfigError: bandwidth was not measured.
    """
    if bandwidth is None:
        raise ConfigError(
            "this machine cannot be measured without the compiled kernels and memory for their "
            "probe (`inlay doctor` says more): name one with --machine"
        )
    from inlay.kernels import limits, threads

    count = len(threads.topology())
    total = memory.total_bytes if memory.limit_bytes is None else memory.limit_bytes
    node = Device(
        title=cpu.model,
        memory_gb=min(total, memory.total_bytes) / 1e9 / count,
        bandwidth_gbs=bandwidth.read_gbs / count,
        tflops={
            kind: max(limits.measure_peak(kind) for _ in range(_PASSES)) / count for kind in _PEAKS
        },
        cores=max(1, bandwidth.threads // count),
        efficiency=measure_shares(),
        sources=dict.fromkeys(("memory_gb", "bandwidth_gbs", "tflops", "cores"), _MEASURED),
    )
    found = tuple(map(_gpu, gpus))
    return Machine(name="this machine", nodes=(node,) * count, gpus=found, origin="measured")


def _gpu(gpu: Gpu) -> Device:
    """The catalogue's entry with the memory that this GPU has.

    None is left out, whatever the catalogue lacks: places go by their numbers.
    """
    words, known = re.findall(r"[a-z0-9]+", gpu.name.lower()), catalogue_gpus()
    device, title = next((known[name] for name in known if name in words), None), gpu.name
    if device is None:
        device = min(known.values(), key=lambda one: one.bandwidth_gbs)
        title = f"{gpu.name} (not in the catalogue, rates of {device.title})"
    sources = dict(device.sources) | {"memory_gb": _MEASURED}
    return replace(device, title=title, memory_gb=gpu.memory_total_bytes / 1e9, sources=sources)
