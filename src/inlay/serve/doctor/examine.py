"""Runs all probes, one after the other, so that none disturbs another's measurement."""

from pathlib import Path

from inlay.core.cgroup import read_limits
from inlay.core.settings import Settings
from inlay.serve.doctor.advice import Facts
from inlay.serve.doctor.bandwidth import measure_bandwidth
from inlay.serve.doctor.cpu import read_cpu
from inlay.serve.doctor.disk import read_disk
from inlay.serve.doctor.gpu import read_gpus
from inlay.serve.doctor.kernels import read_kernels
from inlay.serve.doctor.memory import read_memory
from inlay.serve.doctor.software import read_software
from inlay.serve.doctor.store import read_store_room
from inlay.serve.doctor.transports import read_transports
from inlay.serve.doctor.weights import check_weights


def examine(settings: Settings, model: Path | None = None) -> Facts:
    """Look at the machine, and at a packed model. Takes about 2 s, most of it measuring, and what
    reading the model takes."""
    limits = read_limits()
    cpu, memory = read_cpu(limits), read_memory(limits)
    return Facts(
        cpu=cpu,
        memory=memory,
        bandwidth=measure_bandwidth(memory.available_bytes),
        disk=read_disk(settings.cache_dir),
        gpus=read_gpus(),
        software=read_software(),
        kernels=read_kernels(settings),
        transports=read_transports(),
        store=read_store_room(),
        weights=None if model is None else check_weights(model),
    )
