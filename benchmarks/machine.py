"""What a record says of the machine, the versions and the moment it was taken."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Widest first: the first whose CPU flags are all present names the machine.
ISA_FLAGS = {
    "amx": {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512_bf16": {"avx512_bf16", "avx512_vnni"},
    "avx512_vnni": {"avx512_vnni"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx2_vnni": {"avx2", "fma", "avx_vnni"},
    "avx2": {"avx2", "fma"},
    "scalar": set[str](),
}


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def gpus() -> list[str]:
    """Names of the CUDA devices that PyTorch sees."""
    try:
        import torch
    except ImportError:
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def machine() -> dict[str, object]:
    """CPU, cores this process may use, widest ISA, memory, load before the run."""
    flags = set(_cpuinfo("flags").split())
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found: dict[str, object] = {
        "cpu": _cpuinfo("model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": next(isa for isa, needed in ISA_FLAGS.items() if needed <= flags),
        "memory_gib": round(pages * page_bytes / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
    }
    if names := gpus():
        found["gpus"] = names
    return found


def versions(*names: str) -> dict[str, str]:
    """Versions of Python, Inlay, torch, NumPy and of `names`, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys(("inlay", "torch", "numpy", *names)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit measured; `+changes` when tracked files differ from it, results aside."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def now() -> str:
    """The moment in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
