"""A run from its settings to its files.

    from inlay.tune import TuneConfig, train
    train(TuneConfig(model_name_or_path="models/mine", dataset=("identity",), ...))
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inlay import kernels
from inlay.core.errors import ConfigError
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.models.formats import halves
from inlay.models.source import resolve_model
from inlay.tune.adapter import load_into, read_adapter
from inlay.tune.adapter_files import lost_in_peft, write_adapter
from inlay.tune.checkpoint import STATE, Say
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Dataset
from inlay.tune.folders import flush, write_whole
from inlay.tune.frozen import FrozenWeights, check_trainable, load_frozen
from inlay.tune.lora import Lora, new_lora
from inlay.tune.model import TrainModel
from inlay.tune.plot import check_plots, plot_losses
from inlay.tune.steps import StepPlan
from inlay.tune.targets import Target, chosen_targets
from inlay.tune.trainer import RunResult, Trainer, Watcher

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class Prepared:
    """A run whose settings fit its model; no weights are loaded.

    Attributes:
        directory: of the model.
        targets: matrices that get LoRA.
        trainable: weights of LoRA.
    """

    config: TuneConfig
    directory: Path
    shape: ModelShape
    targets: list[Target]

    @property
    def trainable(self) -> int:
        """Number of weights that change."""
        return sum(
            (target.experts or 1) * self.config.lora_rank * (target.rows + target.columns)
            for target in self.targets
        )


def prepare(config: TuneConfig) -> Prepared:
    """Find the model, and check what can be checked without weights and data.

    Raises:
        ModelError: there is no such model, or it is not one that can be trained.
        ConfigError: a target matches nothing, or what draws plots is missing.
    """
    cache = None if config.cache_dir is None else Path(config.cache_dir)
    directory = resolve_model(
        config.model_name_or_path, weight_format=config.base_format, cache_dir=cache
    ).directory
    shape = read_shape(directory)
    check_trainable(shape)
    for name in config.adapter_name_or_path:
        read_adapter(Path(name), shape)
    if config.plot_loss:
        check_plots()
    return Prepared(config, directory, shape, chosen_targets(shape, config.lora_target))


def train_on(
    config: TuneConfig,
    data: Dataset,
    evaluation: Dataset | None = None,
    *,
    watchers: Sequence[Watcher] = (),
    say: Say = lambda line: None,
) -> RunResult:
    """Train on rows that are tokenized already, and write all files of the run to `output_dir`.

    Args:
        watchers: are told of each step.
        say: takes what a user should know, a line each time.

    Raises:
        ConfigError, ModelError: the settings do not fit the model, the data or a checkpoint.
        ResourceError: too little memory or disk.
        TrainingError: a loss is not finite.
    """
    prepared = prepare(config)
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    if config.cpu_infer:
        threads = min(config.cpu_infer, kernels.num_threads())
        kernels.set_num_threads(threads)
        torch.set_num_threads(threads)
    weights, lora = _load(prepared)
    if lost := lost_in_peft(prepared.shape, prepared.targets):
        say(lost)
    model = TrainModel(
        weights,
        lora,
        recompute=not config.disable_gradient_checkpointing,
        retain=config.kt_cpu_activation == "retain",
    )
    trainer = Trainer(
        config,
        model,
        data,
        evaluation,
        output,
        identity=_identity(config, weights, data),
        watchers=watchers,
        say=say,
    )
    _begin(config, trainer)
    result = trainer.run()
    _write(prepared, lora, result, output)
    return result


def _load(prepared: Prepared) -> tuple[FrozenWeights, Lora]:
    config, shape = prepared.config, prepared.shape
    *merged, last = [None, *config.adapter_name_or_path]
    device = torch.device("cuda" if torch.cuda.is_available() and not config.use_cpu else "cpu")
    weights = load_frozen(
        prepared.directory,
        dtype=torch.bfloat16 if config.bf16 or config.pure_bf16 else torch.float32,
        expert_format=halves(config.base_format)[0],
        device=device,
        adapters=[read_adapter(Path(name), shape) for name in merged if name],
    )
    lora = new_lora(
        prepared.targets,
        rank=config.lora_rank,
        scale=config.lora_scale,
        seed=config.seed,
        dtype=torch.bfloat16 if config.pure_bf16 else torch.float32,
        device=device,
    )
    if last is not None:
        load_into(lora, read_adapter(Path(last), shape), Path(last))
    return weights, lora


def _begin(config: TuneConfig, trainer: Trainer) -> None:
    """Go on, or begin anew.

    As in LLaMA-Factory a run goes on by itself where `output_dir` has its checkpoints, unless
    `overwrite_output_dir` says otherwise.
    """
    wanted = config.resume_from_checkpoint
    if wanted is not None and wanted.lower() not in ("true", "false"):
        folder = Path(wanted)
        if not folder.is_dir():
            raise ConfigError(f"resume_from_checkpoint: there is no folder {wanted}")
        trainer.resume(folder)
    elif wanted is not None and wanted.lower() == "true":
        trainer.resume()
    elif config.overwrite_output_dir or wanted is not None:
        trainer.clear()
    elif trainer.has_checkpoints:
        trainer.resume()


def _identity(config: TuneConfig, weights: FrozenWeights, data: Dataset) -> Mapping[str, Any]:
    """What the losses of a run depend on; a run goes on where all of it is the same."""
    plan = StepPlan.of(config, len(data))
    digest = hashlib.blake2b(digest_size=16)
    for row in data:
        for array in (row.input_ids_N, row.labels_N, row.segment_starts_S):
            digest.update(len(array).to_bytes(8, "little") + array.tobytes())
    names = (
        "seed adapter_name_or_path pure_bf16 lora_rank lora_target lora_dropout weight_decay "
        "adam_beta1 adam_beta2 adam_epsilon max_grad_norm learning_rate lr_scheduler_type "
        "per_device_train_batch_size gradient_accumulation_steps disable_shuffling"
    ).split()
    found = {name: getattr(config, name) for name in names} | {
        "model": weights.fingerprint,
        "data": digest.hexdigest(),
        "dtype": str(weights.dtype).removeprefix("torch."),
        "expert_format": weights.expert_format,
        "lora_scale": config.lora_scale,
        "steps": plan.total,
        "warmup": plan.warmup,
    }
    plain: Mapping[str, Any] = json.loads(json.dumps(found))
    return plain


def _write(prepared: Prepared, lora: Lora, result: RunResult, output: Path) -> None:
    """All files of a run that has ended, each as a whole."""
    config = prepared.config
    growing = output / ".adapter.new"
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir()
    write_adapter(growing, lora, config, result.card)
    for name in _TOKENIZER_FILES:
        if (prepared.directory / name).is_file():
            shutil.copyfile(prepared.directory / name, growing / name)
    for file in sorted(growing.iterdir()):
        flush(file)
        os.replace(file, output / file.name)
    growing.rmdir()
    for name in ("train_results.json", "all_results.json"):
        write_whole(output / name, json.dumps(result.results, indent=2).encode())
    write_whole(output / STATE, json.dumps(result.state, indent=2).encode())
    if config.plot_loss:
        plot_losses(result.log, output)
