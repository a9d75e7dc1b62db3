"""Timing of calls, the same for every side, and the loop of a process that is asked for them.

Knows only the standard library: it runs in the environments of other systems, too. The questions
are those of `limit_driver.cpp`.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ARENA_BYTES = 256 << 20  # every side walks through as much, so that no figure is a cache's
WARM_CALLS = 2

# Moves the block at an offset of both arenas, for one thread, and waits.
Call = Callable[[int], object]


@dataclass
class Walk:
    """Where each thread goes on."""

    at: dict[int, int] = field(default_factory=dict)

    def offset(self, thread: int, threads: int, block_bytes: int) -> int:
        """The next block of the thread's part of the arena."""
        span = ARENA_BYTES // threads
        at = self.at.get(thread, 0)
        at = 0 if at + block_bytes > span else at
        self.at[thread] = at + block_bytes
        return thread * span + at


def timed(
    make_call: Callable[[int], Call], walk: Walk, block_bytes: int, threads: int, calls: int
) -> tuple[float, float]:
    """Let each thread make `calls` calls at the same time.

    Args:
        make_call: gives the call for a thread's number.

    Returns:
        Seconds from the common start to the last end, and the median of all calls' seconds.
    """
    taken: list[list[float]] = [[] for _ in range(threads)]
    starts: list[float] = []
    ends: list[float] = []
    failed: list[BaseException] = []
    ready = threading.Barrier(threads, action=lambda: starts.append(time.perf_counter()))

    def work(thread: int) -> None:
        try:
            call = make_call(thread)
            for _ in range(WARM_CALLS):
                call(walk.offset(thread, threads, block_bytes))
            ready.wait(60)
            before = time.perf_counter()
            for _ in range(calls):
                call(walk.offset(thread, threads, block_bytes))
                after = time.perf_counter()
                taken[thread].append(after - before)
                before = after
            ends.append(before)
        except BaseException as error:
            failed.append(error)
            ready.abort()

    others = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for other in others:
        other.start()
    work(0)
    for other in others:
        other.join()
    if failed:
        raise failed[0]
    return max(ends) - starts[0], statistics.median(value for part in taken for value in part)


def claim_stdout() -> int:
    """A descriptor for answers alone; what others print goes to standard error from now on."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def serve(answers: int, answer: Callable[[str, int, int, int], tuple[float, float]]) -> None:
    """Say `ready`, then answer questions until there are no more, and end the process."""
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        what, *numbers = line.split()
        total_s, p50_s = answer(what, *map(int, numbers))
        os.write(answers, f"{total_s:.9f} {p50_s:.9f}\n".encode())
    os._exit(0)  # past destructors of others that hang
