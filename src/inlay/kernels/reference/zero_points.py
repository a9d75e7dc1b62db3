"""Integers from 0 to 15 whose groups have a scale and a zero point: `(q - zero) * scale`.

Numbers of groups lie side by side: [N, 2 G], each scale before its zero point.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.kernels._checks import F32, from_bf16, to_bf16

_LARGEST = np.float32(15)
_UNITS = np.float32(256)
_MOST_UNITS = np.float32(32767)
_NAN_WORD = np.uint32(0x7FC00000)
_SMALLEST_PEAK = np.float32(2.0**-100)
_LEAST = np.float32(1 / 120)
# How far a candidate stretches the line about its middle, and moves it.
_CANDIDATES = [(1.0, 0.0), (1.06, 0.0), (1.05, 0.4), (1.05, -0.4), (1.12, 0.7), (1.12, -0.7)]

Words = npt.NDArray[np.uint32]


def words_of(scales: F32) -> Words:
    """What panels hold; a NaN where a zero point is too large."""
    units = np.rint(scales[:, 1::2] * _UNITS)
    fits = np.abs(units) <= _MOST_UNITS
    zeros = np.where(fits, units, 0).astype(np.int16).view(np.uint16)
    words = to_bf16(scales[:, 0::2]).astype(np.uint32) << np.uint32(16) | zeros
    return np.where(fits, words, _NAN_WORD)


def apart(words: Words) -> tuple[F32, F32]:
    """Scales and zero points of words, each [N, G]."""
    scales = from_bf16((words >> np.uint32(16)).astype(np.uint16))
    return scales, words.astype(np.uint16).view(np.int16).astype(np.float32) / _UNITS


def rounded(scales: F32) -> F32:
    """What is left of numbers when they are stored."""
    return _together(*apart(words_of(scales)))


def largest_weights(scales: F32) -> F32:
    """The largest magnitude that each group can say."""
    zeros = scales[:, 1::2]
    largest: F32 = scales[:, 0::2] * np.maximum(np.abs(zeros), np.abs(_LARGEST - zeros))
    return largest


def quantized(x_NGI: F32) -> tuple[F32, F32]:
    """q [N, G, I], and scales with zero points; the kernels' own operations, in their order."""
    low, high = x_NGI.min(axis=2), x_NGI.max(axis=2)
    peak = np.abs(x_NGI).max(axis=2)
    tiny = peak < _SMALLEST_PEAK
    peak = np.where(tiny, np.float32(1), peak)
    search = _Search(x_NGI, peak)
    bottom = low * search.inverse_peak
    step = (high * search.inverse_peak - bottom) / _LARGEST
    step = np.where(step > _LEAST, step, _LEAST)
    for stretch, move in np.array(_CANDIDATES, np.float32):
        inverse = stretch / step
        search.offer(inverse, np.float32(7.5) * (np.float32(1) - stretch) + move - bottom * inverse)
    none = search.scale == 0
    search.offer(_inverse(search.scale, none), search.zero)
    empty = none | tiny
    scale = np.where(empty, np.float32(0), _nearest_bf16(search.scale * peak))
    zero = np.where(empty, np.float32(0), search.zero)
    inverse = np.where(empty, np.float32(0), _inverse(scale, empty))
    q = _nibbles(x_NGI * inverse[..., None] + zero[..., None])
    return q, _together(scale, zero)


class _Search:
    """The best scales so far, in units of the groups' peaks, with their zero points."""

    def __init__(self, x_NGI: F32, peak: F32) -> None:
        self.inverse_peak = 1 / peak
        self._peak = peak
        self._x = x_NGI * self.inverse_peak[..., None]
        self._count = np.float32(x_NGI.shape[2])
        self._sum = np.zeros_like(peak)
        for i in range(x_NGI.shape[2]):
            self._sum += self._x[..., i]
        self.scale, self.zero, self._gain = (np.zeros_like(peak) for _ in range(3))

    def offer(self, inverse: F32, begin: F32) -> None:
        """Fit a line to the integers that these give."""
        q, qq, xq = (np.zeros_like(self._peak) for _ in range(3))
        for i in range(self._x.shape[2]):
            integer = _nibbles(self._x[..., i] * inverse + begin)
            q += integer
            qq += integer * integer
            xq += self._x[..., i] * integer
        with np.errstate(all="ignore"):
            slope = (self._count * xq - self._sum * q) / (self._count * qq - q * q)
            slope = np.where(slope > _LEAST, slope, _LEAST)
            scale = _nearest_bf16(slope * self._peak) * self.inverse_peak
            units = np.rint((q - self._sum / scale) / self._count * _UNITS)
            zero = np.clip(units, -_MOST_UNITS, _MOST_UNITS) / _UNITS
            product = xq - zero * self._sum
            gain = scale * (product + product - scale * (qq - zero * (q + q - zero * self._count)))
        better = gain > self._gain
        self.scale = np.where(better, scale, self.scale)
        self.zero = np.where(better, zero, self.zero)
        self._gain = np.where(better, gain, self._gain)


def _nibbles(x: Any) -> F32:
    result: F32 = np.clip(np.rint(x), np.float32(0), _LARGEST)
    return result


def _inverse(x: F32, none: npt.NDArray[np.bool_]) -> F32:
    """1 / x, and 1 where there is none."""
    result: F32 = np.reciprocal(np.where(none, np.float32(1), x))
    return result


def _nearest_bf16(x: Any) -> F32:
    return from_bf16(to_bf16(x))


def _together(scales: Any, zeros: Any) -> F32:
    both = np.stack([scales, zeros], axis=-1).astype(np.float32)
    return both.reshape(len(scales), 2 * np.shape(scales)[1])
