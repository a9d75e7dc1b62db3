"""A model of new weights has what has not changed from the one of the old: what is made, and what
it computes.
"""

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay import kernels
from inlay.core.errors import ResourceError
from inlay.models import backends
from inlay.models.model import Model, load_model
from inlay.models.weight_files import WeightFiles
from inlay.models.weights import MixtureWeights, Weights
from tests.support.model_driver import ModelDriver
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model

FILE = "model.safetensors"
LAYER = "model.layers.1"
TOKENS = list(range(5, 40))


def tiny(path: Path, architecture: str = "qwen3_moe", **more: Any) -> Path:
    return make_tiny_model(path, architecture, tokenizer="none", num_hidden_layers=3, **more)


def changed(source: Path, target: Path, *names: str) -> Path:
    """The same checkpoint in which these tensors are others."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / FILE)
    for name in names:
        tensors[name] = tensors[name].flip(0).contiguous() * 1.5
    save_file(tensors, target / FILE)
    return target


def weights_of(model: Model) -> Weights:
    weights: Weights = model._decoder._stages[0]._weights
    return weights


def logits(model: Model) -> torch.Tensor:
    return ModelDriver(model).prefill(TOKENS)


def shared(one: Model, other: Model) -> set[str]:
    """Parts of layers that both have in the same memory."""
    found = set()
    for number, layers in enumerate(
        zip(weights_of(one).layers, weights_of(other).layers, strict=True)
    ):
        for part in ("attention", "mlp"):
            mine, its = (getattr(layer, part) for layer in layers)
            for name, value in vars(mine).items():
                if value is not None and value is getattr(its, name):
                    found.add(f"{number}.{name}")
    if weights_of(one).head is weights_of(other).head:
        found.add("head")
    return found


GQA = {"qkv", "output"}
ALL = {f"{n}.{part}" for n in range(3) for part in (*GQA, "router", "experts")} | {"head"}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        (f"{LAYER}.self_attn.k_proj.weight", {"1.qkv"}),
        (f"{LAYER}.self_attn.o_proj.weight", {"1.output"}),
        (f"{LAYER}.mlp.gate.weight", {"1.router"}),
        (f"{LAYER}.mlp.experts.2.up_proj.weight", {"1.experts"}),
        (f"{LAYER}.input_layernorm.weight", set()),
        ("model.embed_tokens.weight", set()),
        ("lm_head.weight", {"head"}),
    ],
)
def test_only_what_has_changed_is_made(tmp_path: Path, name: str, made: set[str]) -> None:
    source = tiny(tmp_path / "old", tie_word_embeddings=False)
    target = changed(source, tmp_path / "new", name)
    old = load_model(source)
    before = logits(old)
    new = load_model(target, previous=old)
    assert ALL - shared(old, new) == made
    wanted = logits(load_model(target))
    assert torch.equal(logits(new), wanted) and not torch.equal(wanted, before)
    assert torch.equal(logits(old), before), "the old weights serve on"
    parts = [name for name in made if name != "1.experts"]
    sizes = {"head": weights_of(new).head}
    layer = weights_of(new).layers[1]
    for part in parts:
        _, _, last = part.rpartition(".")
        holder = layer.mlp if last == "router" else layer.attention
        sizes.setdefault(part, getattr(holder, last, None))
    expected = sum(sizes[part].nbytes for part in parts)
    if "1.experts" in made:
        assert isinstance(layer.mlp, MixtureWeights)
        experts = layer.mlp.experts
        assert isinstance(experts, kernels.ExpertWeights)
        expected = experts.nbytes // experts.num_experts
    assert new.made_bytes == expected, "one expert of a layer is made, the others are copied"


def test_nothing_and_everything(tmp_path: Path) -> None:
    source = tiny(tmp_path / "old", "llama", tie_word_embeddings=True)
    old = load_model(source)
    new = load_model(changed(source, tmp_path / "same"), previous=old)
    assert new.made_bytes == 0 and torch.equal(logits(new), logits(old))
    embedding = "model.embed_tokens.weight"
    tied = load_model(changed(source, tmp_path / "tied", embedding), previous=old)
    assert tied.made_bytes == weights_of(tied).head.nbytes
    other = tiny(tmp_path / "other", "llama", tie_word_embeddings=True, seed=2)
    new = load_model(other, previous=old)
    assert not shared(old, new) and torch.equal(logits(new), logits(load_model(other)))
    int8 = load_model(source, weight_format="int8", previous=old)
    assert not shared(old, int8), "held in another format"


@pytest.mark.parametrize("architecture", ["deepseek_v3", "gpt_oss", "mixtral"])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_row_of_updates(tmp_path: Path, architecture: str, backend: str) -> None:
    """Each time another tensor changes; the last one is as if it had been loaded alone."""
    directory = tiny(tmp_path / "0", architecture)
    names = sorted(load_file(directory / FILE))
    model = load_model(directory, backend=backend)
    for number, name in enumerate(names[:: max(1, len(names) // 12)]):
        directory = changed(directory, tmp_path / str(number + 1), name)
        model = load_model(directory, backend=backend, previous=model)
    assert torch.equal(logits(model), logits(load_model(directory, backend=backend)))


def test_fused_experts_are_told_apart(tmp_path: Path) -> None:
    source = tiny(tmp_path / "old", "gpt_oss")
    (name,) = (one for one in load_file(source / FILE) if one.endswith("1.mlp.experts.down_proj"))
    target = tmp_path / "new"
    changed(source, target)
    tensors = load_file(target / FILE)
    tensors[name][2] *= 2
    save_file(tensors, target / FILE)
    new = load_model(target, previous=load_model(source))
    mlp = weights_of(new).layers[1].mlp
    assert isinstance(mlp, MixtureWeights) and isinstance(mlp.experts, kernels.ExpertWeights)
    assert new.made_bytes == mlp.experts.nbytes // mlp.experts.num_experts
    assert torch.equal(logits(new), logits(load_model(target)))


def test_quantized_files(tmp_path: Path) -> None:
    source = tmp_path / "quantized"
    floats = tiny(tmp_path / "old", "deepseek_v3")
    quantize_files(floats, source, tmp_path / "meant", "fp8")
    old = load_model(source)
    same = load_model(changed(source, tmp_path / "same"), previous=old)
    assert same.made_bytes == 0
    scales = next(one for one in load_file(source / FILE) if "o_proj.weight_scale" in one)
    target = changed(source, tmp_path / "new", scales)
    new = load_model(target, previous=old)
    assert 0 < new.made_bytes < old.made_bytes // 4
    assert torch.equal(logits(new), logits(load_model(target)))


def test_what_was_not_taken_over_goes_with_the_old_model(tmp_path: Path) -> None:
    source = tiny(tmp_path / "old")
    target = changed(source, tmp_path / "new", f"{LAYER}.self_attn.o_proj.weight")
    old = load_model(source)
    new = load_model(target, previous=old)
    gone = weakref.ref(weights_of(old).layers[1].attention.output)
    stays = weakref.ref(weights_of(old).layers[0].attention.output)
    del old
    gc.collect()
    assert gone() is None and stays() is weights_of(new).layers[0].attention.output


def test_memory_is_asked_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny(tmp_path / "old")
    target = changed(source, tmp_path / "new", f"{LAYER}.mlp.experts.2.up_proj.weight")
    old = load_model(source)
    layer = weights_of(old).layers[1].mlp
    assert isinstance(layer, MixtureWeights) and layer.experts is not None
    of_layer = layer.experts.nbytes
    free: list[Callable[[], int]] = [lambda: int(1.2 * of_layer)]
    monkeypatch.setattr(backends.NativeOps, "free_bytes", lambda self: free[0]())
    assert load_model(target, previous=old).made_bytes
    free[0] = lambda: of_layer // 2
    with pytest.raises(ResourceError, match="are free"):
        load_model(target, previous=old)
    with pytest.raises(ResourceError, match="are free"):
        load_model(target)


def test_files_that_changed_where_they_lie(tmp_path: Path) -> None:
    """Compared with the same bytes of the same file, all would be as it was."""
    source = tiny(tmp_path / "old")
    opened = WeightFiles(source)
    again = WeightFiles(source)
    name = f"{LAYER}.mlp.gate.weight"
    assert again.same(opened, name)
    with (source / FILE).open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"1234")
    os.utime(source / FILE, ns=(1, 1))  # a system's clock may not tell such moments apart
    assert not WeightFiles(source).same(opened, name)
    fresh = WeightFiles(source)
    (source / FILE).rename(tmp_path / "moved")
    changed_copy = changed(tiny(tmp_path / "copied"), tmp_path / "new", name)
    other = WeightFiles(changed_copy)
    equal = "model.embed_tokens.weight"
    assert not other.same(fresh, name) and other.same(fresh, equal)
    (tmp_path / "moved").unlink()
    assert other.same(fresh, equal), "what is mapped stays when its name is gone"
    assert not other.same(fresh, "strange")


def test_experts_that_lie_together_are_spared_together() -> None:
    from inlay.models.making import Made, Making

    earlier, later = Making(), Making()
    experts = np.zeros(8)
    for expert in range(2):
        earlier.add(("e", expert), Made(experts, "cpu", 32, frozenset({("w", expert)})))
    earlier.add(("m",), Made(np.zeros(1), "gpu", 8, frozenset({("x", None), ("y", None)})))
    assert later.keep(earlier, lambda read: read != ("w", 1)) == {"gpu": 8}
    assert later.kept(("e", 0)) is not None and later.kept(("e", 1)) is None
    assert Making().keep(earlier, lambda read: read[0] != "y") == {"cpu": 64}
