"""Adapters merged into GGUF files, which stay GGUF files of the same types."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ArgumentError, UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.models.adapter import read_adapter
from inlay.models.checkpoint import open_checked
from inlay.models.gguf import gguf_directory
from inlay.models.gguf.reader import GgufFile
from inlay.models.model import load_model
from inlay.models.published.rows import Matrix, floats_of
from inlay.models.torch_arrays import tensor_of
from inlay.models.weight_names import expected_tensors
from inlay.tune import export
from inlay.tune.merge import MergedTensors
from tests.support.gguf_files import TOKENIZER, write_gguf
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, settings


def floats(matrix: Matrix) -> torch.Tensor:
    return tensor_of(floats_of(matrix)).float()


WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
CASES: dict[str, tuple[dict[str, Any], Type, dict[str, Any]]] = {
    "experts of other types": (
        {"architecture": "qwen3_moe", "moe_intermediate_size": 256, **WIDE},
        Type.Q6_K,
        {"experts": Type.Q4_K},
    ),
    "Q5_K": ({"architecture": "qwen3", **WIDE}, Type.Q5_K, {}),
    "rotated pairs side by side": ({"architecture": "llama", "hidden_size": 96}, Type.Q4_0, {}),
    "latent heads in two": (
        {
            "architecture": "deepseek_v3",
            "hidden_size": 96,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
        },
        Type.Q8_0,
        {},
    ),
    "latent heads in one": (
        {"architecture": "deepseek_v2", "num_hidden_layers": 2, "hidden_size": 96},
        Type.BF16,
        {"split_latent": False},
    ),
    "several files": ({"architecture": "qwen3_moe", "hidden_size": 96}, Type.F16, {"parts": 3}),
}
# Root mean square of what encoding adds, beside that of the weights.
ERRORS = {Type.F16: 3e-4, Type.BF16: 3e-3, Type.Q8_0: 0.008, Type.Q6_K: 0.02, Type.Q5_K: 0.06,
          Type.Q4_K: 0.12, Type.Q4_0: 0.13}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))


def model(tmp_path: Path, name: str, kind: Type | None = None) -> Path:
    """The (first) file of a tiny model."""
    shape, of_case, options = CASES[name]
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **shape)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / ("m-00001-of-00003.gguf" if "parts" in options else "m.gguf")
    write_gguf(source, file, kind or of_case, metadata=TOKENIZER, **options)
    return file


def merge(file: Path, adapter: Path, target: Path) -> Path:
    names = {"adapter_name_or_path": (str(adapter),), "export_dir": str(target)}
    return export(settings(file, target / "out", export_as="base", **names))


@pytest.mark.parametrize("name", CASES)
def test_merged_files_are_as_near_as_their_types_allow(name: str, tmp_path: Path) -> None:
    file = model(tmp_path, name)
    base = gguf_directory(file)
    shape = read_shape(base)
    make_adapter(base, tmp_path / "adapter")
    served = merge(file, tmp_path / "adapter", tmp_path / "merged")
    assert served == tmp_path / "merged" / file.name
    written = gguf_directory(served)

    adapters = [read_adapter(tmp_path / "adapter", shape)]
    meant = MergedTensors(open_checked(base, shape)[0], shape, adapters)
    found, before = open_checked(written, shape)[0], open_checked(base, shape)[0]
    types = GgufFile(file).tensors
    changed = 0
    for one in expected_tensors(shape, fused_experts=False):
        exact, there = (floats(some.get(one.name)) for some in (meant, found))
        if not meant.is_changed(one.name):
            assert torch.equal(there, floats(before.get(one.name))), one.name
            continue
        changed += 1
        error = (there - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        of_type = max(ERRORS.get(tensor.kind, 0) for tensor in types.values())
        assert error <= of_type, one.name
    assert changed

    driver = ModelDriver(load_model(written))
    logits = driver.step([(driver.add([5, 40, 33, 2, 17]), 5)], all_rows=True)[0]
    assert logits.isfinite().all()


def test_all_else_keeps_its_bytes(tmp_path: Path) -> None:
    file = model(tmp_path, "several files")
    make_adapter(gguf_directory(file), tmp_path / "adapter", targets=("o_proj",))
    served = merge(file, tmp_path / "adapter", tmp_path / "merged")
    base, merged = GgufFile(file), GgufFile(served)
    assert merged.metadata == base.metadata
    assert [(t.name, t.kind, t.offset) for t in merged.tensors.values()] == [
        (t.name, t.kind, t.offset) for t in base.tensors.values()
    ]
    for name, tensor in base.tensors.items():
        same = (merged.tensors[name].data == tensor.data).all()
        assert same == ("attn_output" not in name), name
    sums = dict(
        reversed(line.split("  "))
        for line in (served.parent / "SHA256SUMS").read_text().splitlines()
    )
    assert sums == {
        part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in merged.files
    }
    with pytest.raises(ArgumentError, match="which is not of this conversion"):
        merge(file, tmp_path / "adapter", tmp_path / "merged")


def test_types_that_are_not_written_are_named_before_anything_is(tmp_path: Path) -> None:
    shape = {"architecture": "qwen3_moe", "hidden_size": 96, "moe_intermediate_size": 64}
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **shape)
    file = tmp_path / "m.gguf"
    write_gguf(source, file, Type.Q8_0, metadata=TOKENIZER, experts=Type.MXFP4)
    directory = gguf_directory(file)
    make_adapter(directory, tmp_path / "adapter")
    make_adapter(directory, tmp_path / "attention", targets=("q_proj", "o_proj"))
    with pytest.raises(
        UnsupportedModelError,
        match=r"blk.0.ffn_.*_exps.weight is of type MXFP4, which is read and not written: leave",
    ):
        merge(file, tmp_path / "adapter", tmp_path / "merged")
    assert not list((tmp_path / "merged").glob("*.gguf"))
    assert merge(file, tmp_path / "attention", tmp_path / "merged").is_file()
