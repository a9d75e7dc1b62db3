"""The roofline of this machine, measured in the moment: what a kernel at the limit would take."""

from functools import cache

from inlay import kernels

# Which multiply-add a format's products use.
OPERANDS = {"float32": "fp32", "float16": "fp32", "bfloat16": "bf16"}
NAME = "roofline"


def operand(weight_format: str) -> str:
    """The kind of `kernels.measure_peak` for a format: "fp32", "bf16" or "int8"."""
    return OPERANDS.get(weight_format, "int8")


@cache
def _probe() -> kernels.MemoryProbe:
    return kernels.MemoryProbe()


def roofline_ms(nbytes: float, operations: float, kind: str) -> float:
    """Milliseconds no kernel can beat: reading the bytes from memory, or the multiply-adds.

    Bandwidth and peak are measured in this call (about 30 ms).
    """
    read_s = nbytes / (_probe().read_gbs() * 1e9)
    compute_s = operations / (kernels.measure_peak(kind) * 1e12)
    return max(read_s, compute_s) * 1e3
