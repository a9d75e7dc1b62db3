"""Quantisation and packing: the same bytes as the reference, on every ISA; errors as documented."""

from typing import Any

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError, NotFiniteError
from inlay.core.weight_format import BLOCK_FORMATS, FORMATS, format_named
from inlay.kernels import _backend, reference
from inlay.kernels._checks import from_bf16, to_bf16
from tests.native.cases import floats

INTEGERS = [name for name in kernels.FORMATS if name.startswith("int")]
QUANTISED = [name for name in kernels.FORMATS if format_named(name).group]
SHAPES = [(1, 1), (65, 7), (130, 64), (40, 300)]

# Relative L2 error of Gaussian weights in rows of 2048: what the documentation says, and no more.
ERRORS = {
    "float32": 0, "bfloat16": 0.0017, "int8": 0.0084, "int8:g32": 0.0055,
    "uint4:g32": 0.0712, "int4:g128": 0.0975, "int4:g64": 0.0905, "int4:g32": 0.0815,
    "fp8:g128": 0.0262, "mxfp4": 0.116, "float16": 0.00021,
}  # fmt: skip


def relative_error(values: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(values - exact) / np.linalg.norm(exact))


def awkward(rng: np.random.Generator) -> np.ndarray:
    """Rows of zeros, tiny, huge, spiky, exactly representable and equal values."""
    w = floats(rng, 12, 300)
    w[0] = 0
    w[1] *= np.float32(1e-32)
    w[2] *= np.float32(8e37)
    w[3, ::7] *= 1000
    w[4] = rng.integers(-8, 8, 300)
    w[5] = -0.375
    w[6, :290] = 0
    w[7, 1:] = 0
    return w


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_panels_are_those_of_the_reference(isa: str, rng: np.random.Generator, format: str) -> None:
    largest = np.float32(65504 if format == "float16" else np.inf)
    for w in [floats(rng, *shape) for shape in SHAPES] + [awkward(rng).clip(-largest, largest)]:
        packed, plain = kernels.pack_linear(w, format), reference.pack_linear(w, format)
        assert (packed.shape, packed.format, packed.nbytes) == (w.shape, format, plain.nbytes)
        assert np.array_equal(packed.panels(), plain.panels())
        assert np.array_equal(packed.dequantize(), plain.dequantize())


@pytest.mark.parametrize("format", QUANTISED)
def test_quantize_is_that_of_the_reference(isa: str, rng: np.random.Generator, format: str) -> None:
    for w in (floats(rng, 5, 7), floats(rng, 40, 300), awkward(rng)):
        for got, expected in zip(
            kernels.quantize(w, format), reference.quantize(w, format), strict=True
        ):
            assert got.dtype == expected.dtype and np.array_equal(got, expected)


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_error_of_gaussian_weights(rng: np.random.Generator, format: str) -> None:
    w = floats(rng, 64, 2048)
    error = relative_error(kernels.pack_linear(w, format).dequantize(), w)
    assert 0.95 * ERRORS[format] <= error <= ERRORS[format]


@pytest.mark.parametrize("format", INTEGERS)
def test_no_weight_is_far_off(rng: np.random.Generator, format: str) -> None:
    """No clipping beyond what the search for the least squared error pays for."""
    w = floats(rng, 64, 2048)
    q, scales = kernels.quantize(w, format)
    groups = scales.shape[1]
    steps = np.abs(q.reshape(64, groups, -1) * scales[..., None] - w.reshape(64, groups, -1))
    steps /= np.abs(scales)[..., None]
    assert steps.max() <= (0.51 if format.startswith("int8") else 3)
    assert np.mean(steps <= 0.501) > 0.98


@pytest.mark.parametrize("format", INTEGERS)
def test_scales_are_bf16_and_the_dequantised_is_their_product(
    rng: np.random.Generator, format: str
) -> None:
    w = floats(rng, 9, 256)
    q, scales = kernels.quantize(w, format)
    assert np.array_equal(from_bf16(to_bf16(scales)), scales)
    values = q.reshape(9, scales.shape[1], -1) * scales[..., None]
    assert np.array_equal(kernels.pack_linear(w, format).dequantize(), values.reshape(9, 256))


@pytest.mark.parametrize("format", QUANTISED)
def test_quantised_rows_are_kept_as_they_are(
    isa: str, rng: np.random.Generator, format: str
) -> None:
    w = floats(rng, 150, 200)
    q, scales = kernels.quantize(w, format)
    whole = kernels.pack_linear(w, format)
    pieces, plain = (module.LinearWeight(150, 200, format) for module in (kernels, reference))
    for weight in (pieces, plain):
        for first, end in ((0, 10), (10, 100), (100, 150)):
            weight.set_rows_quantized(first, q[first:end], scales[first:end])
    assert np.array_equal(pieces.panels(), whole.panels())
    assert np.array_equal(plain.panels(), whole.panels())


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_rows_can_come_in_pieces_and_as_bf16(rng: np.random.Generator, format: str) -> None:
    bits = to_bf16(floats(rng, 150, 33))
    expected = kernels.pack_linear(from_bf16(bits), format)
    weight = kernels.LinearWeight(150, 33, format)
    tensor = torch.from_numpy(bits).view(torch.bfloat16)
    for first, end, source in ((100, 150, bits), (0, 10, bits), (10, 100, tensor)):
        weight.set_rows(first, source[first:end])
    assert np.array_equal(weight.panels(), expected.panels())


def test_packing_keeps_every_bit(rng: np.random.Generator) -> None:
    for shape in SHAPES:
        w = floats(rng, *shape)
        assert np.array_equal(kernels.pack_linear(w).dequantize(), w)
        bits = torch.from_numpy(w).bfloat16()
        for weight in (kernels.pack_linear(w, "bfloat16"), kernels.pack_linear(bits)):
            assert weight.format == "bfloat16"
            assert np.array_equal(weight.dequantize(), bits.float().numpy())


def test_bf16_rounding_of_special_values() -> None:
    w = np.array([[0.0, -0.0, 1e-45, 3.3e38, 1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    expected = torch.from_numpy(w).bfloat16().float().numpy()
    got = kernels.pack_linear(w, "bfloat16").dequantize()
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused(
    isa: str, rng: np.random.Generator, module: Any, format: str, value: float
) -> None:
    w = floats(rng, 150, 70)
    w[[77, 140], [69, 1]] = value
    with pytest.raises(ArgumentError, match="^weight_NK: row 77 holds a NaN or an infinity"):
        module.pack_linear(w, format)
    with pytest.raises(ArgumentError, match="^rows_NK: row 17 holds"):
        module.LinearWeight(200, 70, format).set_rows(100, w[60:100])
    if format in QUANTISED:
        with pytest.raises(ArgumentError, match="^weight_NK: row 77 holds"):
            module.quantize(w, format)
    experts = module.ExpertWeights(1, 70, 150, format)
    good = floats(rng, 150, 70)
    with pytest.raises(ArgumentError, match="^up_FM: row 77 holds"):
        experts.set(0, good, w, good.T.copy())
    with pytest.raises(ArgumentError, match="^down_MF: row 1 holds|^down_MF: row 69 holds"):
        experts.set(0, good, good, w.T.copy())


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
def test_what_becomes_infinite_in_the_format_is_refused(isa: str, module: Any, format: str) -> None:
    largest = np.finfo(np.float16 if format == "float16" else np.float32).max
    w = np.zeros((3, 64), np.float32)
    w[1, 2] = 0.75 * np.float32(largest)  # 4 bits search among scales up to 1.28 times as large
    assert np.isfinite(module.pack_linear(w, format).dequantize()).all()
    w[1, 2] = np.finfo(np.float32).max
    if format in ("float32", "fp8:g128", "mxfp4"):
        assert np.isfinite(module.pack_linear(w, format).dequantize()).all()
        return
    with pytest.raises(NotFiniteError, match="^weight_NK: row 1 holds"):
        module.pack_linear(w, format)
    if format in INTEGERS:
        with pytest.raises(NotFiniteError, match="^weight_NK: row 1 holds"):
            module.quantize(w, format)


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
@pytest.mark.parametrize("scale", [3.4e38, 3.38e38, -3e37])
def test_scales_whose_weights_are_infinite_are_refused(module: Any, scale: float) -> None:
    weight = module.LinearWeight(2, 64, "int8")
    q, scales = np.zeros((2, 64), np.int8), np.array([[1], [scale]], np.float32)
    with pytest.raises(ArgumentError, match="^q_NK: row 1 holds"):
        weight.set_rows_quantized(0, q, scales)


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
@pytest.mark.parametrize("bad", range(3))
def test_biases_are_finite_and_a_refused_expert_keeps_its_own(
    rng: np.random.Generator, module: Any, bad: int
) -> None:
    experts = module.ExpertWeights(1, 8, 4, "float32", True)
    weights = [floats(rng, *shape) for shape in ((4, 8), (4, 8), (8, 4))]
    biases = [floats(rng, size) for size in (4, 4, 8)]
    experts.set(0, *weights, *biases)
    before = np.concatenate(biases)
    wrong = [bias + 1 for bias in biases]
    wrong[bad][3] = np.inf
    with pytest.raises(NotFiniteError, match=r"^(gate|up|down)_bias_[FM]: holds a NaN"):
        experts.set(0, *[2 * w for w in weights], *wrong)
    assert np.array_equal(experts.biases()[0], before)
    assert np.array_equal(experts.dequantize(0)[0], weights[0])
    weights[bad][0, 0] = np.nan
    with pytest.raises(NotFiniteError, match=r"^(gate|up|down)_(FM|MF): row 0 holds"):
        experts.set(0, *weights, *[bias + 1 for bias in biases])
    assert np.array_equal(experts.biases()[0], before)


def test_the_table_of_formats_is_the_kernels_own() -> None:
    from inlay import _native

    mine = [format_named(name) for name in (*FORMATS, *BLOCK_FORMATS)]
    theirs = _native.kernels.formats()
    assert [(name, bits, *more) for name, bits, _, *more in theirs] == [
        (f.name, f.bits, f.group, f.k_multiple, f.scale, f.block, f.block_bytes) for f in mine
    ]
    biases = {name: bias for name, _, bias, *_ in theirs}
    # What is added to the integers of blocks is a matter of the kernels'.
    for f in mine[: len(FORMATS)]:
        assert biases[f.name] == (f.bias if f.is_integer else 0)


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
def test_quantised_rows_outside_the_format_are_refused(module: Any) -> None:
    weight = module.LinearWeight(4, 64, "int4:g32")
    q, scales = np.zeros((4, 64), np.int8), np.ones((4, 2), np.float32)
    for bad in (8, -9):
        wrong = q.copy()
        wrong[2, 63] = bad
        with pytest.raises(ArgumentError, match="^q_NK: row 2 holds"):
            weight.set_rows_quantized(0, wrong, scales)
    wrong_scales = scales.copy()
    wrong_scales[3, 1] = np.nan
    with pytest.raises(ArgumentError, match="^q_NK: row 3 holds"):
        weight.set_rows_quantized(0, q, wrong_scales)
    with pytest.raises(ArgumentError, match="^scales_NG: .*dimension 1 must be 2"):
        weight.set_rows_quantized(0, q, scales[:, :1])
    with pytest.raises(ArgumentError, match="^first: "):
        weight.set_rows_quantized(1, q, scales)
    with pytest.raises(ArgumentError, match="^format: 'bfloat16' has no scales"):
        module.LinearWeight(4, 64, "bfloat16").set_rows_quantized(0, q, scales)
    with pytest.raises(ArgumentError, match="^format: 'float32' has no scales"):
        module.quantize(np.ones((1, 1), np.float32), "float32")


@pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
def test_long_rows_of_int8_are_refused(module: Any) -> None:
    with pytest.raises(ArgumentError, match="^in_features: is 65537, .* use 'int8:g32'"):
        module.LinearWeight(1, 65537, "int8")
    module.LinearWeight(1, 65537, "int8:g32")
    with pytest.raises(ArgumentError, match="^intermediate: is 65537"):
        module.ExpertWeights(1, 8, 65537, "int8")
    assert np.abs(module.pack_linear(np.ones((1, 65536), np.float32), "int8").dequantize()).all()


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_panels_can_be_mapped_again(rng: np.random.Generator, format: str) -> None:
    weight = kernels.pack_linear(floats(rng, 70, 100), format)
    memory = aligned(weight.panels())
    for module in (_backend.ops, reference):
        again = module.map_linear(70, 100, format, memory)
        assert np.array_equal(again.dequantize(), weight.dequantize())
    mapped = _backend.ops.map_linear(70, 100, format, memory)
    with pytest.raises(ArgumentError, match="mapped from a file and cannot be changed"):
        mapped.set_rows(0, floats(rng, 1, 100))
    with pytest.raises(ArgumentError, match="^panels: must begin at a multiple of 64"):
        _backend.ops.map_linear(70, 100, format, memory[4:])


@pytest.mark.parametrize("module", [_backend.ops, reference], ids=["native", "reference"])
def test_wrong_bytes_are_not_mapped(module: Any) -> None:
    size = module.LinearWeight(70, 100, "int8").nbytes
    with pytest.raises(ArgumentError, match=f"^panels: holds {size - 64} bytes, .* need {size}"):
        module.map_linear(70, 100, "int8", aligned(np.zeros(size - 64, np.uint8)))
    with pytest.raises(ArgumentError, match="^panels: must be contiguous bytes"):
        module.map_linear(70, 100, "int8", None)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("format", kernels.FORMATS)
def test_experts_can_be_mapped_again(rng: np.random.Generator, format: str, bias: bool) -> None:
    experts = kernels.ExpertWeights(3, 70, 50, format, bias)
    for expert in range(3):
        shapes = [(50, 70), (50, 70), (70, 50)] + ([(50,), (50,), (70,)] if bias else [])
        experts.set(expert, *(floats(rng, *shape) for shape in shapes))
    parts = [experts.panels(expert) for expert in range(3)]
    gate_up, down = (aligned(np.concatenate(part)) for part in zip(*parts, strict=True))
    biases = experts.biases()
    for module in (_backend.ops, reference):
        again = module.map_experts(
            3, 70, 50, format, gate_up, down, None if biases is None else aligned(biases)
        )
        assert again.nbytes == experts.nbytes
        for expert in range(3):
            for one, other in zip(
                experts.dequantize(expert), again.dequantize(expert), strict=True
            ):
                assert np.array_equal(one, other)
        assert (again.biases() is None) == (biases is None)
        assert biases is None or np.array_equal(again.biases(), biases)


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_expert_panels_are_those_of_the_reference(
    isa: str, rng: np.random.Generator, format: str
) -> None:
    packed, plain = (m.ExpertWeights(2, 70, 50, format) for m in (kernels, reference))
    for expert in range(2):
        matrices = [floats(rng, *shape) for shape in ((50, 70), (50, 70), (70, 50))]
        for target in (packed, plain):
            target.set(expert, *matrices)
        for got, expected in zip(packed.panels(expert), plain.panels(expert), strict=True):
            assert np.array_equal(got, expected)
        bound = 2 * ERRORS[format] + 1e-9
        for got, matrix in zip(packed.dequantize(expert), matrices, strict=True):
            assert relative_error(got, matrix) <= bound


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy of the bytes at a multiple of 64."""
    flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    memory = np.empty(flat.size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + flat.size] = flat
    return memory[start : start + flat.size]
