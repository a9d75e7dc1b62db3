"""Memory bandwidth, measured: the ceiling of decoding on the CPU, where every token reads weights.

One thread per usable core walks its own part of an array that is much larger than the caches.
Read: the maximum of 64-bit integers (NumPy's vectorised reduction, no arithmetic in its way).
Copy: `numpy.copyto`, counted as bytes read plus bytes written, as STREAM does; the hidden read of
the destination that ordinary stores cause is not counted. The best of several passes is reported.
Other load on the machine lowers the figures, so they are a floor, not the hardware's peak.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

METHOD = (
    "best of several passes; read: NumPy max of int64, copy: NumPy copyto counted as read + "
    "write; one thread per usable core over private arrays"
)


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Gigabytes (10^9) per second.

    Attributes:
        read_one_core_gbs: what a single thread reaches.
        array_bytes: size of the array that each pass reads.
    """

    read_gbs: float
    copy_gbs: float
    read_one_core_gbs: float
    threads: int
    array_bytes: int
    duration_s: float
    method: str


def array_size(available_bytes: int, l3_bytes: int | None, threads: int) -> int | None:
    """Bytes to read per pass: 8 times the caches, 256 MiB to 4 GiB; None if memory is too short.

    A copy needs the array twice; it may take a quarter of the available memory in all.
    """
    wanted = min(max(256 * 2**20, 8 * (l3_bytes or 0), threads * 16 * 2**20), 4 * 2**30)
    affordable = available_bytes // 8
    size = min(wanted, affordable)
    return size if size >= 64 * 2**20 else None


def measure_bandwidth(
    threads: int, available_bytes: int, l3_bytes: int | None, budget_s: float = 2.0
) -> Bandwidth | None:
    """Measure within about `budget_s` seconds; None where memory is too short."""
    import numpy as np

    size = array_size(available_bytes, l3_bytes, threads)
    if size is None:
        return None
    start_s = time.perf_counter()
    words = size // threads // 8

    with ThreadPoolExecutor(threads) as pool:
        # Each thread touches its own arrays first, so that they lie on its NUMA node.
        pairs = list(
            pool.map(lambda _: (np.ones(words, np.int64), np.ones(words, np.int64)), range(threads))
        )
        total = words * 8 * threads

        def best(work: Callable[[int], object], over: int, moved: int) -> float:
            fastest, end_s = float("inf"), time.perf_counter() + budget_s / 4
            passes = 0
            while passes < 3 or time.perf_counter() < end_s:
                pass_s = time.perf_counter()
                list(pool.map(work, range(over)))
                fastest = min(fastest, time.perf_counter() - pass_s)
                passes += 1
            return moved / fastest / 1e9

        read = best(lambda i: pairs[i][0].max(), threads, total)
        copy = best(lambda i: np.copyto(pairs[i][1], pairs[i][0]), threads, 2 * total)
        one = best(lambda i: pairs[i][0].max(), 1, words * 8) if threads > 1 else read
    return Bandwidth(
        read_gbs=read,
        copy_gbs=copy,
        read_one_core_gbs=one,
        threads=threads,
        array_bytes=total,
        duration_s=time.perf_counter() - start_s,
        method=METHOD,
    )
