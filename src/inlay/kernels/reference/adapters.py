"""LoRA adapters: what they add to the rows that are theirs."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from inlay.kernels._checks import F32, array_of, check, check_apart, check_size

_MATRICES = ("gate", "up", "down")


class _Pair(NamedTuple):
    a_RK: F32
    b_NR: F32
    scale: float

    def of(self, x_TK: F32) -> F32:
        low_TR: F32 = np.float32(self.scale) * (x_TK @ self.a_RK.T)
        return low_TR @ self.b_NR.T


def _pair(a_RK: Any, b_NR: Any, scale: float) -> _Pair:
    a, b = array_of(a_RK, "a_RK", 2), array_of(b_NR, "b_NR", 2)
    check(len(a) >= 1, f"a_RK: its rank must be at least 1, is {len(a)}")
    check(a.size > 0 and b.size > 0, "a_RK and b_NR: nothing can be added with empty ones")
    check_size(b, "b_NR", 1, len(a), "the rank of a_RK")
    for name, array in (("a_RK", a), ("b_NR", b)):
        check(array.flags.c_contiguous, f"{name}: must be contiguous")
    check(isfinite(scale), f"scale: must be finite, got {scale}")
    return _Pair(a.copy(), b.copy(), float(scale))


class LinearAdapter:
    """What an adapter adds to a linear layer."""

    def __init__(self, parts: Sequence[tuple[int, int, Any, Any, float]]) -> None:
        self._parts: list[tuple[slice, slice, _Pair]] = []
        for x_column, out_column, a, b, scale in parts:
            check(x_column >= 0 and out_column >= 0, "parts: columns must be at least 0")
            pair = _pair(a, b, scale)
            x = slice(x_column, x_column + pair.a_RK.shape[1])
            self._parts.append((x, slice(out_column, out_column + len(pair.b_NR)), pair))
        check(bool(self._parts), "parts: must have at least one entry")
        outs = sorted((out.start, out.stop) for _, out, _ in self._parts)
        for (_, end), (first, _) in pairwise(outs):
            check(end <= first, f"parts: two of them add to output column {first}")

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return sum(pair.a_RK.nbytes + pair.b_NR.nbytes for *_, pair in self._parts)

    def add(self, x_TK: F32, out_TN: F32) -> None:
        """To all rows."""
        for x, out, pair in self._parts:
            check(
                x.stop <= x_TK.shape[1] and out.stop <= out_TN.shape[1],
                f"adapters: one takes {x.stop} columns and adds to {out.stop}, but x_TK has "
                f"{x_TK.shape[1]} and out_TN {out_TN.shape[1]}",
            )
            out_TN[:, out] += pair.of(x_TK[:, x])


class ExpertAdapter:
    """What an adapter adds to the matrices of a layer's experts."""

    def __init__(self, num_experts: int, hidden: int, intermediate: int) -> None:
        sizes = {"num_experts": num_experts, "hidden": hidden, "intermediate": intermediate}
        for name, size in sizes.items():
            check(size >= 1, f"{name}: must be in 1..2^40, got {size}")
        self.sizes = (num_experts, hidden, intermediate)
        self._pairs: dict[tuple[int, str], _Pair] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return sum(pair.a_RK.nbytes + pair.b_NR.nbytes for pair in self._pairs.values())

    def set(self, expert: int, matrix: str, a_RK: Any, b_NR: Any, scale: float) -> None:
        """Give one matrix of an expert its pair."""
        num_experts, hidden, intermediate = self.sizes
        check(0 <= expert < num_experts, f"expert: must be in 0..{num_experts - 1}, got {expert}")
        check(matrix in _MATRICES, f"matrix: must be gate, up or down, got {matrix}")
        pair = _pair(a_RK, b_NR, scale)
        sizes = (intermediate, hidden) if matrix == "down" else (hidden, intermediate)
        check_size(pair.a_RK, "a_RK", 1, sizes[0], "the matrix's inner size")
        check_size(pair.b_NR, "b_NR", 0, sizes[1], "the matrix's output size")
        self._pairs[expert, matrix] = pair

    def of(self, expert: int, matrix: str, x_TK: F32) -> F32 | float:
        """What is added to a product with x."""
        pair = self._pairs.get((expert, matrix))
        return 0.0 if pair is None else pair.of(x_TK)


def check_rows(first: int, end: int, after: int, rows: int) -> None:
    """Raise unless rows first to end follow those before, within so many."""
    check(
        after <= first <= end <= rows,
        f"adapters: rows {first} to {end} do not follow those before within {rows} rows",
    )


def add_adapters(
    x_TK: Any, adapters: Sequence[tuple[LinearAdapter, int, int]], out_TN: Any
) -> None:
    """Each adapter on its rows."""
    x, out = array_of(x_TK, "x_TK", 2), array_of(out_TN, "out_TN", 2, writable=True)
    check_size(out, "out_TN", 0, len(x), "tokens of x_TK")
    check_apart("out_TN", out, x_TK=x)
    after = 0
    for adapter, first, end in adapters:
        check_rows(first, end, after, len(x))
        after = end
        adapter.add(x[first:end], out[first:end])
