"""A run from its settings to its files.

from inlay.tune import TuneConfig, train
train(TuneConfig(model_name_or_path="models/mine", dataset=("identity",), ...))
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inlay import kernels
from inlay.core.errors import ConfigError, UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.models.adapter import Adapter, read_adapter
from inlay.models.checkpoint import open_checked
from inlay.models.formats import halves
from inlay.models.memory import device_free_bytes, free_memory_bytes, keep_freed
from inlay.models.packed_metadata import PACKED_FILE
from inlay.models.source import resolve_model
from inlay.models.targets import Target
from inlay.models.text import Text
from inlay.models.vocabularies import FORMS
from inlay.tune.adapter import check_continues, load_into
from inlay.tune.adapter_files import lost_in_peft, write_adapter
from inlay.tune.checkpoint import STATE, STEPS, WARMUP, Checkpoints, Say
from inlay.tune.checks import base_note, check_disk, check_rows, position_note, warmup_note
from inlay.tune.config import TuneConfig
from inlay.tune.data.load import TuneData, load_data
from inlay.tune.devices import Stage, stages_of
from inlay.tune.folders import check_writable, flush, write_whole
from inlay.tune.frozen import FrozenWeights, check_trainable, load_frozen
from inlay.tune.frozen_formats import held_format, product_dtype
from inlay.tune.idle_settings import idle_settings
from inlay.tune.lora import Lora, new_lora
from inlay.tune.memory import MemoryNeed, memory_need, process_bytes, trainable_of
from inlay.tune.merge import MergedTensors
from inlay.tune.model import TrainModel
from inlay.tune.placement_rules import follow_rules
from inlay.tune.plan import RowCounts
from inlay.tune.plot import check_plots, plot_losses
from inlay.tune.predictions import predict
from inlay.tune.scores import check_scores
from inlay.tune.steps import StepPlan
from inlay.tune.targets import chosen_targets
from inlay.tune.tensorboard import TensorBoard, check_tensorboard
from inlay.tune.trainer import RunResult, Stop, Trainer, Watcher, never

_TOKENIZER_FILES = (
    *FORMS,
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class Prepared:
    """A run whose settings, data and model fit together; no weights are loaded.

    Attributes:
        directory: of the model.
        targets: matrices that get LoRA.
        adapters: that the settings name, in their order.
        expert_format: weight format of the routed experts.
        stages: where layers are.
        plan: its steps.
        need: memory that it takes.
        rules: what was made of `kt_optimize_rule`, a line each.
        identity: what its losses depend on.
        begins_from: the checkpoint that it goes on from; None: it begins anew.
    """

    config: TuneConfig
    directory: Path
    shape: ModelShape
    data: TuneData
    targets: list[Target]
    adapters: tuple[Adapter, ...]
    expert_format: str
    stages: tuple[Stage, ...]
    plan: StepPlan
    need: MemoryNeed
    rules: tuple[str, ...]
    identity: Mapping[str, Any]
    begins_from: Path | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What may be other than it was meant, a line each."""
        has_evaluation = self.data.evaluation is not None
        of_model = (
            position_note(self.data.train, self.shape),
            warmup_note(self.plan),
            *(base_note(self.config, adapter) for adapter in self.adapters),
            lost_in_peft(self.shape, self.targets),
        )
        idle = idle_settings(
            self.config,
            self.shape,
            has_evaluation=has_evaluation,
            begins_anew=self.begins_from is None,
        )
        return (*self.data.notes, *self.rules, *idle, *(note for note in of_model if note))

    @property
    def summary(self) -> str:
        """What is to be done, in a few lines."""
        config, rows = self.config, self.data.train
        trainable = trainable_of(self.targets, config.lora_rank)
        leaves = dict.fromkeys(target.leaf for target in self.targets)
        return (
            f"{self.directory.name}: {self.shape.architecture}, {self.shape.parameters:,} weights "
            f"frozen, {trainable:,} trained ({', '.join(leaves)})\n"
            f"{len(rows)} rows, {rows.num_tokens:,} tokens, {rows.num_loss_tokens:,} with a loss; "
            f"{self.plan.total} steps of {config.per_device_train_batch_size} x "
            f"{config.gradient_accumulation_steps} rows\n{self.need.summary}"
        )


def prepare(config: TuneConfig, data: TuneData | None = None) -> Prepared:
    """Check all that can be checked before weights are loaded.

    Args:
        data: rows that are tokenized already; None: those that the settings name.

    Raises:
        ModelError: there is no such model, adapter or checkpoint, its files are not as they must
            be, or it is not one that can be trained, or trained on.
        ConfigError: a target matches nothing, a dataset or template is not there, a folder takes
            no files, the checkpoint is another run's, or what draws plots is missing.
        DataError: data are not as they must be.
        ResourceError: the run does not fit in memory, or its files not on the disk.

    Cost: tokenizing; adapters and samples of the model's files are read.
    """
    directory = resolve_model(
        config.model_name_or_path, weight_format=config.base_format, cache_dir=config.cache_path
    ).directory
    shape = read_shape(directory)
    check_trainable(shape)
    ruled = follow_rules(config, shape, _gpus(config))
    config = ruled.config
    targets = chosen_targets(shape, config.lora_target)
    if (directory / PACKED_FILE).is_file():
        raise UnsupportedModelError(
            f"{directory} holds packed weights, which are not trained on: name the model that they "
            "were made from"
        )
    tensors, _ = open_checked(directory, shape)
    names = [Path(name) for name in config.adapter_name_or_path]
    adapters = tuple(read_adapter(name, shape) for name in names)
    if adapters:
        check_continues(adapters[-1], names[-1], targets, config.lora_rank, config.lora_scale)
    if config.plot_loss:
        check_plots()
    check_writable(Path(config.output_dir), "output_dir")
    if config.report_to == "tensorboard":
        check_tensorboard()
        check_writable(_events_dir(config), "logging_dir")
    if data is None:
        data = load_data(config, Text.load(directory))
    if config.do_predict:
        check_scores()
        if data.evaluation is None:
            raise ConfigError("do_predict has nothing to answer: set eval_dataset or val_size")
    for some in (data.train, data.evaluation):
        if some is not None:
            check_rows(some, shape)
    check_disk(config, trainable_of(targets, config.lora_rank))
    expert_format = held_format(shape, halves(config.base_format)[0], product_dtype(config))
    stages = stages_of(config.devices, shape.layers, _gpus(config))
    need = memory_need(
        config,
        shape,
        expert_format,
        targets,
        RowCounts.of(config, data.train).batch_tokens,
        process=process_bytes(),
        stages=stages,
    )
    need.check(free_memory_bytes(), {name: device_free_bytes(name) for name in need.devices})
    plan = StepPlan.of(config, len(data.train))
    model = MergedTensors(tensors, shape, adapters[:-1]).fingerprint(shape)
    identity = _identity(config, data, plan, model, expert_format)
    return Prepared(
        config=config,
        directory=directory,
        shape=shape,
        data=data,
        targets=targets,
        adapters=adapters,
        expert_format=expert_format,
        stages=stages,
        plan=plan,
        need=need,
        rules=ruled.notes,
        identity=identity,
        begins_from=Checkpoints(Path(config.output_dir), config, shape, identity).check(),
    )


def train(
    config: TuneConfig,
    data: TuneData | None = None,
    *,
    watchers: Sequence[Watcher] = (),
    say: Say = lambda line: None,
    stop: Stop = never,
) -> RunResult:
    """Train, and write all files of the run to `output_dir`.

    Args:
        data: rows that are tokenized already; None: those that the settings name.
        watchers: are told of each step.
        say: takes what a user should know, a line each time.
        stop: asked after each step whether to end here, in a state that a run goes on from.

    Raises:
        ConfigError, ModelError, DataError: as `prepare`; a checkpoint is another run's.
        ResourceError: too little memory or disk.
        TrainingError: a loss is not finite, or `stop` ended the run.
    """
    prepared = prepare(config, data)
    config = prepared.config
    for note in prepared.notes:
        say(note)
    say(prepared.summary)
    if config.cpu_infer:
        threads = min(config.cpu_infer, kernels.num_threads())
        kernels.set_num_threads(threads)
        torch.set_num_threads(threads)
    weights, lora = _load(prepared)
    keep_freed()
    model = TrainModel(
        weights,
        lora,
        recompute=not config.disable_gradient_checkpointing,
        retain=config.kt_cpu_activation == "retain",
    )
    output = Path(config.output_dir)
    trainer = Trainer(
        config,
        model,
        prepared.data.train,
        prepared.data.evaluation,
        output,
        identity=prepared.identity,
        watchers=watchers,
        say=say,
    )
    trainer.resume()
    with ExitStack() as closing:
        report = None
        if config.report_to == "tensorboard":
            report = TensorBoard(_events_dir(config), trainer.steps_done)
            closing.callback(report.close)
        result = trainer.run(report, stop)
    _write(prepared, lora, result, output)
    if config.do_predict:
        del trainer, model, weights, lora  # an engine needs the memory
        before = config.adapter_name_or_path[:-1]
        predict(replace(config, adapter_name_or_path=(*before, config.output_dir)), say=say)
    return result


def _load(prepared: Prepared) -> tuple[FrozenWeights, Lora]:
    config = prepared.config
    devices = [torch.device(stage.device) for stage in prepared.stages for _ in stage.layers]
    weights = load_frozen(
        prepared.directory,
        dtype=getattr(torch, product_dtype(config)),
        expert_format=prepared.expert_format,
        layer_devices=devices,
        adapters=prepared.adapters[:-1],
    )
    lora = new_lora(
        prepared.targets,
        rank=config.lora_rank,
        scale=config.lora_scale,
        seed=config.seed,
        dtype=torch.bfloat16 if config.pure_bf16 else torch.float32,
        layer_devices=devices,
    )
    if prepared.adapters:
        load_into(lora, prepared.adapters[-1], Path(config.adapter_name_or_path[-1]))
    return weights, lora


def _events_dir(config: TuneConfig) -> Path:
    """Of TensorBoard's files."""
    return Path(config.logging_dir or Path(config.output_dir) / "runs")


def _gpus(config: TuneConfig) -> int:
    return 0 if config.use_cpu or not torch.cuda.is_available() else torch.cuda.device_count()


def _identity(
    config: TuneConfig, data: TuneData, plan: StepPlan, model: str, expert_format: str
) -> Mapping[str, Any]:
    """What the losses of a run depend on; a run goes on where all of it is the same.

    Args:
        model: fingerprint of the frozen weights.
    """
    digest = hashlib.blake2b(digest_size=16)
    for row in data.train:
        for array in (row.input_ids_N, row.labels_N, row.segment_starts_S):
            digest.update(len(array).to_bytes(8, "little") + array.tobytes())
    names = (
        "seed adapter_name_or_path pure_bf16 lora_rank lora_target lora_dropout weight_decay "
        "adam_beta1 adam_beta2 adam_epsilon max_grad_norm learning_rate lr_scheduler_type "
        "per_device_train_batch_size gradient_accumulation_steps disable_shuffling"
    ).split()
    found = {name: getattr(config, name) for name in names} | {
        "model": model,
        "data": digest.hexdigest(),
        "dtype": product_dtype(config),
        "expert_format": expert_format,
        "lora_scale": config.lora_scale,
        STEPS: plan.total,
        WARMUP: plan.warmup,
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
