"""Writing an adapter as PEFT reads it, with a model card."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from inlay import __version__
from inlay.core.model_shape import ModelShape
from inlay.models.adapter import CONFIG, WEIGHTS
from inlay.models.targets import Target, targets_of
from inlay.tune.adapter import matrices_of
from inlay.tune.config import TuneConfig
from inlay.tune.lora import Lora

_OWNERS = {"mlp": "dense layers", "shared_experts": "shared experts"}


def write_adapter(folder: Path, lora: Lora, config: TuneConfig, card: str) -> None:
    """Write the matrices, one pair for each expert, and what PEFT wants to know of them.

    Args:
        folder: there, and not of value yet: see `inlay.tune.folders.whole_folder`.
        card: text of README.md.

    Raises:
        OSError: the disk does not take it.

    Cost: the matrices once more in memory.
    """
    save_tensors(folder / WEIGHTS, dict(matrices_of(lora)))
    about = {
        "base_model_name_or_path": config.model_name_or_path,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha_of(config),
        "lora_dropout": config.lora_dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": config.lora_rank,
        "target_modules": sorted({target.leaf for target in lora.pairs}),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": config.use_rslora,
    }
    (folder / CONFIG).write_text(json.dumps(about, indent=2), "utf-8")
    (folder / "README.md").write_text(card, "utf-8")


def alpha_of(config: TuneConfig) -> float:
    """A whole number where it is one, as PEFT's files have it."""
    alpha = 2 * config.lora_rank if config.lora_alpha is None else config.lora_alpha
    return int(alpha) if alpha == int(alpha) else alpha


def save_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write safetensors.

    Raises:
        OSError: the disk does not take it, `errno`.
    """
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error


def lost_in_peft(shape: ModelShape, targets: Sequence[Target]) -> str:
    """What PEFT leaves out of such an adapter without a word; empty: nothing.

    It turns target modules with names of experts' matrices into parameters of experts alone, so
    those of shared experts and dense layers are dropped (seen with PEFT 0.21).
    """
    leaves = {target.leaf for target in targets_of(shape) if target.experts}
    lost = {
        _OWNERS.get(owner, owner)
        for target in targets
        if not target.experts and target.leaf in leaves
        for owner in [target.path.split(".")[-2]]
    }
    if not lost:
        return ""
    return (
        f"PEFT leaves out the adapters of {', '.join(sorted(lost))} when it loads this one: give "
        "others the merged model (inlay tune export)"
    )


@dataclass(frozen=True)
class CardFacts:
    """What a model card tells of a run besides its settings."""

    trainable: int
    rows: int
    steps: int
    losses: Mapping[str, float]


def model_card(config: TuneConfig, facts: CardFacts) -> str:
    """README.md of an adapter, with the table of contents that hubs read."""
    head = {
        "base_model": config.model_name_or_path,
        "library_name": "peft",
        "tags": ["inlay", "lora", "sft"],
    }
    settings: dict[str, Any] = {
        "data": ", ".join(config.dataset),
        "rows": facts.rows,
        "rank": config.lora_rank,
        "alpha": alpha_of(config),
        "dropout": config.lora_dropout,
        "targets": ", ".join(config.lora_target),
        "trained weights": f"{facts.trainable:,}",
        "learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type}",
        "rows per step": config.per_device_train_batch_size * config.gradient_accumulation_steps,
        "steps": facts.steps,
        "seed": config.seed,
    }
    settings |= {name.replace("_", " "): f"{value:.4f}" for name, value in facts.losses.items()}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", ""]
    lines += [f"# LoRA adapter of {Path(config.model_name_or_path).name}", ""]
    lines += [f"Trained with Inlay {__version__}.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in settings.items()]
    return "\n".join(lines) + "\n"
