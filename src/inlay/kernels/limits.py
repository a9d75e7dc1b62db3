"""What this machine allows a kernel: measured rates that no implementation can exceed.

A kernel that reads weights takes at least their bytes over `measure_read_gbs()`, one that
multiplies at least its operations over `measure_peak()` (roofline). Both use every thread of the
pool and read low while other programs run, so take them in the moment they are needed for. They
say what the machine can do, whichever kernel variant `INLAY_ISA` has forced.
"""

from inlay.core.errors import ArgumentError
from inlay.kernels import _backend

PASSES = 3


def memory_probe_bytes(threads: int) -> int:
    """Memory that a `MemoryProbe` takes: 512 MiB, or 32 MiB per thread if that is more.

    Raises:
        ArgumentError: as MemoryProbe.
    """
    _need_extension()
    return int(_backend.ops.memory_probe_bytes(threads))


class MemoryProbe:
    """A buffer far larger than the caches, to measure again and again how fast memory is read.

    Args:
        threads: how many read together; the pool's by default.

    Cost: `memory_probe_bytes`; 0.1-0.3 s to put in place.

    Raises:
        ArgumentError: threads is not in 1..1024, or there is no compiled extension.
    """

    def __init__(self, threads: int | None = None) -> None:
        _need_extension()
        self._probe = _backend.ops.MemoryProbe(threads)

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return int(self._probe.nbytes)

    def read_gbs(self) -> float:
        """Read all of it twice, in one stream per thread and in four; the better rate in GB/s.

        Gigabytes are 10^9 bytes. Cost: 20 ms at 50 GB/s.
        """
        return float(self._probe.read_gbs())


def measure_read_gbs(threads: int | None = None) -> float:
    """Memory read bandwidth in GB/s (10^9 bytes), the best of a few passes of a `MemoryProbe`.

    Args:
        threads: how many read together; the pool's by default.

    Raises:
        ArgumentError: as MemoryProbe.

    Cost: about 0.3 s and 512 MiB while it runs. Keep a `MemoryProbe` to measure repeatedly.
    """
    probe = MemoryProbe(threads)
    return max(probe.read_gbs() for _ in range(PASSES))


def measure_peak(kind: str, threads: int | None = None) -> float:
    """Peak of multiply-adds in TOP/s (10^12 operations, two per multiply-add).

    Args:
        kind: "fp32", "bf16" (summed in fp32) or "int8" (summed in int32). The widest instruction
            that the processor has for it; where it has none, the rate of fp32.
        threads: how many compute together; the pool's by default.

    Raises:
        ArgumentError: another kind, threads is not in 1..1024, or no compiled extension.

    Cost: about 10 ms.
    """
    _need_extension()
    return float(_backend.ops.measure_peak(kind, threads))


def _need_extension() -> None:
    if not _backend.is_native:
        raise ArgumentError(f"limits: need the compiled extension; {_backend.problem}")
