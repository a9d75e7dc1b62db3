"""Weights as integers or small floats, and scales."""

from typing import Any

import numpy.typing as npt

from inlay.kernels import _backend
from inlay.kernels._arrays import Array


def quantize(weight_NK: Array, format: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Integers or codes, and scales, of a weight matrix, as `LinearWeight.set_rows` makes them.

    Args:
        weight_NK: float32, or bfloat16 (torch, or its bits as NumPy uint16), contiguous columns.
        format: one of int8, int4, uint4, fp8 or mxfp4. `int8` has one scale per row, `:gX` one per
            X values, mxfp4 one per 32.

    Returns:
        q_NK: -127..127 or -8..7, and scales_NG, each exactly a bf16. `q * scale` are the weights
        that kernels use. int8 scales are the largest magnitude / 127; int4 scales may be negative
        and have the least squared error of a search around the largest magnitude / -8.
        Of uint4:g32 0..15 and float32 [N, 2 G]: each scale, exactly a bf16, is followed by its zero
        point, a multiple of 1 / 256 below 128, and weights are `(q - zero) * scale`.
        Of fp8:g128 the codes of e4m3, uint8 [N, K], and float32 scales: largest magnitude / 448.
        Of mxfp4 two codes of e2m1 to a byte, uint8 [N, (K + 1) / 2], the first in its low half, and
        e8m0 scales in uint8: powers of two as their exponents + 127, which give the largest
        magnitude the exponent of 6.

    Raises:
        NotFiniteError: a row holds a NaN or an infinity, or a value that becomes one in the format.
        ArgumentError: another argument is wrong.

    Error: relative L2 on Gaussian weights in rows of 2048: int8 0.83 %, int8:g32 0.54 %, uint4:g32
        7.0 %, int4:g32 8.1 %, int4:g64 9.0 %, int4:g128 9.7 %, fp8:g128 2.6 %, mxfp4 11.5 %; a
        group whose largest magnitude is below 1e-30 becomes zeros.
    Cost: per core about 2 GB/s of fp32 (int4) to 10 GB/s (int8), on AVX-512.
    """
    q_NK, scales_NG = _backend.ops.quantize(weight_NK, format)
    return q_NK, scales_NG
