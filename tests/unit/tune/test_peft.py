"""Beside transformers and PEFT: the same losses step by step, and adapters that both read alike."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.adapter import read_adapter
from inlay.tune import TuneConfig, collate, export
from inlay.tune.adapter import load_into, matrices_of
from inlay.tune.adapter_files import lost_in_peft, save_tensors, write_adapter
from inlay.tune.model import TrainModel
from inlay.tune.optimizer import AdamW
from inlay.tune.steps import StepPlan
from tests.support.peft_models import TARGETS, load_base, same_in_peft
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import new_model, random_rows, settings

# Of PEFT about transformers, and about patterns that it makes itself of experts' matrices.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),
]
STEPS = 50


def peft_of(directory: Path, adapter: Path) -> torch.nn.Module:
    from peft import PeftModel

    return PeftModel.from_pretrained(load_base(directory), adapter).eval()


def losses_of_peft(directory: Path, model: TrainModel, config: TuneConfig) -> Iterator[float]:
    """Losses of PEFT's steps from the same beginning."""
    peft, named = same_in_peft(directory, model)
    trained = list(named.values())
    optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
    rows, plan = random_rows(12), StepPlan.of(config, 12)
    for step in range(STEPS):
        numbers = [number for part in plan.batches(step) for number in part]
        total = sum(rows[number].num_loss_tokens for number in numbers)
        summed = 0.0
        for number in numbers:
            ids = torch.from_numpy(rows[number].input_ids_N).long()[None]
            labels = torch.from_numpy(rows[number].labels_N).long()
            logits = peft(input_ids=ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum")
            (loss / total).backward()
            summed += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, config.max_grad_norm)
        optimizer.param_groups[0]["lr"] = plan.rate(step)
        optimizer.step()
        optimizer.zero_grad()
        yield summed / total


def our_losses(model: TrainModel, config: TuneConfig) -> Iterator[float]:
    rows, plan = random_rows(12), StepPlan.of(config, 12)
    optimizer = AdamW(model.lora.named(), beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0)
    for step in range(STEPS):
        batches = [collate([rows[row] for row in part]) for part in plan.batches(step)]
        total = sum(batch.num_loss_tokens for batch in batches)
        summed = 0.0
        for batch in batches:
            ids, positions, labels = (
                torch.from_numpy(array).long()
                for array in (batch.input_ids_T, batch.positions_T, batch.targets_T)
            )
            loss = model.loss(ids, positions, batch.segment_starts_S.tolist(), labels)
            (loss / total).backward()
            summed += loss.item()
        norm = optimizer.norm()
        optimizer.step(plan.rate(step), min(1.0, config.max_grad_norm / (norm + 1e-6)))
        yield summed / total


def test_losses_are_those_of_peft(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    config = settings(
        directory, tmp_path, max_steps=STEPS, lr_scheduler_type="cosine", warmup_ratio=0.1
    )
    model = new_model(directory, targets=TARGETS)
    theirs = list(losses_of_peft(directory, model, config))
    ours = list(our_losses(model, config))
    assert ours[-1] < 0.7 * ours[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=0)


def written(model: TrainModel, directory: Path, folder: Path) -> Path:
    folder.mkdir()
    write_adapter(folder, model.lora, settings(directory, folder), "card")
    return folder


@torch.no_grad()
def logits_beside(reference: torch.nn.Module, model: TrainModel) -> tuple[Tensor, Tensor]:
    ids = torch.arange(3, 40)
    ours = model.logits(ids, torch.arange(len(ids)), [0, len(ids)])
    return ours, reference(ids[None]).logits[0]


def test_adapters_load_in_peft(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    model = new_model(directory, random_b=True)
    folder = written(model, directory, tmp_path / "adapter")
    ours, theirs = logits_beside(peft_of(directory, folder), model)
    base, _ = logits_beside(load_base(directory), new_model(directory))
    assert (ours - base).abs().max() > 0.5  # the adapter changes something
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_what_peft_leaves_out_is_said(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "deepseek_v2")
    model = new_model(directory, random_b=True)
    targets = list(model.lora.pairs)
    assert "dense layers, shared experts" in lost_in_peft(model.shape, targets)
    kept = [t for t in targets if t.experts or "self_attn" in t.name]
    assert lost_in_peft(model.shape, kept) == ""
    moe = new_model(make_tiny_model(tmp_path / "moe", "qwen3_moe"))
    assert lost_in_peft(moe.shape, list(moe.lora.pairs)) == ""


def test_routed_experts_of_deepseek_load_in_peft(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "deepseek_v2")
    attention = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    experts = ("experts.gate_proj", "experts.up_proj", "experts.down_proj")
    model = new_model(directory, targets=attention + experts, random_b=True)
    folder = written(model, directory, tmp_path / "adapter")
    ours, theirs = logits_beside(peft_of(directory, folder), model)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_what_peft_leaves_out_is_in_the_merged_model(tmp_path: Path) -> None:
    """Shared experts and the dense layer have adapters, too, and transformers reads the result."""
    directory = make_tiny_model(tmp_path / "tiny", "deepseek_v2", num_hidden_layers=3)
    model = new_model(directory, random_b=True)
    folder = written(model, directory, tmp_path / "adapter")
    about = settings(
        directory,
        tmp_path,
        adapter_name_or_path=(str(folder),),
        export_dir=str(tmp_path / "merged"),
    )
    ours, theirs = logits_beside(load_base(export(about)), model)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_adapters_of_peft_are_read(tmp_path: Path) -> None:
    """Stacked experts, as PEFT writes them."""
    from peft import LoraConfig, get_peft_model

    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        task_type="CAUSAL_LM",
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    peft = get_peft_model(load_base(directory), config).eval()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    peft.save_pretrained(tmp_path / "adapter")
    every = ("q_proj", "gate_proj", "up_proj", "down_proj")
    model = new_model(directory, targets=every)
    load_into(model.lora, read_adapter(tmp_path / "adapter", model.shape), tmp_path)
    ours, theirs = logits_beside(peft, model)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_adapters_of_ktransformers_are_read(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    model = new_model(directory, random_b=True)
    folder = written(model, directory, tmp_path / "adapter")
    rest, stacked = {}, {}
    for key, matrix in matrices_of(model.lora):
        if ".experts." not in key:
            rest[key] = matrix
    for target, pair in model.lora.pairs.items():
        if target.experts:
            part = target.leaf.removesuffix("_proj")
            stacked[f"layers.{target.layer}.experts.{part}_lora_a"] = pair.a.detach().clone()
            stacked[f"layers.{target.layer}.experts.{part}_lora_b"] = pair.b.detach().clone()
    save_tensors(folder / "adapter_model.safetensors", rest)
    save_tensors(folder / "fused_expert_lora.safetensors", stacked)
    read = read_adapter(folder, model.shape)
    whole = read_adapter(written(model, directory, tmp_path / "whole"), model.shape)
    assert read.pairs.keys() == whole.pairs.keys()
    for module, pair in read.pairs.items():
        torch.testing.assert_close(pair.a, whole.pairs[module].a, atol=0, rtol=0)
        torch.testing.assert_close(pair.b, whole.pairs[module].b, atol=0, rtol=0)
    # Its manifest has the hashes of all files.
    names = ("adapter_config.json", "adapter_model.safetensors", "fused_expert_lora.safetensors")
    manifest = {
        "version": 1,
        "status": "ready",
        "artifacts": dict(map(artifact, [folder / n for n in names])),
    }
    file = folder / "kt_adapter_manifest.json"
    file.write_text(json.dumps(manifest))
    assert read_adapter(folder, model.shape).pairs.keys() == whole.pairs.keys()
    for wrong, words in (
        (manifest | {"status": "writing"}, "status writing"),
        (manifest | {"artifacts": {}}, "does not have adapter_model.safetensors"),
        (
            manifest
            | {"artifacts": manifest["artifacts"] | {"gone.bin": {"size": 1, "sha256": "0"}}},
            "gone.bin: No such file",
        ),
        ({"version": 1}, "is damaged"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ModelFileError, match=words):
            read_adapter(folder, model.shape)
    file.write_text(json.dumps(manifest))
    fused = folder / "fused_expert_lora.safetensors"
    content = bytearray(fused.read_bytes())
    content[-1] ^= 1
    fused.write_bytes(content)
    with pytest.raises(ModelFileError, match="fused_expert_lora.safetensors has .* SHA-256"):
        read_adapter(folder, model.shape)


def artifact(file: Path) -> tuple[str, dict[str, Any]]:
    """An entry of KTransformers' manifest."""
    content = file.read_bytes()
    return file.name, {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_adapters_of_other_models_are_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    model = new_model(directory)
    folder = written(model, directory, tmp_path / "adapter")
    wide = make_tiny_model(tmp_path / "wide", "qwen3_moe", moe_intermediate_size=48)
    with pytest.raises(ModelFileError, match="another model's"):
        read_adapter(folder, new_model(wide).shape)
    with pytest.raises(ModelFileError, match="no module for"):
        read_adapter(folder, new_model(make_tiny_model(tmp_path / "d", "qwen3")).shape)
    dora = tmp_path / "dora"
    shutil.copytree(folder, dora)
    about = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps(about | {"use_dora": True}))
    with pytest.raises(UnsupportedModelError, match="use_dora"):
        read_adapter(dora, model.shape)
