"""Models as tools for quantising publish them: what they mean, bit for bit, and how it is held."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay import kernels
from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_config import QUANTIZATION_FILE, read_shape
from inlay.core.weight_format import format_named
from inlay.models.checkpoint import open_checked, open_tensors
from inlay.models.conversion.convert import convert
from inlay.models.formats import file_bytes, packed_bytes
from inlay.models.model import load_model
from inlay.models.published.rows import QuantizedRows, columns_of, floats_of
from inlay.models.torch_arrays import tensor_of
from tests.support.model_driver import ModelDriver
from tests.support.published_methods import PUBLISHED, awq, gptq, mxfp8, packed
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model

TOKENS = [5, 400, 33, 2, 17, 250, 9, 8, 301, 77, 140]
# What holds experts and the rest of each. Where it is not as it is, floats are between.
HELD = {
    "awq": "uint4:g32",
    "awq_sym": "int4:g32",
    "gptq": "int4:g32",
    "gptq_asym": "uint4:g32",
    "gptq_v2": "uint4:g32",
    "gptq_order": "int8:g32",
    "gptq_3_bits": "int4:g32",
    "gptq_8_bits": "int8:g32",
    "auto_round": "int4:g128",
    "packed_asym": "uint4:g32",
    "packed_order": "int8:g32",
    "packed_8_bits": "int8",
    "int8_rows": "int8",
    "fp8_rows": "fp8:g128",
    "fp8_whole": "fp8:g128",
    "fp8_inverse": "fp8:g128",
    "mxfp8": "fp8:g128",
    "nvfp4": "int8:g32",
    "nvfp4_modelopt": "int8:g32",
    "mxfp4_rows": "mxfp4",
    "nf4": "int8:g32",
    "nf4_plain": "int8:g32",
    "bnb_int8": "int8",
}
AGAIN = ("gptq_order", "packed_order", "nvfp4", "nvfp4_modelopt", "nf4", "nf4_plain")
MATRIX = "model.layers.0.mlp.experts.1.down_proj.weight"


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each method a directory `NAME` of codes, and `NAME-floats`."""
    base = tmp_path_factory.mktemp("published")
    config: dict[str, Any] = {"num_hidden_layers": 1, "num_experts": 2, "num_experts_per_tok": 2}
    config["moe_intermediate_size"] = 64
    source = make_tiny_model(base / "source", tokenizer="none", dtype="bfloat16", **config)
    for name in PUBLISHED:
        quantize_files(source, base / name, base / f"{name}-floats", name)
    return base


def logits(directory: Path, **options: Any) -> torch.Tensor:
    return ModelDriver(load_model(directory, **options)).prefill(TOKENS, (4,))


def test_each_has_its_line() -> None:
    assert HELD.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_bits_as_their_floats(all_cases: Path, name: str) -> None:
    quantized, floats = all_cases / name, all_cases / f"{name}-floats"
    tensors, _ = open_checked(quantized, read_shape(quantized))
    for matrix, meant in load_file(floats / "model.safetensors").items():
        whole = tensor_of(floats_of(tensors.get(matrix)))
        assert torch.equal(whole.float(), meant.float()), matrix
        for part in (slice(3, 11), slice(17, 32), slice(1, 30, 3)):
            some = tensor_of(np.ascontiguousarray(floats_of(tensors.get(matrix, part))))
            assert torch.equal(some, whole[part]), (matrix, part)
    for weight_format in ("float32", "bfloat16"):
        options = {"weight_format": weight_format}
        assert torch.equal(logits(quantized, **options), logits(floats, **options))


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_they_are_held(all_cases: Path, name: str) -> None:
    shape = read_shape(all_cases / name)
    stored = shape.quantization
    assert stored is not None
    assert (stored.weight_format, stored.rest, stored.head) == (HELD[name], None, None)
    assert stored.attention == HELD[name] and stored.again == (name in AGAIN)
    model = load_model(all_cases / name)
    assert model.weight_format == HELD[name]
    exact = logits(all_cases / f"{name}-floats", weight_format="float32")
    assert float((logits(all_cases / name) - exact).norm() / exact.norm()) < 0.05
    size = sum(one.nbytes for one in load_file(all_cases / name / "model.safetensors").values())
    # In such small rows what is beside the codes takes up to a tenth.
    assert 0.85 * size <= file_bytes(shape) <= 1.05 * size
    held = format_named(HELD[name]).bytes_per_weight
    experts = shape.experts * shape.expert_parameters
    assert packed_bytes(shape, HELD[name]) >= experts * held


@pytest.mark.parametrize("name", PUBLISHED)
def test_kernels_hold_what_codes_mean(all_cases: Path, name: str) -> None:
    """Exactly but for scales, which become bfloat16 beside integers."""
    directory = all_cases / name
    rows = open_tensors(directory, read_shape(directory)).get(MATRIX)
    assert isinstance(rows, QuantizedRows) == (name not in AGAIN)
    if not isinstance(rows, QuantizedRows):
        return
    assert rows.weight_format == HELD[name]
    weight = kernels.LinearWeight(*rows.shape, rows.weight_format)
    weight.set_rows_quantized(0, *rows.for_kernels())
    held, meant = torch.from_numpy(weight.dequantize()), torch.from_numpy(rows.float())
    if HELD[name] in ("fp8:g128", "mxfp4"):
        assert torch.equal(held, meant)
    else:
        assert ((held - meant).abs() <= meant.abs() / 256).all() and (held != 0).any()


@pytest.mark.parametrize("name", ["awq", "gptq_order", "bnb_int8", "nvfp4"])
def test_packed(all_cases: Path, name: str, tmp_path: Path) -> None:
    convert(all_cases / name, tmp_path / "packed", weight_format="auto")
    assert torch.equal(logits(tmp_path / "packed"), logits(all_cases / name))


def test_groups_larger_than_those_of_kernels(tmp_path: Path) -> None:
    """Their scale is repeated; of whole rows, too, and where rows end within a group."""
    weight = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    for make, options, held in (
        (gptq, {"group": 128}, "int4:g128"),
        (gptq, {"group": 256}, "int4:g128"),
        (gptq, {"group": 64}, "int4:g64"),
        (gptq, {"group": 128, "bits": 8}, "int8:g32"),
        (gptq, {"group": 128, "bits": 2}, "int4:g128"),
        (gptq, {"group": -1, "symmetric": False}, "uint4:g32"),
        (awq, {"group": 128}, "uint4:g32"),
        (packed, {"group": 128, "bits": 8}, "int8:g32"),
    ):
        rows, meant = read_one(tmp_path, make, weight, options)
        assert isinstance(rows, QuantizedRows) and rows.weight_format == held, options
        assert torch.equal(torch.from_numpy(rows.float()), meant), options
        linear = kernels.LinearWeight(16, 256, held)
        linear.set_rows_quantized(0, *rows.for_kernels())
        off = (torch.from_numpy(linear.dequantize()) - meant).abs()
        assert (off <= meant.abs() / 256).all(), options
        half = columns_of(rows, slice(128, 256)) if options["group"] != 256 else rows
        assert torch.equal(torch.from_numpy(floats_of(half)), meant[:, -half.shape[1] :]), options


def test_all_rows_have_the_format_of_the_matrix(tmp_path: Path) -> None:
    """Where the zero points of some are the middle, and of others not."""
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)).clamp(-0.8, 0.7)
    weight[:, ::32], weight[:, 1::32] = -0.8, 0.7
    weight[8, 32:] = weight[8, 32:].clamp(min=-0.4)
    for make, options in ((awq, {}), (gptq, {"symmetric": False}), (packed, {"symmetric": False})):
        rows, meant = read_one(tmp_path, make, weight, options, slice(0, 8))
        assert rows.weight_format == "uint4:g32"
        assert (rows.scales[:, 1] == -8 * rows.scales[:, 0]).all()
        assert torch.equal(torch.from_numpy(rows.float()), meant[:8])


def read_one(
    directory: Path,
    make: Any,
    weight_NK: torch.Tensor,
    options: dict[str, Any],
    rows: slice | None = None,
) -> tuple[Any, torch.Tensor]:
    """A matrix by itself, or some rows of it, written and read."""
    from inlay.core.quantization import Quantization
    from inlay.models.published.files import QuantizedFiles
    from inlay.models.weight_files import WeightFiles

    tensors, meant = make("x.weight", weight_NK, **options)
    save_file(tensors, directory / "model.safetensors")
    method = {packed: "compressed-tensors", mxfp8: "compressed-tensors"}.get(make, make.__name__)
    about = Quantization(method=method, weight_format="", group=1, file_bytes=1.0)
    files = QuantizedFiles(WeightFiles(directory, quantized=True), about)
    return files.get("x.weight", rows), meant


def test_mxfp8_with_scales_far_apart(tmp_path: Path) -> None:
    """Groups of 32 get one scale per 128: the least of a smaller one change by 2^-18 of the largest
    weight there.
    """
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    weight[:, 32:64] *= 2**-9
    weight[:, 200:] *= 2**-4
    rows, meant = read_one(tmp_path, mxfp8, weight, {})
    assert torch.equal(torch.from_numpy(rows.float()), meant)
    linear = kernels.LinearWeight(8, 256, "fp8:g128")
    linear.set_rows_quantized(0, *rows.for_kernels())
    off = (torch.from_numpy(linear.dequantize()) - meant).abs().view(8, 2, 128)
    largest = meant.abs().view(8, 2, 128).amax(-1)
    assert (off.amax(-1) <= largest * 2**-17).all() and off[:, 0, 32:64].max() > 0


def test_an_output_matrix_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be quantised, too."""
    source = make_tiny_model(
        tmp_path / "source", "llama", tokenizer="none", tie_word_embeddings=False
    )
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", "gptq")
    directory = tmp_path / "quantized"
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["lm_head"] = True
    (directory / "config.json").write_text(json.dumps(config))
    tensors, floats = (
        load_file(tmp_path / name / "model.safetensors") for name in ("quantized", "floats")
    )
    made, floats["lm_head.weight"] = gptq("lm_head.weight", tensors.pop("lm_head.weight"))
    save_file(tensors | made, directory / "model.safetensors")
    save_file(floats, tmp_path / "floats" / "model.safetensors")
    exact = logits(tmp_path / "floats", weight_format="float32")
    assert torch.equal(logits(directory, weight_format="float32"), exact)
    assert not caplog.records
    stored = read_shape(directory).quantization
    assert stored is not None and stored.head == "int4:g32"
    assert float((logits(directory) - exact).norm() / exact.norm()) < 0.05


def test_floats_that_nothing_told_of(
    all_cases: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is among 4 bits becomes 4 bits, with a line; what is quantised again has one, too."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_bytes((all_cases / "awq" / "config.json").read_bytes())
    tensors = load_file(all_cases / "awq" / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj"
    floats = load_file(all_cases / "awq-floats" / "model.safetensors")[f"{name}.weight"]
    kept = {key: one for key, one in tensors.items() if not key.startswith(name)}
    save_file(kept | {f"{name}.weight": floats.bfloat16()}, directory / "model.safetensors")
    with caplog.at_level("INFO"):
        load_model(all_cases / "awq")
        assert not caplog.records
        load_model(directory, weight_format="int8:g32")
        assert "o_proj" not in caplog.text
        load_model(directory)
        assert f"{name}.weight and 0 more are floats" in caplog.text
        load_model(all_cases / "nf4")
        assert "(bitsandbytes): they are read as floats" in caplog.text


def test_what_tools_leave_beside(all_cases: Path, tmp_path: Path) -> None:
    """Biases of zeros and scales of caches mean nothing here; other biases do."""
    directory = tmp_path / "model"
    directory.mkdir()
    tensors = load_file(all_cases / "gptq" / "model.safetensors")
    (directory / "config.json").write_bytes((all_cases / "gptq" / "config.json").read_bytes())
    attention = "model.layers.0.self_attn"
    more = {
        f"{attention}.o_proj.bias": torch.zeros(64, dtype=torch.float16),
        f"{attention}.k_proj.k_scale": torch.ones(1),
    }
    save_file(tensors | more, directory / "model.safetensors")
    assert torch.equal(logits(directory), logits(all_cases / "gptq"))
    more[f"{attention}.o_proj.bias"][3] = 1
    save_file(tensors | more, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"the weights hold .*o_proj\.bias"):
        load_model(directory)


def test_a_config_beside(all_cases: Path, tmp_path: Path) -> None:
    """What older versions of ModelOpt write, and what becomes of it where all becomes floats."""
    directory = tmp_path / "model"
    directory.mkdir()
    source = all_cases / "nvfp4_modelopt"
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config))
    about = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt"}, "quantization": about}
    (directory / QUANTIZATION_FILE).write_text(json.dumps(beside))
    weights = (source / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(weights)
    assert read_shape(directory).quantization == read_shape(source).quantization
    assert torch.equal(logits(directory), logits(source))
    convert(directory, tmp_path / "bf16", to="bf16")
    assert read_shape(tmp_path / "bf16").quantization is None


def test_damage_is_named(all_cases: Path, tmp_path: Path) -> None:
    def load_with(name: str, changes: dict[str, Any]) -> None:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        tensors = load_file(all_cases / name / "model.safetensors") | changes
        kept = {key: one for key, one in tensors.items() if one is not None}
        (directory / "config.json").write_bytes((all_cases / name / "config.json").read_bytes())
        save_file(kept, directory / "model.safetensors")
        load_model(directory, weight_format="float32")

    module = MATRIX.removesuffix(".weight")
    with pytest.raises(ModelFileError, match=r"the weights lack .*down_proj\.qzeros"):
        load_with("awq", {f"{module}.qzeros": None})
    with pytest.raises(ModelFileError, match=r"qweight \[64, 9\] instead of \[64, 8\]"):
        load_with("awq", {f"{module}.qweight": torch.zeros(64, 9, dtype=torch.int32)})
    with pytest.raises(ModelFileError, match=r"down_proj\.g_idx \[7\] instead of \[64\]"):
        load_with("gptq", {f"{module}.g_idx": torch.zeros(7, dtype=torch.int32)})
    with pytest.raises(ModelFileError, match=r"g_idx names groups from -1 to 1, and there are 2"):
        load_with("gptq", {f"{module}.g_idx": torch.tensor([-1, 1] * 32, dtype=torch.int32)})
    with pytest.raises(ModelFileError, match="has dtype float32 instead of uint8"):
        load_with("nvfp4_modelopt", {MATRIX: torch.zeros(64, 32)})
    with pytest.raises(ModelFileError, match="expert 1 of layer 0 cannot be packed"):
        load_with("bnb_int8", {f"{module}.SCB": torch.full((64,), torch.inf)})
    state = f"{MATRIX}.quant_state.bitsandbytes__nf4"
    with pytest.raises(ModelFileError, match="bitsandbytes__nf4 is not JSON"):
        load_with("nf4", {state: torch.tensor([1, 2, 3], dtype=torch.uint8)})


def test_they_are_not_written(all_cases: Path) -> None:
    from inlay.models.published.files import QuantizedFiles
    from inlay.models.weight_names import Expected

    for name in ("awq", "nf4", "fp8_rows"):
        tensors = open_tensors(all_cases / name, read_shape(all_cases / name))
        assert isinstance(tensors, QuantizedFiles)
        with pytest.raises(UnsupportedModelError, match="is read and not written: export floats"):
            tensors.stored(Expected(MATRIX, (64, 64)))


@pytest.mark.parametrize(
    ("architecture", "name", "config"),
    [
        ("llama", "awq", {"tie_word_embeddings": False}),
        ("llama", "nf4", {"hidden_size": 48, "head_dim": 12, "intermediate_size": 88}),
        ("mixtral", "gptq", {"num_local_experts": 2}),
        ("deepseek_v3", "gptq_8_bits", {"q_lora_rank": 32, "v_head_dim": 16}),
        ("glm4_moe", "fp8_rows", {"hidden_size": 200}),
    ],
)  # fmt: skip
def test_other_models(architecture: str, name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Without experts, with others' names, latent attention, and rows that blocks do not divide."""
    source = make_tiny_model(tmp_path / "source", architecture, tokenizer="none", **config)
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", name)
    exact = logits(tmp_path / "floats", weight_format="float32")
    assert torch.equal(logits(tmp_path / "quantized", weight_format="float32"), exact)
    off = logits(tmp_path / "quantized") - exact
    assert 0 < float(off.norm() / exact.norm()) < 0.05
