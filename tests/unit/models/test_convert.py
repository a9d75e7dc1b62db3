"""Conversions: what they write, what they go on with after any end, and what they refuse."""

import json
import os
import random
import resource
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors import safe_open
from safetensors.torch import load_file

from inlay import kernels
from inlay.core.errors import ArgumentError, ModelFileError, ResourceError
from inlay.models.conversion import packed_product, staging, work
from inlay.models.conversion import shards as shard_files
from inlay.models.conversion.convert import convert
from inlay.models.conversion.staging import STAGING
from inlay.models.embedding import FloatEmbedding
from inlay.models.float_arrays import BFLOAT16
from inlay.models.model import Model, load_model
from inlay.models.packed_metadata import PACKED_FILE
from tests.support.conversions import (
    anonymous_bytes,
    content_of,
    eager_conversion,
    killed_conversion,
    noted_pieces,
)
from tests.support.gguf_files import gguf_and_floats
from tests.support.model_driver import ModelDriver
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model, write_shards
from tests.unit.models.reference import load_reference, reference_logits

TOKENS = [5, 400, 33, 2, 17, 250, 9, 8, 301, 77, 140]
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
QUANTIZED: dict[str, dict[str, Any]] = {
    "fp8": {"architecture": "deepseek_v3", "hidden_size": 160, "q_lora_rank": 136},
    "int4": {"architecture": "deepseek_v3", "hidden_size": 96},
    "mxfp4": {"architecture": "gpt_oss", "hidden_size": 96, "intermediate_size": 64},
}
GGUF_SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
GGUF: dict[str, dict[str, Any]] = {
    "llama": {**GGUF_SIZES, "architecture": "llama", "tie_word_embeddings": False},
    "mixtral": {**GGUF_SIZES, "architecture": "mixtral", "num_local_experts": 6},
    "qwen3_moe": {**GGUF_SIZES, "architecture": "qwen3_moe", "moe_intermediate_size": 256},
    "latents": {
        "architecture": "deepseek_v3",
        "hidden_size": 96,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "n_routed_experts": 12,
        "n_group": 3,
    },
    "sinks": {"architecture": "gpt_oss", "hidden_size": 96, "intermediate_size": 64},
}


class Stopped(Exception):
    """Ends a conversion from its progress."""


class StopAfter:
    """A progress that raises when a part of the source is read."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, done: int, total: int) -> None:
        if done >= self._share * total:
            raise Stopped


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, and a look at the progress every millisecond."""
    monkeypatch.setattr(work, "_REPORT_S", 0.001)
    for module in (shard_files, packed_product):
        monkeypatch.setattr(module, "PIECE_BYTES", 10_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "source", dtype="bfloat16", num_experts=32)


@pytest.fixture
def whole(source: Path, tmp_path: Path) -> dict[str, str]:
    """What an undisturbed conversion writes."""
    convert(source, tmp_path / "whole")
    return content_of(tmp_path / "whole")


def check_bfloat16(target: Path, floats: Path) -> None:
    """Logits of a written directory are those of the floats, with matrices rounded to bfloat16."""
    expected = load_reference(floats)
    for weight in expected.parameters():
        if weight.dim() > 1:
            weight.data = weight.data.bfloat16().float()
    model = load_reference(target)
    assert torch.equal(reference_logits(model, TOKENS), reference_logits(expected, TOKENS))
    config = json.loads((target / "config.json").read_text())
    assert "quantization_config" not in config
    assert config.get("architectures", [type(model).__name__]) == [type(model).__name__]
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    sums = (target / "SHA256SUMS").read_text()
    for name, digest in content_of(target).items():
        assert not name.endswith(".safetensors") or f"{digest}  {name}\n" in sums


@pytest.mark.parametrize("method", QUANTIZED)
def test_bfloat16_of_quantized_files(tmp_path: Path, method: str) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **QUANTIZED[method])
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", method)
    convert(tmp_path / "quantized", tmp_path / "target", to="bf16")
    names = set(load_file(tmp_path / "floats" / "model.safetensors"))
    assert set(load_file(tmp_path / "target" / "model.safetensors")) == names
    check_bfloat16(tmp_path / "target", tmp_path / "floats")


@pytest.mark.parametrize("case", GGUF)
@pytest.mark.parametrize("kind", [Type.F16, Type.Q8_0, Type.Q4_0], ids=lambda kind: kind.name)
def test_bfloat16_of_gguf(tmp_path: Path, case: str, kind: Type) -> None:
    directory, floats = gguf_and_floats(tmp_path, kind, GGUF[case])
    target = tmp_path / "target"
    convert(directory, target, to="bf16")
    names = set(load_file(floats / "model.safetensors"))
    assert set(load_file(target / "model.safetensors")) == names
    check_bfloat16(target, floats)
    assert (target / "tokenizer.json").is_file()
    assert not list(target.glob("*.gguf"))


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_K], ids=lambda kind: kind.name)
def test_gguf_packed(tmp_path: Path, kind: Type) -> None:
    directory, _ = gguf_and_floats(tmp_path, kind, GGUF["qwen3_moe"])
    for name in ("auto", "int8+bf16"):
        convert(directory, tmp_path / name, weight_format=name)
        found = load_model(tmp_path / name)
        expected = load_model(directory, weight_format=found.weight_format)
        assert found.weight_format == expected.weight_format
        round_embedding(expected)
        assert torch.equal(*(ModelDriver(one).prefill(TOKENS, (4,)) for one in (found, expected)))


def round_embedding(model: Model) -> None:
    """To bfloat16, which packed files have of it; a GGUF file's rows are read as they are."""
    stage = model._decoder._stages[0]
    rows = np.empty((model.shape.vocab, model.shape.hidden), np.float32)
    stage._weights.embedding.gather(np.arange(len(rows), dtype=np.int32), rows)
    embedding = FloatEmbedding(rows.astype(BFLOAT16))
    stage._weights = replace(stage._weights, embedding=embedding)


@pytest.mark.parametrize("expert_names", ["per_expert", "fused"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bfloat16_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, expert_names: str
) -> None:
    monkeypatch.setattr(shard_files, "SHARD_BYTES", 100_000)
    source = make_tiny_model(tmp_path / "source", dtype=dtype, expert_names=expert_names)
    target = tmp_path / "target"
    convert(source, target, to="bf16", threads=3)
    check_bfloat16(target, source)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 3 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    found = {}
    for shard in shards:
        with safe_open(target / shard, framework="pt") as file:
            found |= {name: shard for name in file.keys()}
        tensors = load_file(target / shard)
        assert len(tensors) == 1 or sum(one.nbytes for one in tensors.values()) <= 100_000
    assert found == index["weight_map"]
    assert load_model(target).weight_format == "bfloat16"
    assert {file.name for file in source.iterdir()} - {"model.safetensors"} < set(
        file.name for file in target.iterdir()
    )


def test_threads_change_no_byte(source: Path, whole: dict[str, str], tmp_path: Path) -> None:
    for threads in (1, 5):
        convert(source, tmp_path / str(threads), threads=threads)
        assert content_of(tmp_path / str(threads)) == whole
    kernels.PackedFile(tmp_path / "1" / PACKED_FILE).verify()
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("to", ["packed", "bf16"])
def test_killed_three_times(tmp_path: Path, to: str) -> None:
    source = make_tiny_model(tmp_path / "source", dtype="bfloat16", num_experts=128)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    convert(source, tmp_path / "whole", to=to)
    target = tmp_path / "target"
    noted = 0
    for kill in range(3):
        noted += draw.randrange(1, 40)
        threads, torn = draw.choice((1, 2, 3)), draw.randrange(60)
        killed_conversion(source, target, to, threads, noted=noted, torn=torn)
        assert [one.name for one in target.iterdir()] == [STAGING], f"kill {kill}"
        assert noted_pieces(target) == noted
    said, _ = eager_conversion(source, target, to).communicate(timeout=120)
    assert len(said.splitlines()) == 2 and f"going on: {noted} of " in said, said
    assert content_of(target) == content_of(tmp_path / "whole")


def test_what_is_done_is_not_made_again(
    source: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, made = tmp_path / "target", []
    make = work._make
    monkeypatch.setattr(work, "_make", lambda piece: made.append(piece.name) or make(piece))
    with pytest.raises(Stopped):
        convert(source, target, progress=StopAfter(0.5))
    before = len(made)
    assert before > 5 and noted_pieces(target) == before
    convert(source, target)
    pieces_in_all = len(made)
    convert(source, tmp_path / "other")
    assert len(made) - pieces_in_all == pieces_in_all
    assert content_of(target) == whole


def test_what_is_done_is_not_trusted(source: Path, whole: dict[str, str], tmp_path: Path) -> None:
    target, said = tmp_path / "target", []
    with pytest.raises(Stopped):
        convert(source, target, threads=1, progress=StopAfter(0.5))
    with (target / STAGING / PACKED_FILE).open("r+b") as file:
        file.seek(4096 + 77)
        byte = file.read(1)
        file.seek(4096 + 77)
        file.write(bytes([byte[0] ^ 1]))
    with (target / STAGING / ".journal").open("a") as journal:
        journal.write('{"pieces": {"17": "ab')  # as a kill cuts it off
    convert(source, target, say=said.append)
    assert said[1:] == ["the embedding, rows 0 to 128 is not as it was written: made again"]
    assert content_of(target) == whole


def test_another_conversion_begins_anew(
    source: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    for changes, differs in (
        ({"weight_format": "int8"}, "weight_format"),
        ({"to": "bf16"}, "target, weight_format, "),
        ({"source": make_tiny_model(tmp_path / "other", seed=1, num_experts=32)}, "source"),
    ):
        said: list[str] = []
        with pytest.raises(Stopped):
            convert(**{"source": source, "target": target} | changes, progress=StopAfter(0.3))
        convert(source, target, say=said.append)
        assert len(said) == 1 and f"(differs in {differs}" in said[0], said
        assert content_of(target) == whole
        for file in target.iterdir():
            file.unlink()


def test_a_shard_that_was_fetched_again_begins_anew(source: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(Stopped):
        convert(source, tmp_path / "target", progress=StopAfter(0.3))
    os.utime(source / "model.safetensors", ns=(0, 0))
    convert(source, tmp_path / "target", say=said.append)
    assert len(said) == 1 and "(differs in files)" in said[0]


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Memory of no file, above that of a process that has everything imported."""
    size = {"hidden_size": 1024, "moe_intermediate_size": 512, "num_experts": 32}
    source = make_tiny_model(tmp_path / "source", dtype="bfloat16", **size)
    assert (source / "model.safetensors").stat().st_size > 200e6
    for to in ("packed", "bf16"):
        process = eager_conversion(source, tmp_path / to, to)
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.002)
        assert process.stdout is not None
        with process.stdout as said:
            before = int(said.readline())
        assert process.returncode == 0 and 0 < peak - before < 100e6, (peak, before)


def test_an_end_while_files_get_their_names(
    source: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.json is the last, and the same call ends what was left."""
    target, replace = tmp_path / "target", Path.replace
    names = len(whole)
    for moves in range(names):
        left = [min(moves, 1)]  # one more each time

        def limited(file: Path, to: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise Stopped
            left[0] -= 1
            return replace(file, to)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", limited)
            with pytest.raises(Stopped):
                convert(source, target)
        assert not (target / "config.json").exists()
        assert len(list(target.iterdir())) == moves + 1
    convert(source, target)
    assert content_of(target) == whole
    said: list[str] = []
    convert(source, target, say=said.append)
    assert said == ["the conversion is there already"] and content_of(target) == whole


def test_a_second_process_is_refused(source: Path, tmp_path: Path) -> None:
    target, said = tmp_path / "target", []

    def second(done: int, total: int) -> None:
        if not said:
            process = eager_conversion(source, target)
            said.append(process.communicate(timeout=60)[0])
            assert process.returncode == 1

    convert(source, target, progress=second)
    assert f"{target} is being written by process {os.getpid()} on " in said[0]
    assert "(since 20" in said[0]


def test_a_source_with_a_file_called_journal(source: Path, tmp_path: Path) -> None:
    for name in ("journal", ".journal"):
        (source / name).write_text("of the makers")
    convert(source, tmp_path / "target")
    assert (tmp_path / "target" / "journal").read_text() == "of the makers"
    assert not (tmp_path / "target" / ".journal").exists()


def test_damaged_sources(source: Path, tmp_path: Path) -> None:
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors[EXPERT] = tensors[EXPERT].clone()
    tensors[EXPERT][3, 5] = torch.nan
    write_shards(source, tensors)
    with pytest.raises(ModelFileError, match=r"expert 3 of layer 1 cannot be converted \(.*NaN"):
        convert(source, tmp_path / "packed", threads=1)
    with pytest.raises(ModelFileError, match=rf"{EXPERT} cannot be converted \(.*NaN"):
        convert(source, tmp_path / "floats", to="bf16", threads=1)
    for target in ("packed", "floats"):
        assert [one.name for one in (tmp_path / target).iterdir()] == [STAGING]
    del tensors[EXPERT]
    write_shards(source, tensors)
    with pytest.raises(ModelFileError, match=r"the weights lack .*up_proj\.weight"):
        convert(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_source_that_is_cut_meanwhile(source: Path, tmp_path: Path) -> None:
    file = source / "model.safetensors"
    with pytest.raises(ModelFileError, match=r"model.safetensors.* cannot be read .*the file has"):
        convert(source, tmp_path / "target", progress=lambda *_: os.truncate(file, 64 * 1024))


def test_targets_that_are_refused(source: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other")
    held = content_of(other)
    with pytest.raises(ArgumentError, match="other holds .*config.json.* not of this conversion"):
        convert(source, other)
    assert content_of(other) == held
    with pytest.raises(ArgumentError, match="is the source, too"):
        convert(source, source / ".." / "source")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="file is a file: name a directory"):
        convert(source, tmp_path / "file")
    convert(source, tmp_path / "packed")
    for to in ("packed", "bf16"):
        with pytest.raises(ArgumentError, match="holds packed weights, which are not converted"):
            convert(tmp_path / "packed", tmp_path / "new", to=to)
    with pytest.raises(ArgumentError, match="threads: must be at least 1, got 0"):
        convert(source, tmp_path / "new", threads=0)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty")


def test_a_small_disk(
    source: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        patch.setattr(staging.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(ResourceError, match=r"target needs .* of disk, and 1000 B are free"):
            convert(source, target)
    assert not target.exists()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(Stopped):
        convert(source, target, progress=StopAfter(0.3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # stands for a full disk
    try:
        with pytest.raises(ResourceError, match="target cannot grow .*the same call goes on"):
            convert(source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    convert(source, target)
    assert content_of(target) == whole
