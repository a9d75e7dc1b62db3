"""GGUF files: logits of what they hold, their tokenizers, and what is said of damaged ones."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.weight_format import BLOCK_FORMATS
from inlay.models.gguf import directory as directory_module
from inlay.models.gguf import gguf_directory
from inlay.models.gguf.reader import LINK, GgufFile
from inlay.models.model import load_model
from inlay.models.source import resolve_model
from tests.support.gguf_files import TOKENIZER, gguf_and_floats, write_gguf
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

TOKENS = [5, 400, 33, 2, 17, 250, 9, 8, 301, 77, 140]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
MIXTURE = SIZES | {"architecture": "qwen3_moe", "moe_intermediate_size": 256}
# What holds a file's codes where its blocks are not taken as they are.
FORMATS = {
    Type.F32: "float32",
    Type.F16: "float32",
    Type.BF16: "bfloat16",
    Type.Q8_0: "int8:g32",
    Type.Q5_0: "int8:g32",
    Type.Q4_0: "int4:g32",
    Type.Q4_1: "uint4:g32",
    Type.Q4_K: "uint4:g32",
}
FLOATS = (Type.F32, Type.F16, Type.BF16)


def held_and_meant(directory: Path, floats: Path, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Matrices of a layer, as they are held and as the file means them."""
    weights = load_model(directory, **options)._decoder._stages[0]._weights
    layer, meant = weights.layers[1], load_file(floats / "model.safetensors")
    parts = ("gate_proj", "up_proj", "down_proj")
    for part, held in zip(parts, layer.mlp.experts.dequantize(3), strict=True):
        yield held, meant[f"model.layers.1.mlp.experts.3.{part}.weight"].numpy()
    (output,) = layer.attention.output.weights
    yield output.dequantize(), meant["model.layers.1.self_attn.o_proj.weight"].numpy()


@pytest.mark.parametrize("kind", [*FORMATS, Type.Q6_K, Type.Q5_1], ids=lambda kind: kind.name)
def test_how_it_is_held(tmp_path: Path, kind: Type) -> None:
    """As the file has it, to the last bit."""
    directory, floats = gguf_and_floats(tmp_path, kind, MIXTURE)
    model = load_model(directory)
    own = {Type.F32: "float32", Type.F16: "float16", Type.BF16: "bfloat16"}
    assert model.weight_format == own.get(kind, kind.name.lower())
    for held, meant in held_and_meant(directory, floats):
        assert np.array_equal(held, meant)


@pytest.mark.parametrize("kind", ["f16", "bf16", *BLOCK_FORMATS])
def test_each_type_at_its_own_size(tmp_path: Path, kind: str) -> None:
    """Weights to the last bit, bytes at most 1.03 of the file's, and logits of what they mean but
    for activations, which products take in 8 bits.
    """
    config = MIXTURE | {"tie_word_embeddings": False}
    directory, floats = gguf_and_floats(tmp_path, Type[kind.upper()], config)
    model = load_model(directory)
    for held, meant in held_and_meant(directory, floats):
        assert np.array_equal(held, meant)
    weights = model._decoder._stages[0]._weights
    matrices: list[Any] = [weights.head]
    for layer in weights.layers:
        matrices += [layer.attention.qkv, layer.attention.output, layer.mlp.experts]
    tensors = GgufFile((directory / LINK).readlink()).tensors
    stored = {name: one for name, one in tensors.items() if len(one.shape) > 1}
    in_file = sum(
        one.data.nbytes
        for name, one in stored.items()
        if name != "token_embd.weight" and "ffn_gate_inp" not in name
    )
    assert sum(one.nbytes for one in matrices) <= 1.03 * in_file
    assert off_by(model, directory) <= 0.06


def off_by(model: Any, directory: Path) -> float:
    """The relative error of logits beside those of float32, of half of all positions: a rounding
    can turn the choice of an expert.
    """
    exact = np.asarray(ModelDriver(load_model(directory, weight_format="float32")).prefill(TOKENS))
    off = np.asarray(ModelDriver(model, dtype="float32").prefill(TOKENS)) - exact
    return float(np.median(np.linalg.norm(off, axis=1) / np.linalg.norm(exact, axis=1)))


def test_a_mixture_of_types(tmp_path: Path) -> None:
    """As Q4_K_M has it: each matrix in its own type, some of those that are multiplied as one."""
    directory, floats = gguf_and_floats(
        tmp_path, Type.Q4_K, MIXTURE, others={"attn_v": Type.Q6_K, "ffn_down_exps": Type.Q5_1}
    )
    model = load_model(directory)
    for held, meant in held_and_meant(directory, floats):
        assert np.array_equal(held, meant)
    layer = model._decoder._stages[0]._weights.layers[1]
    assert [part.format for part in layer.attention.qkv.weights] == ["q4_k", "q6_k"]
    assert (layer.mlp.experts.format, layer.mlp.experts.down_format) == ("q4_k", "q5_1")
    assert off_by(model, directory) <= 0.06


def test_gate_and_up_of_different_types(tmp_path: Path) -> None:
    """They are one matrix here, and all three become 8 bits."""
    directory, floats = gguf_and_floats(
        tmp_path, Type.Q4_K, MIXTURE, others={"ffn_gate_exps": Type.Q6_K}
    )
    experts = load_model(directory)._decoder._stages[0]._weights.layers[0].mlp.experts
    assert (experts.format, experts.down_format) == ("int8:g32", "int8:g32")
    for held, meant in held_and_meant(directory, floats):
        groups = np.abs(meant).reshape(-1, 32).max(axis=1, keepdims=True)
        assert (np.abs(held - meant).reshape(-1, 32) <= groups / 250).all()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_how_other_formats_hold_it(tmp_path: Path, kind: Type) -> None:
    """Codes are taken over, with scales rounded to bfloat16."""
    directory, floats = gguf_and_floats(tmp_path, kind, MIXTURE)
    bound = 0 if kind in FLOATS else 2**-8
    for held, meant in held_and_meant(directory, floats, weight_format=FORMATS[kind]):
        # What lies beside a zero point is off by a part of a step, too.
        steps = np.abs(meant).reshape(-1, 32).max(axis=1, keepdims=True) / 15
        sizes = np.abs(meant).reshape(-1, 32) + (steps if FORMATS[kind] == "uint4:g32" else 0)
        assert (np.abs(held - meant).reshape(-1, 32) <= bound * sizes).all()


@pytest.mark.parametrize(
    ("kind", "weight_format", "share"),
    [
        (Type.Q4_K, "int4:g32+int8:g32", 1 / 5),
        (Type.Q4_K, "int8:g32", 1 / 250),
        (Type.Q5_1, "int8:g32", 1 / 250),
    ],
)
def test_quantised_again(tmp_path: Path, kind: Type, weight_format: str, share: float) -> None:
    """A weight is off by at most this share of the largest one of its group, as the guide says."""
    directory, floats = gguf_and_floats(tmp_path, kind, MIXTURE)
    for held, meant in held_and_meant(directory, floats, weight_format=weight_format):
        groups = np.abs(meant).reshape(-1, 32).max(axis=1, keepdims=True)
        assert (np.abs(held - meant).reshape(-1, 32) <= share * groups).all()


@pytest.mark.parametrize("kind", [*FORMATS, Type.Q6_K, Type.Q5_1], ids=lambda kind: kind.name)
def test_rows_of_the_embedding(tmp_path: Path, kind: Type) -> None:
    """They are what the file means, to the last bit, and none are kept in another form."""
    directory, _ = gguf_and_floats(tmp_path, kind, MIXTURE)
    found = GgufFile((directory / LINK).readlink()).tensors["token_embd.weight"]
    meant = gguf.dequantize(found.data, found.kind)
    ids = np.array([5, 400, 5, 0], np.int32)
    rows = np.empty((len(ids), meant.shape[1]), np.float32)
    embedding = load_model(directory)._decoder._stages[0]._weights.embedding
    embedding.gather(ids, rows)
    np.testing.assert_array_equal(rows, meant[ids])


def test_formats_of_experts_and_rest(tmp_path: Path) -> None:
    """Each is held as the file has it."""
    config = {"architecture": "gpt_oss", "hidden_size": 96, "intermediate_size": 64}
    config["tie_word_embeddings"] = False
    directory, floats = gguf_and_floats(tmp_path, Type.Q8_0, config, experts=Type.MXFP4)
    model = load_model(directory)
    layer = model._decoder._stages[0]._weights.layers[0]
    assert model.weight_format == "mxfp4"
    assert [part.format for part in layer.attention.output.weights] == ["q8_0"]
    meant = load_file(floats / "model.safetensors")
    (head,) = model._decoder._stages[0]._weights.head.weights
    assert head.format == "q8_0"
    assert np.array_equal(head.dequantize(), meant["lm_head.weight"].numpy())
    gate, up, down = layer.mlp.experts.dequantize(2)
    both = meant["model.layers.0.mlp.experts.gate_up_proj"][2].numpy()
    assert np.array_equal(gate, both.T[::2]) and np.array_equal(up, both.T[1::2])
    assert np.array_equal(down, meant["model.layers.0.mlp.experts.down_proj"][2].numpy().T)


def test_matrices_of_latent_heads_are_held_in_8_bits(tmp_path: Path) -> None:
    config = {"architecture": "deepseek_v3", "hidden_size": 96, "q_lora_rank": 32}
    heads = {"qk_nope_head_dim": 32, "v_head_dim": 32}
    directory, floats = gguf_and_floats(tmp_path, Type.Q8_0, config | heads)
    attention = load_model(directory)._decoder._stages[0]._weights.layers[0].attention
    meant = load_file(floats / "model.safetensors")["model.layers.0.self_attn.kv_b_proj.weight"]
    rank = meant.shape[1]
    by_head = meant.view(-1, 64, rank).numpy()
    parts = (attention.absorb, by_head[:, :32].swapaxes(1, 2)), (attention.expand, by_head[:, 32:])
    for held, expected in parts:
        assert held.format == "int8:g32"
        rows = held.dequantize().reshape(len(expected), -1, expected.shape[2])
        bound = np.abs(expected).max() / 250
        assert np.abs(rows[:, : expected.shape[1]] - expected).max() <= bound


def test_a_file_in_parts(tmp_path: Path) -> None:
    """Also behind links to files without such names, as the hub's cache has them."""
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    whole, first = tmp_path / "m.gguf", tmp_path / "m-00001-of-00003.gguf"
    write_gguf(source, whole, Type.Q8_0, metadata=TOKENIZER)
    write_gguf(source, first, Type.Q8_0, metadata=TOKENIZER, parts=3)
    (tmp_path / "blobs").mkdir()
    for number in range(3):
        part = tmp_path / f"m-{number + 1:05d}-of-00003.gguf"
        part.symlink_to(part.rename(tmp_path / "blobs" / str(number)))
    expected, actual = (
        ModelDriver(load_model(gguf_directory(file, cache_dir=tmp_path / "cache"))).prefill(TOKENS)
        for file in (whole, first)
    )
    assert torch.equal(actual, expected)
    others = [first.with_name(f"m-{number:05d}-of-00003.gguf") for number in (2, 3)]
    directories = {gguf_directory(file, cache_dir=tmp_path / "cache") for file in (first, *others)}
    assert len(directories) == 1  # any of them will do
    alone = tmp_path / "renamed.gguf"
    alone.symlink_to(tmp_path / "blobs" / "0")
    with pytest.raises(ModelNotFoundError, match=r"is one of 3 files of a model"):
        gguf_directory(alone, cache_dir=tmp_path / "cache")
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks 1 of the 3 .*m-00002-of-00003\.gguf"):
        load_model(directories.pop())
    first.unlink()
    for cache in ("cache", "other"):
        with pytest.raises(ModelNotFoundError, match="lacks 2 of the 3 .*m-00001-of.*, m-00002-of"):
            gguf_directory(others[1], cache_dir=tmp_path / cache)


def test_what_quantising_notes_changes_nothing(tmp_path: Path) -> None:
    """Keys that makers and tools add, such as those of importance matrices."""
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    more: dict[str, Any] = {
        "general.type": "model",
        "general.tags": ["a", "b"],
        "quantize.imatrix.file": "/models/x.imatrix",
        "quantize.imatrix.entries_count": 336,
        "vendor.numbers": [1.5, 2.5],
        "qwen3moe.vendor_key": True,
    }
    logits = []
    for number, metadata in enumerate((TOKENIZER, TOKENIZER | more)):
        file = tmp_path / f"{number}.gguf"
        write_gguf(source, file, Type.Q8_0, metadata=metadata)
        directory = gguf_directory(file, cache_dir=tmp_path / "cache")
        logits.append(ModelDriver(load_model(directory)).prefill(TOKENS))
    assert torch.equal(*logits)


def test_norms_in_half_precision(tmp_path: Path) -> None:
    """llama.cpp writes them in float32; files of other tools have what their makers had."""
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    tensors = load_file(source / "model.safetensors")
    halves = {name: one.half() if one.dim() == 1 else one for name, one in tensors.items()}
    save_file(halves, source / "model.safetensors")
    logits = []
    for norms in (Type.F32, Type.F16):
        file = tmp_path / f"{norms.name}.gguf"
        write_gguf(source, file, Type.F32, metadata=TOKENIZER, norms=norms)
        directory = gguf_directory(file, cache_dir=tmp_path / "cache")
        logits.append(ModelDriver(load_model(directory)).prefill(TOKENS))
    logits.append(ModelDriver(load_model(source, weight_format="float32")).prefill(TOKENS))
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[0], logits[2], rtol=1e-4, atol=1e-4)


def test_a_name_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=TOKENIZER)
    found = resolve_model(str(tmp_path / "model.gguf"))
    assert found.directory.parent == tmp_path / "cache" / "gguf"
    assert resolve_model(str(tmp_path / "model.gguf")).directory == found.directory
    (tmp_path / "model.gguf").touch()
    assert resolve_model(str(tmp_path / "model.gguf")).directory != found.directory


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (
            {"general.architecture": "gpt2"},
            UnsupportedModelError,
            "architecture 'gpt2' is not served, from GGUF or other files; served from GGUF are",
        ),
        (
            {"qwen3moe.block_count": None},
            ModelFileError,
            "lacks the metadata for num_hidden_layers",
        ),
        ({"split.count": 3}, ModelNotFoundError, "is one of 3 files of a model"),
        (
            {"general.type": "imatrix"},
            UnsupportedModelError,
            "is GGUF of type 'imatrix', not a model: name the file of the model",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=TOKENIZER | metadata)
    with pytest.raises(error, match=message):
        gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_damaged_files(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    file = tmp_path / "model.gguf"
    write_gguf(source, file, Type.Q8_0, metadata=TOKENIZER)
    data = file.read_bytes()
    for damaged in (data[:-1000], data[:20], b"", b"x" + data[1:]):
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="cannot be read as GGUF"):
            gguf_directory(file, cache_dir=tmp_path / "cache")


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


ARRAY, BYTE, STRING = 9, 0, 8
LIES = {
    "a longer array than any": (ARRAY, struct.pack("<IQ", BYTE, 5 << 20), "array of 5242880 entr"),
    "an array behind the end": (ARRAY, struct.pack("<IQ", BYTE, 1000), "would end at"),
    "a string behind the end": (STRING, struct.pack("<Q", 1 << 62) + b"abc", "would end at"),
    "arrays in arrays": (ARRAY, struct.pack("<IQ", ARRAY, 1) * 2000, "arrays in arrays"),
    "no text": (STRING, text(b"\xff"), "can't decode byte 0xff"),
}


@pytest.mark.parametrize("lie", LIES)
def test_sizes_that_lie(tmp_path: Path, lie: str) -> None:
    kind, value, message = LIES[lie]
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"x") + struct.pack("<I", kind) + value
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(ModelFileError, match=rf"cannot be read as GGUF \(.*{message}"):
        GgufFile(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"split.count": "three"}, "split.count is 'three'"),
        ({"qwen3moe.nextn_predict_layers": "one"}, "model.gguf: its metadata cannot be used"),
        ({"qwen3moe.attention.key_length": 0, "qwen3moe.rope.dimension_count": 8}, "ZeroDivision"),
        ({"tokenizer.ggml.eos_token_id": "end"}, "invalid literal for int"),
        ({"tokenizer.ggml.tokens": 5}, "'int' object is not iterable"),
        ({"tokenizer.ggml.model": ["gpt2"]}, "unhashable type: 'list'"),
        ({"tokenizer.ggml.merges": ["a z"]}, r"merges do not fit .*Token `z` out of vocabulary"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges do not fit"),
    ],
)
def test_metadata_of_wrong_kinds(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=TOKENIZER | metadata)
    with pytest.raises(ModelFileError, match=message):
        gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_newer_files(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    file = tmp_path / "model.gguf"
    write_gguf(source, file, Type.Q8_0, metadata=TOKENIZER)
    data = file.read_bytes()
    file.write_bytes(data[:4] + b"\x63" + data[5:])
    with pytest.raises(UnsupportedModelError, match="GGUF of version 99; read are 2 and 3"):
        gguf_directory(file, cache_dir=tmp_path / "cache")
    name = b"blk.0.attn_q.weight"
    kind = data.index(name) + len(name) + 4 + 2 * 8  # behind two sizes
    assert data[kind] == Type.Q8_0
    file.write_bytes(data[:kind] + b"\xc8" + data[kind + 1 :])
    with pytest.raises(UnsupportedModelError, match="a tensor has type 200, which is not known"):
        gguf_directory(file, cache_dir=tmp_path / "cache")


def test_what_an_earlier_release_made_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = make_tiny_model(tmp_path / "source", "llama"), tmp_path / "model.gguf"
    write_gguf(source, file, Type.Q8_0, metadata=TOKENIZER)
    made = [gguf_directory(file, cache_dir=tmp_path / "cache") for _ in range(2)]
    monkeypatch.setattr(directory_module, "_FORM", directory_module._FORM + 1)
    later = gguf_directory(file, cache_dir=tmp_path / "cache")
    assert made[0] == made[1] != later and (later / "config.json").is_file()
