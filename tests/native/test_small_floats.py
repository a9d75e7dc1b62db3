"""fp8 and mxfp4: every code of a file's own bytes is kept, and what is not a number is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError, NotFiniteError
from inlay.kernels import PackedFile, reference
from tests.native.cases import floats
from tests.support.packed_files import write_packed

MODULES = pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def e4m3(codes: np.ndarray) -> np.ndarray:
    """What PyTorch takes the codes for."""
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def products(weight: kernels.LinearWeight) -> list[np.ndarray]:
    """Each weight times 1, for one row and for many: exact, as nothing is added to it."""
    n, k = weight.shape
    x = np.eye(k, dtype=np.float32)
    together, alone = np.empty((k, n), np.float32), np.empty((k, n), np.float32)
    kernels.linear(x, weight, together)
    for i in range(k):
        kernels.linear(x[i : i + 1], weight, alone[i : i + 1])
    return [together.T, alone.T]


def e4m3_rows(rng: np.random.Generator, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of all numbers and scales of all sizes."""
    codes = rng.integers(0, 256, (n, k)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    scales = np.exp2(rng.uniform(-60, 60, (n, -(-k // 128)))).astype(np.float32)
    return codes, scales * np.where(rng.random(scales.shape) < 0.5, -1, 1).astype(np.float32)


@MODULES
def test_every_e4m3_is_kept(isa: str, module: Any) -> None:
    codes = np.arange(256, dtype=np.uint8)[None]
    codes[(codes & 0x7F) == 0x7F] = 0
    scales = np.array([[1, -0.7]], np.float32)
    weight = module.LinearWeight(1, 256, "fp8:g128")
    weight.set_rows_quantized(0, codes, scales)
    expected = e4m3(codes) * np.repeat(scales, 128, axis=1)
    assert np.array_equal(weight.dequantize(), expected)
    if module is kernels:
        for result in products(weight):
            assert np.array_equal(result, expected)


@MODULES
def test_every_e2m1_is_kept_at_every_scale(isa: str, module: Any) -> None:
    # All pairs of neighbours at each scale whose weights are finite.
    packed = np.tile(np.arange(256, dtype=np.uint8), (253, 1))
    scales = np.repeat(np.arange(253, dtype=np.uint8)[:, None], 16, axis=1)
    weight = module.LinearWeight(253, 512, "mxfp4")
    weight.set_rows_quantized(0, packed, scales)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(253, 512)
    exact = E2M1[codes] * np.exp2(np.arange(253.0) - 127)[:, None]
    # What is subnormal becomes zero.
    expected = np.where(np.abs(exact) < 2.0**-126, 0, exact).astype(np.float32)
    assert np.array_equal(weight.dequantize(), expected)
    if module is kernels:
        for result in products(weight):
            assert np.array_equal(result, expected)


def test_mxfp4_gives_the_bits_of_its_weights_in_bfloat16(
    isa: str, rng: np.random.Generator
) -> None:
    weight = kernels.pack_linear(floats(rng, 130, 700), "mxfp4")
    same = kernels.pack_linear(weight.dequantize(), "bfloat16")
    for tokens in (1, 2, 5, 40):
        x = floats(rng, tokens, 700)
        out, expected = np.empty((tokens, 130), np.float32), np.empty((tokens, 130), np.float32)
        kernels.linear(x, weight, out)
        kernels.linear(x, same, expected)
        assert np.array_equal(out, expected)


def test_rounding_to_e4m3_is_that_of_torch(isa: str, rng: np.random.Generator) -> None:
    w = floats(rng, 40, 256) * np.exp2(rng.uniform(-12, 0, (40, 256))).astype(np.float32)
    w[:, ::128] = 448  # the scale is 1
    w[:, 1:20] = e4m3(np.arange(1, 20, dtype=np.uint8)) + np.float32(2.0**-10)  # ties
    codes, scales = kernels.quantize(w, "fp8:g128")
    assert np.array_equal(scales, np.ones((40, 2), np.float32))
    expected = torch.from_numpy(w).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(codes, expected)


@MODULES
def test_rounding_to_e2m1_is_that_of_ocp(isa: str, module: Any) -> None:
    """The nearest with ties to even; what is beyond 6 becomes 6, up to the next power of two."""
    cases = {
        0.25: 0, 0.26: 0.5, 0.74: 0.5, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 2.51: 3, 3.5: 4, 5: 4,
        5.01: 6, 7.9: 6, -0.3: -0.5, -6.5: -6,
    }  # fmt: skip
    w = np.zeros((3, 32), np.float32)
    w[:, : len(cases)] = np.array(list(cases)) * np.array([[1], [2.0**-40], [2.0**90]])
    codes, scales = module.quantize(w, "mxfp4")
    assert scales[:, 0].tolist() == [127, 87, 217] and codes.shape == (3, 16)
    expected = np.array(list(cases.values()), np.float32)
    values = module.pack_linear(w, "mxfp4").dequantize()[:, : len(cases)]
    assert np.array_equal(values[0], expected)
    assert np.array_equal(values[1], expected * np.float32(2.0**-40))
    assert np.array_equal(values[2], expected * np.float32(2.0**90))


@pytest.mark.parametrize("n,k", [(1, 1), (70, 33), (200, 300), (65, 1030)])
def test_rows_of_files_are_those_of_the_reference(
    isa: str, rng: np.random.Generator, n: int, k: int
) -> None:
    packed = rng.integers(0, 256, (n, -(-k // 2))).astype(np.uint8)
    exponents = rng.integers(0, 253, (n, -(-k // 32))).astype(np.uint8)
    for format, q, scales in (
        ("fp8:g128", *e4m3_rows(rng, n, k)),
        ("mxfp4", packed, exponents),
    ):
        weights = [module.LinearWeight(n, k, format) for module in (kernels, reference)]
        for weight in weights:
            for first in range(0, n, 60):
                weight.set_rows_quantized(first, q[first : first + 60], scales[first : first + 60])
        assert np.array_equal(weights[0].panels(), weights[1].panels())
        assert np.array_equal(weights[0].dequantize(), weights[1].dequantize())


@MODULES
@pytest.mark.parametrize("format", ["int8", "int4:g32", "fp8:g128", "mxfp4"])
def test_experts_take_what_is_quantised(
    rng: np.random.Generator, module: Any, format: str, threads: None
) -> None:
    kernels.set_topology([[0]] * 2)  # two shards
    matrices = [floats(rng, *shape) for shape in ((300, 70), (300, 70), (70, 300))]
    biases = [floats(rng, size) for size in (300, 300, 70)]
    wanted, made = (module.ExpertWeights(2, 70, 300, format, True) for _ in range(2))
    wanted.set(1, *matrices, *biases)
    parts = [part for matrix in matrices for part in module.quantize(matrix, format)]
    wide = np.empty((600, parts[0].shape[1]), parts[0].dtype)
    wide[::2], wide[1::2] = parts[0], parts[2]  # gate and up in turns
    parts[0], parts[2] = wide[::2], wide[1::2]
    made.set_quantized(1, *parts, *biases)
    for got, expected in zip(made.panels(1), wanted.panels(1), strict=True):
        assert np.array_equal(got, expected)
    assert np.array_equal(made.biases(), wanted.biases())
    with pytest.raises(ArgumentError, match="^down_q_MF: "):
        made.set_quantized(0, *parts[:4], parts[4][1:], parts[5][1:])
    with pytest.raises(ArgumentError, match="^up_scales_FG: "):
        made.set_quantized(0, *parts[:3], parts[3][1:], *parts[4:])
    with pytest.raises(ArgumentError, match="^expert: "):
        made.set_quantized(2, *parts)
    with pytest.raises(ArgumentError, match="^format: 'bfloat16' has no scales"):
        module.ExpertWeights(1, 70, 300, "bfloat16").set_quantized(0, *parts)


@MODULES
def test_what_is_no_number_is_refused(module: Any) -> None:
    weight = module.LinearWeight(9, 300, "fp8:g128")
    codes, scales = np.zeros((5, 300), np.uint8), np.ones((5, 3), np.float32)
    for bad in (0x7F, 0xFF):
        wrong = codes.copy()
        wrong[3, 299], wrong[4, 0] = bad, bad
        with pytest.raises(NotFiniteError, match="^q_NK: row 3, column 299 is a NaN"):
            weight.set_rows_quantized(2, wrong, scales)
    for value in (np.nan, np.inf, 1e36):
        wrong_scales = scales.copy()
        wrong_scales[2, 1] = value
        with pytest.raises(NotFiniteError, match="^scales_NG: row 2, group 1 is a NaN, an inf"):
            weight.set_rows_quantized(2, codes, wrong_scales)
    weight = module.LinearWeight(4, 65, "mxfp4")
    packed, exponents = np.full((4, 33), 0xF7, np.uint8), np.full((4, 3), 252, np.uint8)
    weight.set_rows_quantized(0, packed, exponents)
    assert np.isfinite(weight.dequantize()).all()
    for exponent in (253, 255):
        exponents[1, 2] = exponent
        with pytest.raises(NotFiniteError, match="^scales_NG: row 1, group 2 is a NaN"):
            weight.set_rows_quantized(0, packed, exponents)
    experts = module.ExpertWeights(1, 64, 32, "mxfp4")
    parts = [np.zeros((32, 32), np.uint8), np.zeros((32, 2), np.uint8)] * 2
    parts += [np.zeros((64, 16), np.uint8), np.full((64, 1), 255, np.uint8)]
    with pytest.raises(NotFiniteError, match="^down_scales_MG: row 0, group 0"):
        experts.set_quantized(0, *parts)


@MODULES
def test_dtypes_and_sizes_are_those_of_the_format(module: Any) -> None:
    fp8, mxfp4 = module.LinearWeight(2, 65, "fp8:g128"), module.LinearWeight(2, 65, "mxfp4")
    codes, scales = np.zeros((2, 65), np.uint8), np.ones((2, 1), np.float32)
    packed, exponents = np.zeros((2, 33), np.uint8), np.zeros((2, 3), np.uint8)
    fp8.set_rows_quantized(0, codes, scales)
    mxfp4.set_rows_quantized(0, packed, exponents)
    for weight, q, s, name in (
        (fp8, codes.view(np.int8), scales, "q_NK"),
        (fp8, codes, exponents, "scales_NG"),
        (fp8, codes[:, :64].copy(), scales, "q_NK"),
        (mxfp4, codes, exponents, "q_NK"),
        (mxfp4, packed, exponents[:, :2].copy(), "scales_NG"),
        (mxfp4, packed, exponents.astype(np.float32), "scales_NG"),
        (mxfp4, packed, exponents[:1], "scales_NG"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: "):
            weight.set_rows_quantized(0, q, s)


def test_a_file_holds_the_bytes_of_its_source(rng: np.random.Generator, tmp_path: Any) -> None:
    weight = kernels.LinearWeight(70, 300, "fp8:g128")
    codes, scales = e4m3_rows(rng, 70, 300)
    weight.set_rows_quantized(0, codes, scales)
    write_packed(tmp_path / "w", {"w": weight})
    values = PackedFile(tmp_path / "w").linear("w").dequantize()
    assert np.array_equal(values, e4m3(codes) * np.repeat(scales, 128, axis=1)[:, :300])
