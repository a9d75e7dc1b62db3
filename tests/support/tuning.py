"""Small runs: rows of random tokens, models with LoRA, settings."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from inlay.core.model_config import read_shape
from inlay.tune.adapter_files import write_adapter
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Dataset
from inlay.tune.frozen import load_frozen
from inlay.tune.lora import Lora, new_lora
from inlay.tune.merged_model import export
from inlay.tune.model import TrainModel
from inlay.tune.targets import chosen_targets

VOCAB = 512


def random_rows(count: int, *, seed: int = 0, shortest: int = 6, longest: int = 20) -> Dataset:
    """Rows of one sample each, with a loss behind the first three tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, count)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = rng.integers(3, VOCAB, starts[-1]).astype(np.int32)
    labels = ids.copy()
    for start in starts[:-1]:
        labels[start : start + 3] = -100
    return Dataset(ids, labels, starts, starts[:-1])


def settings(model: Path, output: Path, **more: Any) -> TuneConfig:
    """Of a short run in which losses fall."""
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lora_rank": 4,
        "logging_steps": 1,
        "use_cpu": True,
    }
    return TuneConfig(model_name_or_path=str(model), output_dir=str(output), **(defaults | more))


def new_model(
    directory: Path,
    *,
    targets: tuple[str, ...] = ("all",),
    rank: int = 4,
    scale: float = 2.0,
    random_b: bool = False,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> TrainModel:
    """A model with LoRA, which adds nothing yet but with `random_b`."""
    weights = load_frozen(directory, dtype=dtype)
    lora = new_lora(chosen_targets(weights.shape, targets), rank=rank, scale=scale, seed=0)
    if random_b:
        fill_b(lora)
    return TrainModel(weights, lora, **options)


def make_adapter(
    model: Path, folder: Path, *, targets: tuple[str, ...] = ("all",), rank: int = 4, seed: int = 7
) -> Path:
    """Write an adapter of random matrices as a run does, and return its folder."""
    folder.mkdir(parents=True)
    shape = read_shape(model)
    lora = new_lora(chosen_targets(shape, targets), rank=rank, scale=2.0, seed=seed)
    fill_b(lora, seed)
    write_adapter(folder, lora, settings(model, folder, lora_rank=rank, lora_alpha=2 * rank), "")
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Export the model with an adapter merged into it."""
    return export(
        settings(model, folder, adapter_name_or_path=(str(adapter),), export_dir=str(folder))
    )


@torch.no_grad()
def fill_b(lora: Lora, seed: int = 7) -> None:
    """Give B matrices random values."""
    generator = torch.Generator().manual_seed(seed)
    for pair in lora.pairs.values():
        pair.b.normal_(0, 0.05, generator=generator)
