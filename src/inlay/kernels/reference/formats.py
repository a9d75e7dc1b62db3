"""Weights and activations in the formats of the kernels, with the same integers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import NotFiniteError
from inlay.core.weight_format import MAX_WHOLE_ROW, WeightFormat, format_named
from inlay.kernels._checks import F32, array_of, as_f32, check, check_size, from_bf16, to_bf16
from inlay.kernels.reference import blocks, small_floats, zero_points

PANEL = 64
"""Output columns of a packed panel."""

# Of scales as panels hold them; those of floats are not there.
_SCALE_DTYPES: dict[str, type[Any]] = {
    "": np.uint16,
    "bf16": np.uint16,
    "float32": np.float32,
    "e8m0": np.uint8,
    "bf16 and zero": np.uint32,
    "in block": np.uint16,
}
_SMALLEST_PEAK = np.float32(2.0**-100)
_SMALLEST_ACTIVATION = np.float32(1e-35)
_PEAK_AT = np.array(
    [-8.0, 7.0, -7.7, -8.3, -7.35, -8.7, -7.0, -9.1, -6.6, -9.6, -6.25, -10.2], np.float32
)


def quantize(weight_NK: Any, format: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Integers or small floats of a weight matrix, and scales."""
    named = format_named(format)
    check_scales(named)
    source = source_of(weight_NK, "weight_NK")
    k = source.shape[1]
    check(k >= 1, f"weight_NK: has shape {source.shape}, but rows must hold at least 1 value")
    check_inner_size(named, "weight_NK", k)
    check_finite(source, "weight_NK")
    q, scales = quantized(source, named)
    check_finite(largest_weights(scales, named), "weight_NK")
    if named.scale == "e8m0":
        return small_floats.together(q[:, :k]), scales
    return np.ascontiguousarray(q[:, :k]), scales


def source_of(value: Any, name: str) -> F32:
    """A weight matrix as fp32."""
    return as_f32(array_of(value, name, 2, (np.float32, np.uint16)))


def check_finite(x_NK: F32, name: str) -> None:
    """Raise where weights, or what a format makes of them, are not finite."""
    bad = np.flatnonzero(~np.isfinite(x_NK).all(axis=1))
    if len(bad):
        raise NotFiniteError(
            f"{name}: row {bad[0]} holds a NaN or an infinity, or a value that is one in this "
            "format; weights must be finite"
        )


def largest_weights(scales: npt.NDArray[Any], format: WeightFormat) -> F32:
    """The largest magnitude that the format says with these scales."""
    with np.errstate(over="ignore"):
        if format.is_small_float:
            number = small_floats.small_float(format)
            largest = number.values()[number.largest]
            result: F32 = small_floats.scale_values(scales) * largest
        elif format.has_zeros:
            result = zero_points.largest_weights(scales)
        else:
            result = scales.astype(np.float32) * np.float32(format.bias)
    return result


def check_scales(format: WeightFormat) -> None:
    """Raise for a format without scales."""
    check(
        not format.block,
        f"format: '{format.name}' has blocks, which nothing here makes; set_rows_blocks and "
        "set_blocks take those of files",
    )
    check(
        format.group != 0,
        f"format: '{format.name}' has no scales; name one of int8, int4, uint4, fp8 or mxfp4",
    )


def checked_quantized(
    q: Any, scales: Any, format: WeightFormat, k: int, names: tuple[str, str]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows of k weights that are quantised already: integers or codes [N, K], and scales."""
    name, scales_name = names
    pairs = format.scale == "e8m0"
    q = array_of(q, name, 2, np.int8 if format.is_integer else np.uint8)
    scales = array_of(scales, scales_name, 2, np.uint8 if pairs else np.float32)
    check_size(q, name, 1, -(-k // 2) if pairs else k, "the row's size")
    check_size(scales, scales_name, 0, len(q), "as many rows as there are of weights")
    counted = "twice the groups of a row" if format.has_zeros else "groups of a row"
    check_size(scales, scales_name, 1, format.groups(k) * format.scale_columns, counted)
    if format.is_small_float:
        codes = small_floats.apart(q, k) if pairs else q
        small_floats.check_codes(codes, scales, format, name, scales_name)
        return codes, scales
    stored = zero_points.rounded(scales) if format.has_zeros else from_bf16(to_bf16(scales))
    in_range = np.all((q >= -format.bias) & (q < (1 << format.bits) - format.bias), axis=1)
    fits = np.isfinite(largest_weights(stored, format)).all(axis=1) & in_range
    beyond = "a zero point beyond 127.99, " if format.has_zeros else ""
    check(
        bool(fits.all()),
        f"{name}: row {int(fits.argmin()) if len(fits) else 0} holds a scale that is not finite, "
        f"a scale whose weights are not, {beyond}or an integer outside the format's range",
    )
    return q, scales


def panel_bytes(format: WeightFormat, k: int) -> int:
    """Bytes of a packed panel whose rows have `k` values."""
    return PANEL * format.row_bytes(k)


def check_inner_size(format: WeightFormat, name: str, k: int) -> None:
    """Raise where whole rows are too long to be summed in 32 bits."""
    check(
        format.group >= 0 or k <= MAX_WHOLE_ROW,
        f"{name}: is {k}, but format '{format.name}' sums whole rows of at most {MAX_WHOLE_ROW} "
        "in 32 bits; use 'int8:g32'",
    )
    check(
        not format.block or k % format.block == 0,
        f"{name}: is {k}, but rows of format '{format.name}' are whole blocks of {format.block}; "
        "use 'int8:g32'",
    )


def quantized(x_NK: F32, format: WeightFormat) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """q [N, padded K] and scales [N, G]; every operation is the kernels' own, in their order."""
    x_NGI = _grouped(x_NK, format)
    if format.is_small_float:
        codes, small_scales = small_floats.quantized(x_NGI, format)
        return codes.reshape(len(x_NK), format.padded(x_NK.shape[1])), small_scales
    if format.has_zeros:
        nibbles, lines = zero_points.quantized(x_NGI)
        nibbles = nibbles.reshape(len(x_NK), format.padded(x_NK.shape[1]))
        nibbles[:, x_NK.shape[1] :] = 0
        return nibbles.astype(np.int8), lines
    q, scales = _in_8_bits(x_NGI) if format.bits == 8 else _in_4_bits(x_NGI)
    return q.astype(np.int8).reshape(len(x_NK), format.padded(x_NK.shape[1])), scales


def _grouped(x_NK: F32, format: WeightFormat) -> F32:
    n, k = x_NK.shape
    padded = np.zeros((n, format.padded(k)), np.float32)
    padded[:, :k] = x_NK
    groups = format.groups(k)
    return padded.reshape(n, groups, format.padded(k) // groups)


def _rounded(scales: F32) -> F32:
    return from_bf16(to_bf16(scales))


def _inverse(x: F32) -> F32:
    """1 / x, and 0 for 0."""
    result: F32 = np.where(x == 0, np.float32(0), 1 / np.where(x == 0, np.float32(1), x))
    return result


def _in_8_bits(x_NGI: F32) -> tuple[F32, F32]:
    peak = np.abs(x_NGI).max(axis=2)
    scales = _rounded(np.where(peak < _SMALLEST_PEAK, np.float32(0), peak / np.float32(127)))
    return np.rint(x_NGI * _inverse(scales)[..., None]), scales


def _in_4_bits(x_NGI: F32) -> tuple[F32, F32]:
    """The best of several scales around the largest magnitude, each fitted to its integers."""
    at = np.abs(x_NGI).argmax(axis=2)
    peak = np.take_along_axis(x_NGI, at[..., None], axis=2)[..., 0]
    peak = np.where(np.abs(peak) < _SMALLEST_PEAK, np.float32(1), peak)
    inverse_peak = 1 / peak
    best_scale, best_gain = np.zeros_like(peak), np.zeros_like(peak)

    def offer(factor: F32) -> None:
        nonlocal best_scale, best_gain
        xq, qq = np.zeros_like(peak), np.zeros_like(peak)
        for i in range(x_NGI.shape[2]):
            q = np.clip(np.rint(x_NGI[..., i] * factor), -8, 7)
            xq += x_NGI[..., i] * inverse_peak * q
            qq += q * q
        with np.errstate(invalid="ignore"):
            scale = _rounded(xq / qq * peak) * inverse_peak
        gain = scale * (xq + xq - scale * qq)
        better = gain > best_gain
        best_scale = np.where(better, scale, best_scale)
        best_gain = np.where(better, gain, best_gain)

    for place in _PEAK_AT:
        offer(inverse_peak * place)
    offer(_inverse(best_scale * peak))
    scales = _rounded(best_scale * peak)
    q = np.clip(np.rint(x_NGI * _inverse(scales)[..., None]), -8, 7)
    return q, scales


def packed_activations(x_TK: F32, format: WeightFormat) -> tuple[npt.NDArray[np.int8], F32]:
    """int8 [T, padded K] and fp32 scales [T, G]; a group that is not finite has scale NaN."""
    x_TGI = _grouped(x_TK, format)
    peak = np.abs(x_TGI).max(axis=2)
    finite = np.isfinite(peak)
    usable = finite & (peak >= _SMALLEST_ACTIVATION)
    factor = np.where(usable, np.float32(127) / np.where(usable, peak, np.float32(1)), 0)
    q = np.rint(np.where(usable[..., None], x_TGI, 0) * factor[..., None])
    scales = np.where(usable, peak / np.float32(127), np.where(finite, 0, np.nan))
    q = q.reshape(len(x_TK), format.padded(x_TK.shape[1]))
    return q.astype(np.int8), scales.astype(np.float32)


def _as_floats(stored: npt.NDArray[Any], format: WeightFormat) -> F32:
    if format.name == "float16":
        return np.ascontiguousarray(stored).view(np.float16).astype(np.float32)
    return as_f32(stored)


@dataclass
class StoredRows:
    """Rows of weights as panels hold them.

    Attributes:
        stored_NK: float32, bf16 or fp16 bits, unsigned integers (q + 128 or q + 8), or codes of
            small floats; K is padded. Of blocks the bytes of rows.
        scales_NG: bf16 bits, float32 or e8m0, or words of a scale and a zero point; floats and
            blocks have the array and do not use it.
    """

    format: WeightFormat
    k: int
    stored_NK: npt.NDArray[Any]
    scales_NG: npt.NDArray[Any]

    @classmethod
    def zeros(cls, n: int, k: int, format: WeightFormat) -> "StoredRows":
        """As kernels make them: all bytes 0."""
        dtype = {32: np.float32, 16: np.uint16}.get(format.bits, np.uint8)
        width = format.row_bytes(k) if format.block else format.padded(k)
        stored = np.zeros((n, width), dtype)
        scales = np.zeros((n, format.groups(k)), _SCALE_DTYPES[format.scale])
        return cls(format, k, stored, scales)

    def set(self, rows: slice, source: F32, name: str) -> None:
        """Rows from fp32. Raises NotFiniteError with the argument's name."""
        blocks.check_no_blocks(self.format)
        check_finite(source, name)
        if self.format.group != 0:
            q, scales = quantized(source, self.format)
            check_finite(largest_weights(scales, self.format), name)
            self.set_quantized(rows, q, scales)
        elif self.format.bits == 32:
            self.stored_NK[rows, : self.k] = source
        else:
            half = self.format.name == "float16"
            with np.errstate(over="ignore"):
                rounded = source.astype(np.float16).view(np.uint16) if half else to_bf16(source)
            check_finite(_as_floats(rounded, self.format), name)
            self.stored_NK[rows, : self.k] = rounded

    def set_quantized(self, rows: slice, q: npt.NDArray[Any], scales: npt.NDArray[Any]) -> None:
        """Rows from integers or codes, and scales."""
        if self.format.is_small_float:
            padded = self.stored_NK.shape[1]
            codes = np.zeros((len(q), padded), np.uint8)
            codes[:, : q.shape[1]] = q
            grouped = codes.reshape(*scales.shape, padded // scales.shape[1])
            self.stored_NK[rows] = small_floats.kept(grouped, scales).reshape(codes.shape)
            self.scales_NG[rows] = scales
            return
        self.stored_NK[rows] = self.format.bias
        self.stored_NK[rows, : q.shape[1]] = (q.astype(np.int16) + self.format.bias).astype(
            np.uint8
        )
        self.scales_NG[rows] = (
            zero_points.words_of(scales) if self.format.has_zeros else to_bf16(scales)
        )

    def set_blocks(self, rows: slice, data: npt.NDArray[np.uint8]) -> None:
        """Rows from a file's bytes."""
        self.stored_NK[rows] = data

    def integers(self) -> npt.NDArray[np.int16]:
        """q [N, padded K]."""
        return self.stored_NK.astype(np.int16) - np.int16(self.format.bias)

    def values(self) -> F32:
        """The weights that products use, fp32 [N, K]."""
        if self.format.group == 0:
            return _as_floats(self.stored_NK[:, : self.k], self.format)
        if self.format.block:
            return blocks.values_of(self.stored_NK, self.format)
        if self.format.is_integer:
            q, (scales, zeros) = self.integers().astype(np.float32), self._scales_and_zeros()
        else:
            q = small_floats.small_float(self.format).values()[self.stored_NK]
            scales = small_floats.scale_values(self.scales_NG)
            zeros = np.zeros_like(scales)
        values: F32 = (q.reshape(*scales.shape, -1) - zeros[..., None]) * scales[..., None]
        return values.reshape(len(self.stored_NK), -1)[:, : self.k]

    def times(self, x_TK: F32) -> F32:
        """`x W^T` on rounded activations, group by group."""
        if self.format.name in ("float32", "float16"):
            return x_TK @ self.values().T
        if not self.format.is_integer:
            return from_bf16(to_bf16(x_TK)) @ self.values().T
        a_TK, a_scales_TG = packed_activations(x_TK, self.format)
        if self.format.block:
            return self._times_in_blocks(a_TK, a_scales_TG)
        w_NK, (w_scales_NG, zeros_NG) = self.integers(), self._scales_and_zeros()
        groups = w_scales_NG.shape[1]
        size = w_NK.shape[1] // groups
        out = np.zeros((len(x_TK), len(w_NK)), np.float32)
        for g in range(groups):
            steps = slice(g * size, (g + 1) * size)
            # Exact: whole numbers far below 2^53.
            sums = a_TK[:, steps].astype(np.float64) @ w_NK[:, steps].astype(np.float64).T
            row_sums = a_TK[:, steps].sum(axis=1, dtype=np.float32)
            from_zero = sums.astype(np.float32) - zeros_NG[:, g] * row_sums[:, None]
            out += from_zero * (w_scales_NG[:, g] * a_scales_TG[:, g, None])
        return out

    def _times_in_blocks(self, a_TK: npt.NDArray[np.int8], a_scales_TG: F32) -> F32:
        """Nearly exact within a group: not the kernels' own order of a scale and its minimum."""
        w_NGI = self.values().astype(np.float64).reshape(len(self.stored_NK), -1, self.format.group)
        out = np.zeros((len(a_TK), len(w_NGI)), np.float32)
        for g, sums in enumerate(np.split(a_TK.astype(np.float64), w_NGI.shape[1], axis=1)):
            out += (sums @ w_NGI[:, g].T * a_scales_TG[:, g, None]).astype(np.float32)
        return out

    def _scales_and_zeros(self) -> tuple[F32, F32]:
        if self.format.has_zeros:
            return zero_points.apart(self.scales_NG)
        scales = from_bf16(self.scales_NG)
        return scales, np.zeros_like(scales)

    def taken(self, rows: npt.NDArray[np.int64]) -> "StoredRows":
        """Some rows; a negative number is a row of zero bytes."""
        chosen = StoredRows.zeros(len(rows), self.k, self.format)
        kept = rows >= 0
        chosen.stored_NK[kept] = self.stored_NK[rows[kept]]
        chosen.scales_NG[kept] = self.scales_NG[rows[kept]]
        return chosen

    def panels(self) -> npt.NDArray[np.uint8]:
        """The bytes of the panels that hold these rows as columns."""
        n, groups = len(self.stored_NK), self.scales_NG.shape[1]
        count = -(-n // PANEL)
        if self.format.block:
            padded = np.pad(self.stored_NK, ((0, count * PANEL - n), (0, 0)))
            return blocks.panels_of(padded, self.format).reshape(-1)
        rows = self.taken(np.where(np.arange(count * PANEL) < n, np.arange(count * PANEL), -1))
        return _to_panels(rows, count, groups).reshape(-1)

    def set_panels(self, panels: npt.NDArray[np.uint8]) -> None:
        """The inverse of `panels`."""
        n, groups = len(self.stored_NK), self.scales_NG.shape[1]
        if self.format.block:
            row_bytes = self.stored_NK.shape[1]
            self.stored_NK[:] = blocks.blocks_of(panels, self.format, row_bytes)[:n]
            return
        stored, scales = _from_panels(self.format, panels, -(-n // PANEL), groups)
        self.stored_NK[:] = stored[:n]
        self.scales_NG[:] = scales[:n]


# Elements of 32 bits of a column, which lie together in a panel.
def _per_word(format: WeightFormat) -> int:
    return 32 // format.bits


def _to_panels(rows: StoredRows, count: int, groups: int) -> npt.NDArray[np.uint8]:
    format = rows.format
    words = rows.stored_NK.reshape(count, PANEL, groups, -1, _per_word(format))
    if format.is_small_float:
        words = small_floats.words_of(words)
    elif format.bits == 4:
        words = words[..., :4] | (words[..., 4:] << np.uint8(4))
    data = np.ascontiguousarray(words.transpose(0, 2, 3, 1, 4)).view(np.uint8)
    data = data.reshape(count, groups, -1)
    if format.group == 0:
        return data
    scales = np.ascontiguousarray(rows.scales_NG.reshape(count, PANEL, groups).transpose(0, 2, 1))
    return np.concatenate([scales.view(np.uint8), data], axis=2)


def _from_panels(
    format: WeightFormat, panels: npt.NDArray[np.uint8], count: int, groups: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    data = panels.reshape(count, groups, -1)
    scale = _SCALE_DTYPES[format.scale]
    scales = np.zeros((count * PANEL, groups), scale)
    if format.group != 0:
        scale_bytes = PANEL * scale().itemsize
        stored = np.ascontiguousarray(data[..., :scale_bytes]).view(scale)
        scales = stored.transpose(0, 2, 1).reshape(-1, groups)
        data = data[..., scale_bytes:]
    dtype = {32: np.float32, 16: np.uint16}.get(format.bits, np.uint8)
    elements = np.ascontiguousarray(data).view(dtype)
    words = elements.reshape(count, groups, -1, PANEL, 4 // np.dtype(dtype).itemsize)
    if format.is_small_float:
        words = small_floats.codes_of(words, format)
    elif format.bits == 4:
        words = np.concatenate([words & np.uint8(15), words >> np.uint8(4)], axis=-1)
    return words.transpose(0, 3, 1, 2, 4).reshape(count * PANEL, -1), scales
