"""Memory bandwidth, measured: the ceiling of decoding on the CPU, where every token reads weights.

The kernels' own probe, which reads memory as they do. Other load on the machine lowers the figures,
so they are a floor, not the hardware's peak.
"""

from dataclasses import dataclass

METHOD = "best of several passes of the kernels' memory probe"


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Gigabytes (10^9) per second.

    Attributes:
        read_gbs: what `threads` threads, all of the kernels', reach together.
        read_one_core_gbs: what a single thread reaches.
        buffer_bytes: size of the memory that each pass of `threads` threads reads.
    """

    read_gbs: float
    read_one_core_gbs: float
    threads: int
    buffer_bytes: int
    method: str


def measure_bandwidth(available_bytes: int) -> Bandwidth | None:
    """Measure, in about a second; None without compiled kernels or where memory is short.

    Args:
        available_bytes: the probe may take half of it.
    """
    from inlay.kernels import isa, limits, threads

    if isa.native_problem() is not None:
        return None
    together = threads.num_threads()
    buffer_bytes = limits.memory_probe_bytes(together)
    if buffer_bytes > available_bytes // 2:
        return None
    read = limits.measure_read_gbs(together)
    return Bandwidth(
        read_gbs=read,
        read_one_core_gbs=limits.measure_read_gbs(1) if together > 1 else read,
        threads=together,
        buffer_bytes=buffer_bytes,
        method=METHOD,
    )
