"""The disk under the cache directory: space, and sequential speed measured with a short file."""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 4 * 2**20
METHOD = (
    "sequential 4 MiB writes then fsync; read back after asking the kernel to drop the file from "
    "its cache"
)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Where downloads and the disk tier go.

    Attributes:
        cache_dir: the directory; it may not exist yet.
        write_gbs, read_gbs: 10^9 bytes per second; None where the directory cannot be written.
        problem: why it cannot be.
    """

    cache_dir: str
    filesystem: str | None
    total_bytes: int
    free_bytes: int
    write_gbs: float | None
    read_gbs: float | None
    measured_bytes: int
    method: str
    problem: str | None


def read_disk(cache_dir: Path, root: Path = Path("/"), budget_s: float = 0.5) -> Disk:
    """Look at the disk and write at most 256 MiB or `budget_s` seconds; the file goes away."""
    here = cache_dir.absolute()
    while not here.exists():
        here = here.parent
    usage = shutil.disk_usage(here)
    write = read = problem = None
    measured = 0
    most = min(256 * 2**20, usage.free // 20) // _BLOCK_BYTES * _BLOCK_BYTES
    try:
        if most:
            write, read, measured = _measure(here, most, budget_s)
        else:
            problem = "too little space to measure"
    except OSError as error:
        problem = f"cannot write there: {error.strerror}"
    return Disk(
        cache_dir=str(cache_dir),
        filesystem=_filesystem(here, root),
        total_bytes=usage.total,
        free_bytes=usage.free,
        write_gbs=write,
        read_gbs=read,
        measured_bytes=measured,
        method=METHOD,
        problem=problem,
    )


def _measure(directory: Path, most: int, budget_s: float) -> tuple[float, float, int]:
    """(write, read) in 10^9 bytes/s and the bytes they were measured with."""
    block = memoryview(os.urandom(_BLOCK_BYTES))  # random: file systems may compress
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".inlay-doctor-") as file:
        fd = file.fileno()
        start_s, written = time.perf_counter(), 0
        while written < most and time.perf_counter() - start_s < budget_s:
            written += os.write(fd, block)
        os.fsync(fd)
        write_s = time.perf_counter() - start_s
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(fd, 0, os.SEEK_SET)
        start_s, got = time.perf_counter(), 0
        target = bytearray(_BLOCK_BYTES)
        while got < written and time.perf_counter() - start_s < 2 * budget_s:
            count = os.readv(fd, [target])
            if count == 0:
                break
            got += count
        read_s = time.perf_counter() - start_s
    return written / write_s / 1e9, got / read_s / 1e9, written


def _filesystem(directory: Path, root: Path) -> str | None:
    """Type of the file system, such as `ext4`: the longest mount point above the directory."""
    try:
        lines = (root / "proc/mounts").read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and directory.is_relative_to(fields[1]) and len(fields[1]) >= len(best):
            best, kind = fields[1], fields[2]
    return kind
