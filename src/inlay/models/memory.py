"""How much memory this process may use: the machine's, or its control group's if that is less."""

import psutil

from inlay.core.cgroup import read_limits


def total_memory_bytes() -> int:
    """Memory that the machine, or the container, has in all."""
    limit = read_limits().memory_bytes
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def free_memory_bytes() -> int:
    """Memory that can still be taken; clean pages of files count as free."""
    left = read_limits().memory_left_bytes
    free = int(psutil.virtual_memory().available)
    return free if left is None else min(free, left)
