"""Weights as floats of 8 or 4 bits, e4m3 and e2m1 (OCP), each times the scale of its group."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import NotFiniteError
from inlay.core.weight_format import WeightFormat
from inlay.kernels._checks import F32

Codes = npt.NDArray[np.uint8]

_SMALLEST_PEAK = np.float32(2.0**-100)


@dataclass(frozen=True)
class SmallFloat:
    """A sign, an exponent and bits of mantissa, in the low bits of a byte: its code."""

    exponent_bits: int
    mantissa_bits: int
    largest: int
    """Code of the largest number."""

    @property
    def sign(self) -> int:
        """Bit of the sign."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        """The smallest number that is not subnormal."""
        return 2.0 ** (2 - (1 << (self.exponent_bits - 1)))

    def values(self) -> F32:
        """The number of each code."""
        size = np.arange(self.sign)
        exponent, mantissa = size >> self.mantissa_bits, size % (1 << self.mantissa_bits)
        fraction = mantissa / (1 << self.mantissa_bits) + (exponent > 0)
        magnitude = fraction * self.smallest_normal * 2.0 ** np.maximum(exponent - 1, 0)
        return np.concatenate([magnitude, -magnitude]).astype(np.float32)

    def nearest(self, x: F32) -> Codes:
        """Codes of the nearest numbers, ties to an even one; the largest for what is beyond."""
        values = self.values()[: self.largest + 1].astype(np.float64)
        size = np.abs(x).astype(np.float64)
        above = np.searchsorted(values, size).clip(1, self.largest)
        low, high = size - values[above - 1], values[above] - size
        up = (high < low) | ((high == low) & (above % 2 == 0))
        codes: Codes = (above - 1 + up + self.sign * np.signbit(x)).astype(np.uint8)
        return codes


E4M3 = SmallFloat(4, 3, 0x7E)
E2M1 = SmallFloat(2, 1, 7)


def small_float(format: WeightFormat) -> SmallFloat:
    """That of a format which has one."""
    return E4M3 if format.bits == 8 else E2M1


def scale_values(scales: npt.NDArray[Any]) -> F32:
    """fp32 of fp32 scales, and of e8m0: powers of two as their exponents + 127, and NaN at 255."""
    if scales.dtype != np.uint8:
        return scales.astype(np.float32)
    values = np.ldexp(np.float32(1), scales.astype(np.int32) - 127).astype(np.float32)
    return np.where(scales == 255, np.float32(np.nan), values)


def quantized(x_NGI: F32, format: WeightFormat) -> tuple[Codes, npt.NDArray[Any]]:
    """Codes of groups and their scales as the format stores them."""
    peak = np.abs(x_NGI).max(axis=2)
    tiny = peak < _SMALLEST_PEAK
    scales: npt.NDArray[Any]
    if format.scale == "float32":
        scales = np.where(tiny, np.float32(0), peak / np.float32(448))
    else:
        # The largest magnitude and 6 get the same exponent.
        scales = np.where(tiny, 0, np.frexp(peak)[1] + 124).astype(np.uint8)
    divisor = np.where(tiny, np.float32(1), scale_values(scales)).astype(np.float32)
    scaled: F32 = x_NGI / divisor[..., None]
    return small_float(format).nearest(scaled), scales


def kept(codes: Codes, scales: npt.NDArray[Any]) -> Codes:
    """Codes [N, G, I] with those as 0 that are subnormal in bf16 at their e8m0 scales."""
    if scales.dtype != np.uint8:
        return codes
    values = np.abs(E2M1.values()[codes]) * scale_values(scales)[..., None].astype(np.float64)
    return np.where(values < 2.0**-126, codes & np.uint8(E2M1.sign), codes)


def apart(packed_NX: Codes, k: int) -> Codes:
    """Codes [N, K] of two to a byte, the first in the low half."""
    both = np.stack([packed_NX & np.uint8(15), packed_NX >> np.uint8(4)], axis=-1)
    return both.reshape(len(packed_NX), 2 * packed_NX.shape[1])[:, :k]


def together(codes_NK: Codes) -> Codes:
    """The inverse of `apart`."""
    padded = np.pad(codes_NK, ((0, 0), (0, codes_NK.shape[1] % 2)))
    return padded[:, ::2] | padded[:, 1::2] << np.uint8(4)


def check_codes(
    codes_NK: Codes,
    scales_NG: npt.NDArray[Any],
    format: WeightFormat,
    name: str,
    scales_name: str,
) -> None:
    """Raise where a weight is not finite."""
    number = small_float(format)
    with np.errstate(over="ignore"):
        bad_scales = ~np.isfinite(scale_values(scales_NG) * number.values()[number.largest])
    bad_codes = (codes_NK & np.uint8(number.sign - 1)) > number.largest
    rows = np.flatnonzero(bad_scales.any(axis=1) | bad_codes.any(axis=1))
    if not len(rows):
        return
    row = rows[0]
    if bad_scales[row].any():
        raise NotFiniteError(
            f"{scales_name}: row {row}, group {bad_scales[row].argmax()} is a NaN, an infinity, or "
            "a scale whose weights are not finite"
        )
    raise NotFiniteError(
        f"{name}: row {row}, column {bad_codes[row].argmax()} is a NaN; weights must be finite"
    )


# Which steps of K the bytes of a word have, of e2m1 in the low and in the high half.
_E4M3_ORDER = [0, 2, 1, 3]
_E2M1_LOW, _E2M1_HIGH = [0, 4, 1, 5], [2, 6, 3, 7]


def words_of(codes: Codes) -> Codes:
    """The bytes of words [..., 4] from their codes, [..., 4] e4m3 or [..., 8] e2m1."""
    if codes.shape[-1] == 4:
        return codes[..., _E4M3_ORDER]
    return codes[..., _E2M1_LOW] | codes[..., _E2M1_HIGH] << np.uint8(4)


def codes_of(words: Codes, format: WeightFormat) -> Codes:
    """The inverse of `words_of`."""
    if format.bits == 8:
        return words[..., _E4M3_ORDER]
    codes = np.empty((*words.shape[:-1], 8), np.uint8)
    codes[..., _E2M1_LOW], codes[..., _E2M1_HIGH] = words & np.uint8(15), words >> np.uint8(4)
    return codes
