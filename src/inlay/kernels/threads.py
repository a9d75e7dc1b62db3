"""The process's one pool of compute threads.

The caller of a kernel takes part in its work; the others spin for a bounded time after a call,
then sleep. Results do not depend on the number of threads.
"""

import os

from inlay.kernels import _backend


def usable_processors() -> int:
    """Physical cores within the affinity mask and the cgroup's CPU quota."""
    if _backend.is_native:
        return int(_backend.ops.usable_processors())
    return len(os.sched_getaffinity(0))


def num_threads() -> int:
    """Threads that take part in a call, the caller included; `usable_processors()` at first."""
    return int(_backend.ops.num_threads()) if _backend.is_native else 1


def set_num_threads(num_threads: int) -> None:
    """Change the size of the pool. Waits for the kernel that is running.

    Raises:
        ArgumentError: not in 1..1024.
    """
    if _backend.is_native:
        _backend.ops.set_num_threads(num_threads)


def spin_us() -> int:
    """How long a worker spins for the next call before it sleeps, in microseconds."""
    return int(_backend.ops.spin_us()) if _backend.is_native else 0


def set_spin_us(spin_us: int) -> None:
    """Change how long workers spin. Longer costs idle power, shorter costs wake-ups (5-50 us).

    Raises:
        ArgumentError: not in 0..1000000.
    """
    if _backend.is_native:
        _backend.ops.set_spin_us(spin_us)
