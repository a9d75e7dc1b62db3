"""Integer formats: what is held how, and that a token's logits are the same however computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from inlay import kernels
from inlay.core.errors import UnsupportedModelError
from inlay.models.formats import BYTES_PER_WEIGHT, FLOAT_FORMATS, packed_bytes
from inlay.models.model import load_model
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

SHARD = "model.safetensors"
INTEGERS = [name for name in kernels.FORMATS if name not in FLOAT_FORMATS]


def mixed(directory: Path, **options: Any) -> Path:
    """Layer 0 is dense, layer 1 has experts."""
    options = {"decoder_sparse_step": 2, "tie_word_embeddings": False} | options
    return make_tiny_model(directory, "qwen3_moe", tokenizer="none", **options)


def test_all_kernel_formats_are_known() -> None:
    assert set(kernels.FORMATS) | {"float16"} == set(BYTES_PER_WEIGHT)
    for name in kernels.FORMATS:
        weight = kernels.LinearWeight(256, 4096, name)
        assert weight.nbytes == pytest.approx(256 * 4096 * BYTES_PER_WEIGHT[name], rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("weight_format", INTEGERS)
def test_each_part_is_held_as_said(tmp_path: Path, weight_format: str, dtype: str) -> None:
    directory = mixed(tmp_path, dtype=dtype)
    tensors = load_file(directory / SHARD)
    model = load_model(directory, weight_format=weight_format)
    held = "bfloat16" if dtype == "bfloat16" else "float32"
    assert model.weight_format == weight_format
    assert model.kv_format().dtype == held
    other = "int8" if "4" in weight_format else weight_format

    def check(packed: Any, name: str, *parts: str) -> None:
        source = torch.cat([tensors[f"{part}.weight"].float() for part in parts])
        (weight,) = packed.weights
        assert weight.format == name
        expected = kernels.pack_linear(source.numpy(), name).dequantize()
        assert np.array_equal(weight.dequantize(), expected)

    weights = model._decoder._stages[0]._weights
    attention, mlp = "model.layers.{}.self_attn.{}_proj", "model.layers.{}.mlp.{}"
    for i, layer in enumerate(weights.layers):
        check(layer.attention.qkv, other, *(attention.format(i, part) for part in "qkv"))
        check(layer.attention.output, other, attention.format(i, "o"))
    dense, sparse = (layer.mlp for layer in weights.layers)
    check(dense.gate_up, weight_format, *(mlp.format(0, f"{p}_proj") for p in ("gate", "up")))
    check(dense.down, weight_format, mlp.format(0, "down_proj"))
    check(sparse.router, held, mlp.format(1, "gate"))
    check(weights.head, other, "lm_head")
    assert sparse.experts.format == weight_format
    for e in (0, 7):
        names = [mlp.format(1, f"experts.{e}.{p}_proj.weight") for p in ("gate", "up", "down")]
        for got, name in zip(sparse.experts.dequantize(e), names, strict=True):
            packed = kernels.pack_linear(tensors[name].float().numpy(), weight_format)
            assert np.array_equal(got, packed.dequantize())


def test_int4_is_an_alias(tmp_path: Path) -> None:
    directory = mixed(tmp_path)
    short, full = (load_model(directory, weight_format=name) for name in ("int4", "int4:g32"))
    assert short.weight_format == "int4:g32"
    logits = [ModelDriver(model).prefill([1, 2, 300, 4]) for model in (short, full)]
    assert torch.equal(*logits)


def test_pytorch_has_no_integers(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="'int8' is not supported with PyTorch on cpu"):
        load_model(mixed(tmp_path), weight_format="int8", backend="torch")


def test_estimated_memory(tmp_path: Path) -> None:
    """Without padding, which here is of the routers only: 8 rows fill a panel of 64."""
    directory = make_tiny_model(
        tmp_path, "qwen3_moe", tokenizer="none", dtype="bfloat16", hidden_size=256,
        moe_intermediate_size=256, head_dim=64, vocab_size=2048,
    )  # fmt: skip
    for name in kernels.FORMATS:
        model = load_model(directory, weight_format=name)
        weights = model._decoder._stages[0]._weights
        matrices = [weights.head]
        for layer in weights.layers:
            matrices += [layer.attention.qkv, layer.attention.output, layer.mlp.router]
        held = sum(matrix.nbytes for matrix in matrices)
        held += sum(layer.mlp.experts.nbytes for layer in weights.layers)
        assert packed_bytes(model.shape, name) == pytest.approx(held, rel=0.03)
