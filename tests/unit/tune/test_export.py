"""Models with adapters merged into them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from inlay.core.errors import ArgumentError, ConfigError
from inlay.models.adapter import read_adapter
from inlay.models.model import load_model
from inlay.tune import TuneConfig, export
from inlay.tune.adapter import load_into
from inlay.tune.adapter_files import write_adapter
from inlay.tune.frozen import load_frozen
from inlay.tune.model import TrainModel
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import new_model, settings

IDS = torch.arange(3, 40)


def logits(model: TrainModel) -> Tensor:
    return model.logits(IDS, torch.arange(len(IDS)), [0, len(IDS)])


def with_adapter(directory: Path, tmp_path: Path, **more: Any) -> tuple[TrainModel, TuneConfig]:
    """A model with a random adapter, and the settings that merge it."""
    model = new_model(directory, random_b=True)
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = settings(
        directory,
        tmp_path,
        adapter_name_or_path=(str(folder),),
        export_dir=str(tmp_path / "merged"),
        **more,
    )
    write_adapter(folder, model.lora, config, "card")
    return model, config


@pytest.mark.parametrize(
    "architecture, options",
    [
        ("qwen3_moe", {}),
        ("qwen3_moe", {"expert_names": "fused", "shards": 3}),
        ("mixtral", {}),
        ("deepseek_v2", {"num_hidden_layers": 3}),
        ("deepseek_v3", {}),
    ],
)
def test_merged_models_are_what_was_trained(
    architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    directory = make_tiny_model(tmp_path / "tiny", architecture, **options)
    model, config = with_adapter(directory, tmp_path)
    target, expected = export(config), logits(model)
    assert (expected - logits(new_model(directory))).abs().max() > 0.5
    torch.testing.assert_close(logits(new_model(target)), expected, atol=1e-4, rtol=0)
    driver = ModelDriver(load_model(target))
    served = driver.step([(driver.add(IDS.tolist()), len(IDS))], all_rows=True)[0]
    torch.testing.assert_close(served, expected, atol=1e-4, rtol=0)
    with pytest.raises(ArgumentError, match="not of this conversion"):
        export(settings(directory, tmp_path, **_names(config), export_size=1, lora_rank=8))


def _names(config: TuneConfig) -> dict[str, Any]:
    """Those of an export to a folder that holds something else."""
    (Path(config.export_dir or "") / "more.txt").write_text("mine")
    (Path(config.export_dir or "") / "config.json").write_text("{}")
    for file in Path(config.export_dir or "").glob("*.safetensors"):
        file.unlink()
    return {
        "adapter_name_or_path": config.adapter_name_or_path,
        "export_dir": config.export_dir,
    }


def test_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    directory = make_tiny_model(
        tmp_path / "tiny", "qwen3_moe", dtype="bfloat16", expert_names="fused"
    )
    model, config = with_adapter(directory, tmp_path)
    merged = load_file(export(config) / "model.safetensors")
    base = load_file(directory / "model.safetensors")
    assert merged.keys() == base.keys()
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    pairs = read_adapter(tmp_path / "adapter", model.shape).pairs
    name, expert = "model.layers.1.mlp.experts.gate_up_proj", 5
    added = [pairs[f"model.layers.1.mlp.experts.5.{p}_proj"] for p in ("gate", "up")]
    product = torch.cat([torch.from_numpy(pair.rows(slice(None))) for pair in added])
    expected = (base[name][expert].float() + product).bfloat16()
    torch.testing.assert_close(merged[name][expert], expected, atol=0, rtol=0)
    norm = "model.layers.0.input_layernorm.weight"
    torch.testing.assert_close(merged[norm], base[norm], atol=0, rtol=0)
    assert (
        json.loads((tmp_path / "merged" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    )


def test_adapters_add_up(tmp_path: Path) -> None:
    """Those that are merged while a model is loaded, as all but the last are."""
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    model, _ = with_adapter(directory, tmp_path)
    adapter = read_adapter(tmp_path / "adapter", model.shape)
    weights = load_frozen(directory, dtype=torch.float32, adapters=[adapter])
    once = TrainModel(weights, new_model(directory).lora)
    torch.testing.assert_close(logits(once), logits(model), atol=1e-4, rtol=0)
    twice = new_model(directory, scale=4.0)
    load_scaled(twice, model)
    weights = load_frozen(directory, dtype=torch.float32, adapters=[adapter, adapter])
    both = TrainModel(weights, new_model(directory).lora)
    torch.testing.assert_close(logits(both), logits(twice), atol=1e-4, rtol=0)


@torch.no_grad()
def load_scaled(model: TrainModel, other: TrainModel) -> None:
    """The same matrices, whatever their scale."""
    for target, pair in model.lora.pairs.items():
        pair.a.copy_(other.lora.pairs[target].a)
        pair.b.copy_(other.lora.pairs[target].b)


def test_an_adapter_with_other_settings_is_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3")
    model, config = with_adapter(directory, tmp_path)
    folder = tmp_path / "adapter"
    adapter = read_adapter(folder, model.shape)
    with pytest.raises(Exception, match="set lora_rank and lora_alpha"):
        load_into(new_model(directory, rank=2).lora, adapter, folder)
    with pytest.raises(Exception, match="set lora_target"):
        load_into(new_model(directory, targets=("q_proj",)).lora, adapter, folder)
    with pytest.raises(ConfigError, match="set both"):
        export(settings(directory, tmp_path, export_dir=config.export_dir))
