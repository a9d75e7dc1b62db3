"""Loading: what is read, how it is held, and what is said when something is wrong."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay import kernels
from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.core.model_config import read_shape, shape_of
from inlay.kernels import _backend
from inlay.models import backends as backends_module
from inlay.models import native_ops as native_ops_module
from inlay.models import torch_ops as torch_ops_module
from inlay.models.formats import packed_bytes
from inlay.models.model import Model, load_model
from inlay.models.placed import Placed
from inlay.models.tensor_weights import open_checkpoint
from inlay.models.torch_ops import TorchOps
from inlay.models.weight_files import WeightFiles
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

SHARD = "model.safetensors"


def tiny(directory: Path, architecture: str = "qwen3_moe", **options: Any) -> Path:
    return make_tiny_model(directory, architecture, **{"tokenizer": "none"} | options)


def edit(directory: Path, change: Any) -> None:
    tensors = load_file(directory / SHARD)
    change(tensors)
    save_file(tensors, directory / SHARD)


def logits(model: Model) -> torch.Tensor:
    return ModelDriver(model).prefill([1, 2, 3, 400, 5])


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_both_spellings_of_experts_and_shards(tmp_path: Path, backend: str) -> None:
    one = tiny(tmp_path / "one")
    tensors = load_file(one / SHARD)
    fused = tiny(tmp_path / "fused", expert_names="fused")

    def fuse(target: dict[str, torch.Tensor]) -> None:
        for name in target:
            if name in tensors:
                target[name] = tensors[name]
        for layer in range(2):
            experts = f"model.layers.{layer}.mlp.experts"
            parts = [
                {p: tensors[f"{experts}.{e}.{p}_proj.weight"] for p in ("gate", "up", "down")}
                for e in range(8)
            ]
            target[f"{experts}.gate_up_proj"] = torch.stack(
                [torch.cat((part["gate"], part["up"])) for part in parts]
            )
            target[f"{experts}.down_proj"] = torch.stack([part["down"] for part in parts])

    edit(fused, fuse)
    sharded = tiny(tmp_path / "sharded", shards=4)
    expected = logits(load_model(one, backend=backend))
    assert torch.equal(logits(load_model(fused, backend=backend)), expected)
    assert torch.equal(logits(load_model(sharded, backend=backend)), expected)


def test_surplus_that_is_known(tmp_path: Path) -> None:
    """Old checkpoints hold computed tables, and tied models sometimes their head."""
    expected = logits(load_model(tiny(tmp_path / "plain", "llama")))
    directory = tiny(tmp_path / "old", "llama")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit(directory, add)
    assert torch.equal(logits(load_model(directory)), expected)


def test_wrong_tensors(tmp_path: Path) -> None:
    directory = tiny(tmp_path / "missing", "llama")
    edit(
        directory, lambda t: [t.pop(f"model.layers.1.mlp.{p}_proj.weight") for p in ("up", "down")]
    )
    with pytest.raises(ModelFileError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight, model"):
        load_model(directory)

    directory = tiny(tmp_path / "surplus", "llama")
    edit(directory, lambda t: t.update({"model.layers.0.self_attn.sinks": torch.ones(4)}))
    with pytest.raises(ModelFileError, match=r"hold model\.layers\.0\.self_attn\.sinks, which"):
        load_model(directory)

    directory = tiny(tmp_path / "shape", "llama")
    edit(directory, lambda t: t.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight \[63\] instead of \[64\]"):
        load_model(directory)

    directory = tiny(tmp_path / "dtype", "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    edit(directory, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(UnsupportedModelError, match=r"up_proj\.weight has dtype F8_E4M3"):
        load_model(directory)


def test_damaged_files(tmp_path: Path) -> None:
    directory = tiny(tmp_path / "cut", "llama")
    data = (directory / SHARD).read_bytes()
    for damaged in (
        data[:-100],
        data[:50],
        b"",
        b"\xff" * 8 + data[8:],
        data[:20] + b"x" + data[21:],
    ):
        (directory / SHARD).write_bytes(damaged)
        with pytest.raises(ModelFileError, match="cut off or damaged.*download it again"):
            load_model(directory)
    (directory / SHARD).unlink()
    with pytest.raises(ModelNotFoundError, match=r"holds no \*\.safetensors"):
        load_model(directory)
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin but no \*\.safetensors"):
        load_model(directory)


@pytest.mark.parametrize("weight_format", ["auto", "int8"])
def test_weights_that_are_not_finite_are_the_files_fault(
    tmp_path: Path, weight_format: str
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.o_proj.weight"][3, 2] = math.inf

    edit(tiny(tmp_path), spoil)
    with pytest.raises(ModelFileError, match=r"output of layer 1 .*row 3 .*the file is damaged"):
        load_model(tmp_path, weight_format=weight_format)


def test_a_variant_that_cannot_run_is_not_the_files_fault(tmp_path: Path) -> None:
    if not _backend.is_native:
        pytest.skip("needs the extension")
    before = kernels.selected_isa()
    _backend.ops.request_isa("nonsense")
    try:
        with pytest.raises(ArgumentError, match="^INLAY_ISA: 'nonsense' is not a kernel variant"):
            load_model(tiny(tmp_path), weight_format="int8")
    finally:
        _backend.ops.request_isa(before)


def test_an_index_may_name_files_that_are_not_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tiny(tmp_path, shards=3)
    expected = logits(load_model(directory))
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"]["model.layers.99.draft.weight"] = "draft.safetensors"
    index_file.write_text(json.dumps(index))
    assert torch.equal(logits(load_model(directory)), expected)
    assert "names model.layers.99.draft.weight, which its files do not hold" in caplog.text
    for file in directory.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelNotFoundError, match="lacks all of 4 weight files: draft.safetensors"):
        load_model(directory)


def test_parts_without_an_index_are_counted(tmp_path: Path) -> None:
    directory = tiny(tmp_path, shards=3)
    expected = logits(load_model(directory))
    (directory / "model.safetensors.index.json").unlink()
    assert torch.equal(logits(load_model(directory)), expected)
    (directory / "model-00003-of-00003.safetensors").unlink()
    message = "has no model.safetensors.index.json and lacks model-00003-of-00003.safetensors:"
    with pytest.raises(ModelNotFoundError, match=message):
        load_model(directory)


def test_an_embedding_serves_as_the_head_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tied = tiny(tmp_path / "tied", "qwen3", tie_word_embeddings=True)
    expected = logits(load_model(tied, weight_format="float32"))
    assert "is taken as it" not in caplog.text
    for number, said in enumerate((False, ...)):
        directory = tiny(tmp_path / str(number), "qwen3", tie_word_embeddings=said)
        (tied / SHARD).replace(directory / SHARD)
        tied = directory
        assert torch.equal(logits(load_model(directory, weight_format="float32")), expected)
        assert "the weights hold no lm_head.weight: model.embed_tokens.weight is" in caplog.text
        caplog.clear()


def test_a_head_that_was_lost_is_no_head_that_was_tied(tmp_path: Path) -> None:
    directory = tiny(tmp_path, "qwen3", tie_word_embeddings=False, shards=2)
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    file = directory / index["weight_map"]["lm_head.weight"]
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelFileError, match=r"the index places lm_head\.weight in files that do"):
        load_model(directory)


@pytest.mark.parametrize("weight_format", ["auto", "float32", "int8"])
def test_rows_of_no_token_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, weight_format: str
) -> None:
    directory = tiny(tmp_path, "qwen3", tie_word_embeddings=False)
    expected = logits(load_model(directory, weight_format=weight_format))

    def pad(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = torch.cat((tensors[name], torch.full((64, 64), 100.0)))

    edit(directory, pad)
    assert torch.equal(logits(load_model(directory, weight_format=weight_format)), expected)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert (
            f"{name} has 576 rows and config.json a vocab_size of 512: the last 64" in caplog.text
        )


def test_damaged_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tiny(tmp_path, shards=3)
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    (directory / "model-00002-of-00003.safetensors").rename(directory / "aside")
    with pytest.raises(ModelNotFoundError, match="lacks 1 of 3 weight files: model-00002-of-00003"):
        load_model(directory)
    (directory / "aside").rename(directory / "model-00002-of-00003.safetensors")
    index["weight_map"]["model.ghost.weight"] = "model-00001-of-00003.safetensors"
    index_file.write_text(json.dumps(index))
    load_model(directory)
    assert "index.json names model.ghost.weight, which its files do not hold" in caplog.text
    norm = index["weight_map"]["model.norm.weight"]
    tensors = load_file(directory / norm)
    del tensors["model.norm.weight"]
    save_file(tensors, directory / norm)
    with pytest.raises(
        ModelFileError, match=r"places model\.norm\.weight in files that do not hold"
    ):
        load_model(directory)
    index["weight_map"]["model.ghost.weight"] = "../../etc/passwd"
    index_file.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="outside the directory"):
        load_model(directory)
    index_file.write_text('{"metadata": {}}')
    with pytest.raises(ModelFileError, match=r"index\.json is damaged"):
        load_model(directory)
    for names in ({"a": 1}, {"a": {}}, {"a": 1, "b": "x.safetensors"}):
        index_file.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(ModelFileError, match="does not give a file name for each tensor"):
            load_model(directory)


def test_devices_and_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny(tmp_path, dtype="bfloat16")
    with pytest.raises(UnsupportedModelError, match="device 'tpu' is not supported"):
        load_model(directory, device="tpu")
    with pytest.raises(UnsupportedModelError, match="weight_format 'int3'.*auto, float32"):
        load_model(directory, weight_format="int3")
    with pytest.raises(UnsupportedModelError, match="backend 'jax'"):
        load_model(directory, backend="jax")
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="finds no CUDA device"):
            load_model(directory, device="cuda")
    wide = load_model(directory, weight_format="float32")
    assert wide.weight_format == "float32" and wide.kv_format().dtype == "float32"
    narrow = load_model(directory)
    assert narrow.weight_format == "bfloat16" and narrow.kv_format().dtype == "bfloat16"
    with pytest.raises(ConfigError, match="kv dtype 'float16' is not supported on cpu"):
        narrow.kv_format(dtype="float16")
    monkeypatch.setattr(native_ops_module, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match="need .* of memory on cpu, and 1000 B are free") as no:
        load_model(directory)
    assert "even weight_format int4:g128 would need" in str(no.value)
    needed = packed_bytes(narrow.shape, "int8")
    monkeypatch.setattr(native_ops_module, "free_memory_bytes", lambda: needed)
    with pytest.raises(ResourceError, match="or weight_format int8 would need"):
        load_model(directory)
    assert load_model(directory, weight_format="int8").weight_format == "int8"


@pytest.mark.parametrize(
    ("given", "name"),
    [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")],
)
def test_a_gpu_without_a_number_is_the_first(given: str, name: str, tmp_path: Path) -> None:
    """A placement takes names with a number alone."""
    ops = TorchOps(torch.device(given))
    assert ops.device == name
    placed = Placed.whole(ops, read_shape(tiny(tmp_path)))
    assert placed.placement.devices == (name,)


def test_what_a_gpu_cannot_hold_a_cpu_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny(tmp_path)
    shape = load_model(directory).shape
    monkeypatch.setattr(torch_ops_module, "device_free_bytes", lambda device: 1000)
    here = packed_bytes(shape, "int4:g32")
    monkeypatch.setattr(backends_module, "free_memory_bytes", lambda: here)
    placed = Placed.whole(TorchOps(torch.device("cuda:0")), shape)
    opened = open_checkpoint(directory, shape, placed)
    with pytest.raises(ResourceError, match="on cuda:0, and 1000 B are free") as no:
        backends_module.check_memory(directory, opened, shape, placed, packed=False)
    assert re.search(
        r"even weight_format \w*float16 would need .*; on device cpu, where .* are free, "
        "weight_format int4:g32 would need",
        str(no.value),
    )


def test_fingerprint(tmp_path: Path) -> None:
    one = tiny(tmp_path / "one")
    first = load_model(one).fingerprint
    assert len(first) == 32 and first == load_model(one).fingerprint
    assert first == load_model(tiny(tmp_path / "same")).fingerprint
    assert first != load_model(tiny(tmp_path / "seed", seed=1)).fingerprint
    assert first != load_model(tiny(tmp_path / "rope", rope_theta=5000.0)).fingerprint
    edit(one, lambda t: t["model.norm.weight"].add_(1e-3))
    assert first != load_model(one).fingerprint


def test_files_are_mapped(tmp_path: Path) -> None:
    """Tensors are arrays of the file, so loading needs no second copy."""
    files = WeightFiles(tiny(tmp_path))
    name = "model.embed_tokens.weight"
    assert files.get(name).ctypes.data == files.get(name).ctypes.data


def config_of(architecture: str = "qwen3_moe", **changes: Any) -> dict[str, Any]:
    config = {
        "model_type": architecture,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    } | changes
    return {key: value for key, value in config.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_type": "gpt2"}, UnsupportedModelError, "'gpt2' is not supported; supported are"),
        ({"model_type": ...}, ModelFileError, "lacks 'model_type'"),
        ({"hidden_size": ...}, ModelFileError, "lacks 'hidden_size'"),
        ({"hidden_size": 0}, ModelFileError, "hidden_size is 0"),
        ({"hidden_size": "64"}, ModelFileError, "hidden_size is '64'"),
        ({"hidden_size": 2**40}, ModelFileError, "hidden_size is"),
        ({"num_hidden_layers": True}, ModelFileError, "num_hidden_layers is True"),
        ({"num_hidden_layers": 2**31 - 1}, ModelFileError, "not a whole number in 1..10000"),
        ({"num_experts": 10**9}, ModelFileError, "num_experts is 1000000000, not .* in 0..65536"),
        ({"rms_norm_eps": math.nan}, ModelFileError, "rms_norm_eps is nan"),
        ({"rope_theta": math.inf}, ModelFileError, "rope_theta is inf"),
        ({"num_key_value_heads": 3}, ModelFileError, "not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 63}, ModelFileError, "63 is not a multiple of num_attention_heads 4"),
        ({"head_dim": 15}, UnsupportedModelError, "15 of 15 elements of a head would be rotated"),
        ({"num_experts_per_tok": 9}, ModelFileError, "9 is above num_experts 8"),
        ({"mlp_only_layers": "1"}, ModelFileError, "mlp_only_layers"),
        ({"norm_topk_prob": 1}, ModelFileError, "norm_topk_prob is 1, not true or false"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "hqq"}}, UnsupportedModelError, "with 'hqq'"),
        ({"rope_scaling": {"type": "su"}}, UnsupportedModelError, "rope type 'su'"),
        ({"rope_scaling": {"type": "linear"}}, ModelFileError, "lacks 'factor'"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, ModelFileError, "low_freq_factor"),
        ({"rope_parameters": {"full_attention": {}}}, UnsupportedModelError, "one flat table"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["chunked"] * 4},
            UnsupportedModelError,
            "layer_types must name 4 layers",
        ),
    ],
)  # fmt: skip
def test_bad_config(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        shape_of(config_of(**changes))


def test_kv_heads_that_a_config_leaves_out() -> None:
    """As in `transformers`, whose default differs by architecture."""
    for architecture, expected in (("qwen3_moe", 4), ("mistral", 8), ("llama", 16)):
        config = config_of(architecture, num_attention_heads=16, num_key_value_heads=...)
        assert shape_of(config).kv_heads == expected


def test_bad_config_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model directory"):
        read_shape(tmp_path / "nowhere")
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="config.json, line 1: is no JSON"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match="config.json: is no JSON that can be read"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFileError, match="not a JSON object"):
        read_shape(tmp_path)


def test_counts(tmp_path: Path) -> None:
    """Parameter counts are those of the files."""
    for name, options in {
        "moe": {"decoder_sparse_step": 2},
        "untied": {"architecture": "llama", "tie_word_embeddings": False, "attention_bias": True},
        "bias": {"architecture": "llama", "mlp_bias": True},
    }.items():
        directory = tiny(tmp_path / name, **options)
        shape = read_shape(directory)
        tensors = load_file(directory / SHARD)
        assert shape.parameters == sum(tensor.numel() for tensor in tensors.values()), name
    shape = shape_of(config_of())
    assert shape.parameters - shape.active_parameters == 64 * 512 + 4 * 6 * 3 * 64 * 32
    assert shape.kv_token_bytes() == 2 * 4 * 2 * 16 * 2


def test_context_after_stretching() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    shape = shape_of(config_of("qwen3", rope_scaling=yarn))
    assert shape.max_context_tokens == 2048
    assert shape.head_dim == 128  # the default of this architecture
    assert shape.rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
