"""GPUs, as the driver's nvidia-smi reports them. torch is never imported: that takes seconds."""

import shutil
import subprocess
from dataclasses import dataclass

_QUERY = ("name", "memory.total", "memory.free", "driver_version", "compute_cap")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU."""

    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    driver: str
    compute_capability: str


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """All GPUs; `problem` where the driver's tool is there but fails."""

    devices: tuple[Gpu, ...]
    problem: str | None


def read_gpus() -> Gpus:
    """Ask nvidia-smi, if there is one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus(devices=(), problem=None)
    command = [tool, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(devices=(), problem=f"nvidia-smi failed: {error}")
    if result.returncode != 0:
        reason = (result.stderr or result.stdout).strip().splitlines()
        return Gpus(
            devices=(), problem=f"nvidia-smi failed: {reason[0] if reason else 'no reason'}"
        )
    return Gpus(devices=tuple(parse_query(result.stdout)), problem=None)


def parse_query(text: str) -> list[Gpu]:
    """The lines of nvidia-smi's CSV; sizes are in MiB."""
    gpus = []
    for line in text.strip().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_QUERY):
            continue
        name, total, free, driver, capability = fields
        gpus.append(
            Gpu(
                name=name,
                memory_total_bytes=_mebibytes(total),
                memory_free_bytes=_mebibytes(free),
                driver=driver,
                compute_capability=capability,
            )
        )
    return gpus


def _mebibytes(text: str) -> int:
    return int(text) * 2**20 if text.isdigit() else 0
