"""LoRA adapters beside packed weights: several in one call, each for rows of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inlay.kernels import _backend
from inlay.kernels._arrays import Array

if TYPE_CHECKING:
    from inlay._native import kernels

    LinearAdapter = kernels.LinearAdapter
    ExpertAdapter = kernels.ExpertAdapter
else:
    LinearAdapter = _backend.ops.LinearAdapter
    ExpertAdapter = _backend.ops.ExpertAdapter


def add_adapters(
    x_TK: Array, adapters: Sequence[tuple[LinearAdapter, int, int]], out_TN: Array
) -> None:
    """Add what adapters do to a linear layer, `scale * B (A x)`, to some rows of `out`.

    Args:
        x_TK: float32, any row stride, contiguous columns.
        adapters: each with its rows, first to end, in their order and apart. An adapter is
            `LinearAdapter([(x_column, out_column, a_RK, b_NR, scale), ...])`: for each of its
            parts the columns of x and of the output where it begins, and float32 matrices of rank R
            as PEFT has them, which are copied; one that several parts have is kept once. A matrix
            whose values are all bfloat16 is held so, in half the memory, with the same results.
            `ExpertAdapter(num_experts, hidden, intermediate)` is the like for `moe`, filled by
            `set(expert, "gate" | "up" | "down", a_RK, b_NR, scale)`; experts that were not set get
            nothing.
        out_TN: float32, writable, any row stride, contiguous columns, apart from x.

    Raises:
        ArgumentError: a shape, dtype, stride or range of rows is wrong; the message names the
            argument.

    Tolerance: fp32, each element one sum in ascending order of K, then of R: a row has the same
        bits whatever else is in the call.
    Cost: reads each adapter's matrices once for up to 96 of its rows; nothing for other rows.
    """
    _backend.ops.add_adapters(x_TK, adapters, out_TN)
