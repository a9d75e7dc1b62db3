"""Checkpoints with quantised weights: the logits of what they stand for, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inlay import kernels
from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.models.conversion.convert import convert
from inlay.models.formats import file_bytes
from inlay.models.model import load_model
from inlay.models.published.rows import QuantizedRows
from tests.support.model_driver import ModelDriver
from tests.support.quantized_files import FP8_CONFIG, INT4_CONFIG, MXFP4_CONFIG, quantize_files
from tests.support.tiny_models import make_tiny_model
from tests.unit.models.reference import load_reference, reference_logits, relative_error

TOKENS = [5, 400, 33, 2, 17, 250, 9, 8, 301, 77, 140]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("fp8", {"architecture": "deepseek_v3", "hidden_size": 160, "q_lora_rank": 136}),
    "fp8_dense": ("fp8", {"architecture": "qwen3", "hidden_size": 200, "intermediate_size": 300}),
    "int4": ("int4", {"architecture": "deepseek_v3", "hidden_size": 96}),
    "mxfp4": ("mxfp4", {"architecture": "gpt_oss", "hidden_size": 96, "intermediate_size": 64}),
}


@pytest.fixture(params=CASES)
def directories(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, str]:
    """Quantised files, the floats that they stand for, and the method."""
    method, config = CASES[request.param]
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **config)
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", method)
    return tmp_path / "quantized", tmp_path / "floats", method


def logits(directory: Path, **options: Any) -> torch.Tensor:
    return ModelDriver(load_model(directory, **options)).prefill(TOKENS, (4,))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_the_same_bits_as_their_floats(directories: tuple[Path, Path, str], backend: str) -> None:
    quantized, floats, _ = directories
    options = {"weight_format": "float32", "backend": backend}
    assert torch.equal(logits(quantized, **options), logits(floats, **options))


def test_groups_far_from_zero_take_larger_steps() -> None:
    """Kernels have no zero point beyond 128: such a group changes by up to a 240th of its place."""
    codes = torch.arange(16, dtype=torch.int8).repeat(2, 8)
    # Steps of a group, and its least weight.
    lines = [[0.1, -0.75], [0.001, -0.9], [0.0, 0.5], [0.0, 0.0], [-0.01, 4.0], [0.5, -60.0]]
    scales = torch.tensor(lines[:4] + lines[4:] + lines[:2]).view(2, 8)
    rows = QuantizedRows("uint4:g32", codes.numpy(), scales.numpy(), 32, 128)
    weight = kernels.LinearWeight(2, 128, "uint4:g32")
    weight.set_rows_quantized(0, *rows.for_kernels())
    held = torch.from_numpy(weight.dequantize()).view(2, 4, 32)
    meant = torch.from_numpy(rows.float()).view(2, 4, 32)
    places = scales[:, 1::2, None].abs()
    assert ((held - meant).abs() <= places / 240 + meant.abs() / 256).all()
    near = [(0, 0), (1, 1), (1, 2)]
    for row, group in near:
        off = (held - meant)[row, group].abs()
        assert (off <= (meant[row, group].abs() + scales[row, 2 * group]) / 256).all()


def test_as_transformers_has_their_floats(directories: tuple[Path, Path, str]) -> None:
    quantized, floats, _ = directories
    expected = reference_logits(load_reference(floats), TOKENS)
    assert relative_error(logits(quantized, weight_format="float32"), expected) < 1e-4


def test_config_json_tells_their_size(directories: tuple[Path, Path, str]) -> None:
    """Less up to a twelfth: biases are taken for experts, and shared experts here are floats."""
    quantized, floats, _ = directories
    for directory, least in ((quantized, 0.92), (floats, 1.0)):
        tensors = load_file(directory / "model.safetensors").values()
        size = sum(tensor.nbytes for tensor in tensors)
        assert least * size <= file_bytes(read_shape(directory)) <= size


def test_as_they_are(directories: tuple[Path, Path, str]) -> None:
    """Held in the files' own format where kernels have it, without a second rounding."""
    quantized, floats, _ = directories
    model = load_model(quantized)
    stored = read_shape(quantized).quantization
    assert stored is not None and model.weight_format == stored.weight_format
    exact = logits(floats, weight_format="float32")
    assert relative_error(ModelDriver(model).prefill(TOKENS, (4,)), exact) < 0.05


def test_packed(directories: tuple[Path, Path, str], tmp_path: Path) -> None:
    quantized, _, _ = directories
    convert(quantized, tmp_path / "packed", weight_format="auto")
    assert torch.equal(logits(tmp_path / "packed"), logits(quantized))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "hqq"}, "'hqq' are not supported; supported are fp8, compressed-"),
        ("int4", "quantised with 'int4' are not supported"),
        (FP8_CONFIG | {"weight_block_size": [1, 64]}, r"weight_block_size \[1, 64\] is not"),
        (FP8_CONFIG | {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        (INT4_CONFIG | {"format": "float-quantized"}, "type 'int' is not supported; supported is"),
        (INT4_CONFIG | {"config_groups": {}}, "config_groups {} is not supported"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    make_tiny_model(tmp_path, quantization_config=changes)
    with pytest.raises(UnsupportedModelError, match=message):
        read_shape(tmp_path)


@pytest.mark.parametrize("quantization", [FP8_CONFIG, INT4_CONFIG, MXFP4_CONFIG])
def test_floats_under_a_config_of_codes(tmp_path: Path, quantization: Any) -> None:
    """Some tools leave the entry when they write floats: what is there counts."""
    make_tiny_model(tmp_path / "one", tokenizer="none", quantization_config=quantization)
    make_tiny_model(tmp_path / "other", tokenizer="none")
    options = {"weight_format": "float32"}
    assert torch.equal(logits(tmp_path / "one", **options), logits(tmp_path / "other", **options))


def test_damaged_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = make_tiny_model(tmp_path / "source", "deepseek_v3", tokenizer="none")
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", "fp8")
    file = tmp_path / "quantized" / "model.safetensors"
    good = load_file(file)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"

    def load_with(changes: dict[str, Any]) -> None:
        changed = {key: one for key, one in (good | changes).items() if one is not None}
        save_file(changed, file)
        load_model(tmp_path / "quantized", weight_format="float32")

    with pytest.raises(ModelFileError, match=r"up_proj\.weight_scale_inv \[2, 1\] instead of"):
        load_with({f"{name}_scale_inv": torch.ones(2, 1)})
    with pytest.raises(ModelFileError, match="expert 3 of layer 1 cannot be packed"):
        load_with({f"{name}_scale_inv": torch.full((1, 1), torch.nan)})
    with pytest.raises(ModelFileError, match="has dtype float32 instead of float8"):
        load_with({name: good[name].float()})
    with pytest.raises(ModelFileError, match=r"the weights lack .*up_proj\.weight"):
        load_with({name: None})
