"""The process's one pool of compute threads.

The caller of a kernel takes part in its work; the others spin for a bounded time after a call,
then sleep. Threads are spread over the NUMA nodes and stay on theirs, where the shards of weights
that they read first are. Results of given weights depend neither on the number of threads nor on
the nodes. Experts packed on another number of nodes are cut into other shards, whose sums may
round differently.
"""

import os

from inlay.kernels import _backend


def usable_processors() -> int:
    """Physical cores of `topology()`, or as many as the cgroup's CPU quota pays for."""
    if _backend.is_native:
        return int(_backend.ops.usable_processors())
    return len(os.sched_getaffinity(0))


def topology() -> list[list[int]]:
    """Processors of each NUMA node that the pool's threads run on.

    At first those of the machine that affinity mask and cpusets allow; nodes without any are left
    out. A node's hardware threads are all listed, the pool runs one thread per physical core.
    """
    if _backend.is_native:
        return list(_backend.ops.topology())
    return [sorted(os.sched_getaffinity(0))]


def set_topology(nodes: list[list[int]] | None) -> None:
    """Run the pool on these processors, grouped into nodes; None for what the machine has.

    For leaving nodes or processors out, and for tests, which make nodes of any processors they
    have: `[[0], [1]]`, or `[[0, 1], [0, 1]]`. The number of threads becomes `usable_processors()`;
    `set_num_threads` may change it afterwards. Set it before packing weights: their shards are put
    on the nodes of that time. On other nodes they still work, only more slowly. A forked child
    starts with the machine's.

    Raises:
        ArgumentError: not 1 to 64 nodes, an empty node, or a processor that this process may not
            use.
        ResourceError: as `set_num_threads`.
    """
    if _backend.is_native:
        _backend.ops.set_topology(nodes)


def num_threads() -> int:
    """Threads that take part in a call, the caller included; `usable_processors()` at first."""
    return int(_backend.ops.num_threads()) if _backend.is_native else 1


def set_num_threads(num_threads: int) -> None:
    """Change the size of the pool. Waits for the kernel that is running.

    Raises:
        ArgumentError: not in 1..1024.
        ResourceError: the system refuses so many threads; the pool is as before, or the caller's
            thread alone if it refuses those too. Any kernel raises it that has to make the pool.
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
