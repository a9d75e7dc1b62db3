"""Training on bases that are quantised: as published, and packed at load."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inlay.core.errors import UnsupportedModelError
from inlay.models.adapter import read_adapter
from inlay.models.checkpoint import open_tensors
from inlay.models.published.rows import floats_of
from inlay.models.torch_arrays import tensor_of
from inlay.tune import export, train
from inlay.tune.adapter_files import write_adapter
from inlay.tune.data.load import TuneData
from inlay.tune.frozen import load_frozen
from inlay.tune.lora import new_lora
from inlay.tune.model import TrainModel
from inlay.tune.targets import chosen_targets
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model, write_shards
from tests.support.tuning import fill_b, random_rows, settings
from tests.unit.tune.test_gradients import gradients, plain_gradients

# All experts of each token, so that rounding chooses no other one.
ALL_OF_8 = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 8}
PUBLISHED: dict[str, dict[str, Any]] = {
    "fp8": {"hidden_size": 160, "q_lora_rank": 136, **ALL_OF_8},
    "int4": {"hidden_size": 96, **ALL_OF_8},
}
HELD = {"fp8": "fp8:g128", "int4": "int4:g32"}
PACKED = ("bfloat16", "int8", "int8:g32", "int4:g32")


def new_model(
    directory: Path,
    expert_format: str = "auto",
    *,
    b: bool = True,
    targets: tuple[str, ...] = ("all",),
) -> TrainModel:
    """With a LoRA that adds something, or nothing without `b`."""
    weights = load_frozen(directory, dtype=torch.float32, expert_format=expert_format)
    lora = new_lora(chosen_targets(weights.shape, targets), rank=4, scale=2.0, seed=0)
    if b:
        fill_b(lora)
    return TrainModel(weights, lora)


@pytest.fixture(params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, str]:
    """A quantised checkpoint, the floats that it stands for, and the method."""
    method = request.param
    source = make_tiny_model(tmp_path / "source", "deepseek_v3", **PUBLISHED[method])
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", method)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "quantized" / name).write_bytes((source / name).read_bytes())
    return tmp_path / "quantized", tmp_path / "floats", method


def relative_error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Of all gradients together."""
    flat, expected = (
        torch.cat([gradients[name].flatten().double() for name in found])
        for gradients in (found, exact)
    )
    return float((flat - expected).norm() / expected.norm())


def test_published_weights_are_trained_on_as_they_are(published: tuple[Path, Path, str]) -> None:
    quantized, floats, method = published
    model = new_model(quantized)
    assert model.weights.expert_format == HELD[method]
    experts = [layer.experts for layer in model.weights.layers if layer.experts]
    assert {one.format for one in experts} == {HELD[method]}
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(floats, model)
    assert loss == pytest.approx(plain_loss, rel=2e-3)
    assert relative_error(found, expected) < 2e-2


def test_losses_are_those_of_the_floats_that_weights_stand_for(
    published: tuple[Path, Path, str], tmp_path: Path
) -> None:
    quantized, floats, _ = published
    data = TuneData(random_rows(6), None, ())
    quantized_losses, float_losses = (
        [
            entry["loss"]
            for entry in train(settings(directory, tmp_path / name, **more), data).log
            if "loss" in entry
        ]
        for name, directory, more in (
            ("a", quantized, {}),
            ("b", floats, {"weight_format": "bfloat16"}),
        )
    )
    assert len(quantized_losses) == 9 and quantized_losses[-1] < quantized_losses[0]
    assert quantized_losses == pytest.approx(float_losses, rel=1e-2)


@pytest.mark.parametrize("weight_format", PACKED)
def test_gradients_on_packed_weights(weight_format: str, tmp_path: Path) -> None:
    options = {"num_experts": 4, "num_experts_per_tok": 4}
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe", **options)
    model = new_model(directory, weight_format)
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(as_held(directory, model, tmp_path / "held"), model)
    assert loss == pytest.approx(plain_loss, rel=2e-3)
    assert relative_error(found, expected) < 2e-2


def as_held(directory: Path, model: TrainModel, target: Path) -> Path:
    """The model's files with the weights that its packed experts have."""
    tensors = load_file(directory / "model.safetensors")
    for number, layer in enumerate(model.weights.layers):
        assert layer.experts is not None
        for expert in range(layer.experts.num_experts):
            for part, matrix in zip(
                "gate up down".split(), layer.experts.dequantize(expert), strict=True
            ):
                name = f"model.layers.{number}.mlp.experts.{expert}.{part}_proj.weight"
                tensors[name] = torch.from_numpy(matrix)
    target.mkdir()
    config = json.loads((directory / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config))
    write_shards(target, tensors)
    return target


def logits(model: TrainModel) -> torch.Tensor:
    ids = torch.arange(3, 40)
    return model.logits(ids, torch.arange(len(ids)), [0, len(ids)])


def exported(model: TrainModel, quantized: Path, tmp_path: Path, export_as: str) -> Path:
    """The model with its adapter merged."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    names = {"adapter_name_or_path": (str(folder),), "export_dir": str(tmp_path / "merged")}
    config = settings(quantized, tmp_path, export_as=export_as, **names)
    write_adapter(folder, model.lora, config, "card")
    return export(config)


def test_merged_floats_are_what_was_trained(
    published: tuple[Path, Path, str], tmp_path: Path
) -> None:
    quantized, _, _ = published
    model = new_model(quantized)
    merged = load_frozen(exported(model, quantized, tmp_path, "floats"), dtype=torch.float32)
    again = logits(TrainModel(merged, new_lora([], rank=4, scale=2.0, seed=0)))
    expected = logits(model)
    assert (logits(new_model(quantized, b=False)) - expected).norm() > 0.3 * expected.norm()
    assert (again - expected).norm() < 2e-2 * expected.norm()


def test_merged_bases_are_as_near_as_their_format_allows(
    published: tuple[Path, Path, str], tmp_path: Path
) -> None:
    quantized, floats, method = published
    model = new_model(quantized)
    target = exported(model, quantized, tmp_path, "base")
    assert load_frozen(target, dtype=torch.float32).expert_format == HELD[method]
    merged, base = open_tensors(target, model.shape), load_file(floats / "model.safetensors")
    pairs = read_adapter(tmp_path / "adapter", model.shape).pairs
    of_format = {"fp8": 0.03, "int4": 0.12}  # three bits behind the point; fifteen steps
    held = load_file(target / "model.safetensors")
    for module, pair in pairs.items():
        name = f"{module}.weight"
        expected = base[name].float() + torch.from_numpy(pair.rows(slice(None)))
        error = (tensor_of(floats_of(merged.get(name))).float() - expected).norm() / expected.norm()
        is_float = name in held and held[name].dtype == torch.float32
        assert error < (1e-6 if is_float else of_format[method]), name


def test_what_is_not_adapted_keeps_its_codes(
    published: tuple[Path, Path, str], tmp_path: Path
) -> None:
    quantized, _, _ = published
    model = new_model(quantized, targets=("o_proj", "experts.down_proj"))
    merged = load_file(exported(model, quantized, tmp_path, "base") / "model.safetensors")
    base = load_file(quantized / "model.safetensors")
    assert merged.keys() == base.keys()
    assert {n: (t.dtype, t.shape) for n, t in merged.items()} == {
        n: (t.dtype, t.shape) for n, t in base.items()
    }
    changed = {
        name
        for name in base
        if not torch.equal(merged[name].view(torch.uint8), base[name].view(torch.uint8))
    }
    adapted = ("o_proj.weight", "down_proj.weight")
    assert changed
    for name in changed:
        assert any(part in name for part in adapted) and "shared" not in name, name
        assert ".mlp.down_proj" not in name, name
    assert json.loads((tmp_path / "merged" / "config.json").read_text()) == json.loads(
        (quantized / "config.json").read_text()
    )


@pytest.mark.parametrize(
    ("method", "held"), [("awq", "uint4:g32"), ("nf4", "int8:g32"), ("fp8_rows", "fp8:g128")]
)
def test_what_tools_published_is_trained_on(method: str, held: str, tmp_path: Path) -> None:
    options = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
    source = make_tiny_model(tmp_path / "source", "qwen3_moe", **options)
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", method)
    model = new_model(tmp_path / "quantized")
    assert model.weights.expert_format == held
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(tmp_path / "floats", model)
    assert loss == pytest.approx(plain_loss, rel=5e-3)
    assert relative_error(found, expected) < 3e-2
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "quantized" / name).write_bytes((source / name).read_bytes())
    with pytest.raises(UnsupportedModelError, match="is read and not written: export floats"):
        exported(model, tmp_path / "quantized", tmp_path, "base")
