"""Blocks of GGUF types: held as the file has them, and multiplied as the reference does."""

from typing import Any

import numpy as np
import pytest

from inlay import _native, kernels
from inlay.core.errors import ArgumentError, NotFiniteError
from inlay.core.weight_format import BLOCK_FORMATS, format_named
from inlay.kernels import reference
from tests.native.cases import floats, routing
from tests.support.gguf_blocks import meant, random_blocks, with_scale

MODULES = pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])
TYPES = pytest.mark.parametrize("format", BLOCK_FORMATS)
# Gate and up, and down, as files mix them.
MIXES = [("q4_k", "q6_k"), ("iq2_xxs", "q2_k"), ("q8_0", "q5_1"), ("iq1_m", "iq4_xs")]


@TYPES
@MODULES
def test_each_weight_is_that_of_the_file(
    isa: str, rng: np.random.Generator, module: Any, format: str
) -> None:
    blocks = random_blocks(rng, format, 130, 768)
    weight = module.LinearWeight(130, 768, format)
    for first in range(0, 130, 50):
        weight.set_rows_blocks(first, blocks[first : first + 50])
    # Bit for bit, but that a zero has no sign here.
    assert np.array_equal(weight.dequantize(), meant(blocks, format))


@TYPES
def test_they_take_as_many_bytes_as_in_the_file(rng: np.random.Generator, format: str) -> None:
    blocks = random_blocks(rng, format, 128, 512)
    weight, plain = kernels.LinearWeight(128, 512, format), reference.LinearWeight(128, 512, format)
    weight.set_rows_blocks(0, blocks)
    plain.set_rows_blocks(0, blocks)
    assert weight.nbytes == blocks.nbytes
    assert np.array_equal(weight.panels(), plain.panels())
    copied = np.empty(weight.nbytes + 64, np.uint8)
    at = -copied.ctypes.data % 64
    copied[at : at + weight.nbytes] = weight.panels()
    for module in (_native.kernels, reference):
        mapped = module.map_linear(128, 512, format, copied[at : at + weight.nbytes])
        assert np.array_equal(mapped.dequantize(), meant(blocks, format))


@TYPES
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 40])
def test_products(isa: str, rng: np.random.Generator, format: str, tokens: int) -> None:
    blocks = random_blocks(rng, format, 100, 512)
    weight, plain = kernels.LinearWeight(100, 512, format), reference.LinearWeight(100, 512, format)
    weight.set_rows_blocks(0, blocks)
    plain.set_rows_blocks(0, blocks)
    x = floats(rng, tokens, 512)
    out, expected = np.empty((2, tokens, 100), np.float32)
    kernels.linear(x, weight, out)
    reference.linear(x, plain, expected)
    sizes = np.abs(x) @ np.abs(meant(blocks, format)).T
    # A minimum takes away most of what the integers have become.
    assert (np.abs(out - expected) <= 4e-6 * sizes).all()
    alone = np.empty((1, 100), np.float32)
    kernels.linear(x[-1:], weight, alone)
    assert np.array_equal(alone[0], out[-1])


@pytest.mark.parametrize(("format", "down_format"), MIXES)
@pytest.mark.parametrize("tokens", [1, 20])
def test_experts_with_another_format_for_down(
    isa: str, rng: np.random.Generator, tokens: int, format: str, down_format: str
) -> None:
    sizes = (4, 512, 768)
    packed = kernels.ExpertWeights(*sizes, format, True, down_format)
    plain = reference.ExpertWeights(*sizes, format, True, down_format)
    for expert in range(4):
        blocks = (
            random_blocks(rng, format, 768, 512),
            random_blocks(rng, format, 768, 512),
            random_blocks(rng, down_format, 512, 768),
        )
        biases = [floats(rng, size) for size in (768, 768, 512)]
        for target in (packed, plain):
            target.set_blocks(expert, *blocks, *biases)
        assert all(map(np.array_equal, packed.dequantize(expert), plain.dequantize(expert)))
        assert all(map(np.array_equal, packed.panels(expert), plain.panels(expert)))
    assert (packed.format, packed.down_format) == (format, down_format)
    x = floats(rng, tokens, 512) / 512
    ids, weights = routing(rng, tokens, 4, 2)
    out, expected = np.empty((2, tokens, 512), np.float32)
    kernels.moe(x, packed, ids, weights, out)
    reference.moe(x, plain, ids, weights, expected)
    # Activations between the products are rounded to 8 bits: a step of theirs may differ.
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert error < 0.01


@pytest.mark.parametrize(("format", "down_format"), MIXES)
def test_training_reads_them_as_bfloat16(
    isa: str, rng: np.random.Generator, format: str, down_format: str
) -> None:
    """As experts in bfloat16 that hold what the blocks mean; ties are rounded another way."""
    sizes = (3, 256, 512)
    packed = kernels.ExpertWeights(*sizes, format, False, down_format)
    rounded = kernels.ExpertWeights(*sizes, "bfloat16")
    for expert in range(3):
        packed.set_blocks(
            expert,
            random_blocks(rng, format, 512, 256),
            random_blocks(rng, format, 512, 256),
            random_blocks(rng, down_format, 256, 512),
        )
        rounded.set(expert, *packed.dequantize(expert))
    x, grads = floats(rng, 9, 256) / 256, floats(rng, 9, 256)
    ids, weights = routing(rng, 9, 3, 2)
    results = []
    for experts in (packed, rounded):
        out = np.empty((9, 256), np.float32)
        saved = kernels.moe_saving(x, experts, ids, weights, out)
        gradients = kernels.moe_backward(saved, grads)
        results.append((out, gradients.x_TM, gradients.routing_TK))
    for mine, theirs in zip(*results, strict=True):
        assert np.linalg.norm(mine - theirs) <= 0.005 * np.linalg.norm(theirs)


@MODULES
def test_a_scale_that_is_not_finite_is_refused(rng: np.random.Generator, module: Any) -> None:
    blocks = random_blocks(rng, "q4_k", 70, 512)
    weight = module.LinearWeight(70, 512, "q4_k")
    with pytest.raises(NotFiniteError, match=r"^blocks_NB: row 66 holds a scale that is a NaN"):
        weight.set_rows_blocks(0, with_scale(blocks, "q4_k", 66, np.inf))


@TYPES
def test_each_type_is_looked_through_for_such_scales(rng: np.random.Generator, format: str) -> None:
    if format in ("nvfp4", "iq1_m"):
        pytest.skip("its scales are no float16 that lies in one place")
    blocks = random_blocks(rng, format, 20, 512)
    weight = kernels.LinearWeight(20, 512, format)
    for bad in (np.nan, -np.inf):
        with pytest.raises(NotFiniteError, match="row 11 holds a scale"):
            weight.set_rows_blocks(0, with_scale(blocks, format, 11, bad))


@MODULES
def test_what_does_not_fit_is_refused(rng: np.random.Generator, module: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^in_features: is 300, but rows of format 'q6_k' are"):
        module.LinearWeight(64, 300, "q6_k")
    with pytest.raises(ArgumentError, match=r"down_format: 'q6_k' beside 'float32'"):
        module.ExpertWeights(2, 256, 256, "float32", False, "q6_k")
    weight = module.LinearWeight(64, 512, "q6_k")
    with pytest.raises(ArgumentError, match=r"floats do not become 'q6_k'.* set_rows_blocks"):
        weight.set_rows(0, floats(rng, 64, 512))
    with pytest.raises(ArgumentError, match=r"'q6_k' has blocks, .* set_rows_blocks"):
        weight.set_rows_quantized(0, np.zeros((1, 512), np.int8), np.zeros((1, 32), np.float32))
    with pytest.raises(ArgumentError, match=r"'q6_k' has blocks"):
        module.quantize(floats(rng, 64, 512), "q6_k")
    row_bytes = format_named("q6_k").row_bytes(512)
    with pytest.raises(ArgumentError, match=rf"^blocks_NB: .*{row_bytes} \(the bytes of a row"):
        weight.set_rows_blocks(0, np.zeros((1, row_bytes - 2), np.uint8))
    with pytest.raises(ArgumentError, match=r"^first: 2 rows from 63 on"):
        weight.set_rows_blocks(63, np.zeros((2, row_bytes), np.uint8))
    with pytest.raises(ArgumentError, match="'int8' has no blocks; use set_rows"):
        module.LinearWeight(64, 512, "int8").set_rows_blocks(0, np.zeros((1, 512), np.uint8))
