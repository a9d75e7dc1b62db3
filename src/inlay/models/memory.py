"""How much memory this process may use: the machine's, or its control group's if that is less."""

from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")


def total_memory_bytes() -> int:
    """Memory that the machine, or the container, has in all."""
    limit = _read("memory.max")
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def free_memory_bytes() -> int:
    """Memory that can still be taken; clean pages of files count as free."""
    free = int(psutil.virtual_memory().available)
    limit, used = _read("memory.max"), _read("memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + (_file_bytes() or 0)))


def _read(name: str) -> int | None:
    try:
        text = (_GROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _file_bytes() -> int | None:
    """Page cache of the group, which gives way."""
    try:
        lines = (_GROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split() for line in lines)
    return int(values["inactive_file"]) + int(values["active_file"])
