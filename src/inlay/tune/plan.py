"""What a run will take, before it starts and from a model's shape alone: memory, tokens/s, hours.

    plan = plan_run(config, shape, machine, RowCounts(...), process=process_bytes())

Times are those of `inlay.tune.batch_time`, a part after the other, and of the optimizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.core.hardware import Machine
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU
from inlay.models.formats import halves
from inlay.models.targets import Target
from inlay.tune.batch_time import TYPICAL, BatchTime, Pace
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Dataset
from inlay.tune.devices import stages_of
from inlay.tune.frozen_formats import held_format, product_dtype
from inlay.tune.memory import MemoryNeed, MemoryUse, memory_need, trainable_of
from inlay.tune.steps import StepPlan
from inlay.tune.targets import chosen_targets

# Of each weight: 25 times float32, in about ten operations, each over a whole matrix.
_UPDATE_BYTES = 25 * 4


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """The data of a run, as far as they are known.

    Attributes:
        rows: how many there are; None: nobody knows.
        mean_tokens: of a row.
        batch_tokens: of the largest micro-batch.
    """

    rows: int | None
    mean_tokens: float
    batch_tokens: int

    @classmethod
    def longest(cls, config: TuneConfig, rows: int | None) -> "RowCounts":
        """Rows as long as they may be."""
        most = config.cutoff_len
        return cls(
            rows=rows,
            mean_tokens=most,
            batch_tokens=most * config.per_device_train_batch_size,
        )

    @classmethod
    def of(cls, config: TuneConfig, data: Dataset) -> "RowCounts":
        """Those of data that are there."""
        lengths = sorted(data.row_lengths_R.tolist())
        return cls(
            rows=len(data),
            mean_tokens=data.num_tokens / len(data),
            batch_tokens=sum(lengths[-config.per_device_train_batch_size :]),
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run on a machine.

    Attributes:
        expert_format: of the routed experts.
        targets: matrices that get LoRA.
        need: memory.
        pace: by which it was timed.
        seconds: of one step, by part.
        step_tokens: of one step.
        steps: of the run; None: nobody knows how many rows there are.
    """

    config: TuneConfig
    shape: ModelShape
    machine: Machine
    expert_format: str
    targets: tuple[Target, ...]
    counts: RowCounts
    need: MemoryNeed
    pace: Pace
    seconds: Mapping[str, float]
    step_tokens: float
    steps: int | None

    @property
    def products(self) -> str:
        """The dtype of all products, and of frozen matrices besides routed experts."""
        return product_dtype(self.config)

    @property
    def trainable(self) -> int:
        """Number of weights that change."""
        return trainable_of(self.targets, self.config.lora_rank)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def tokens_per_s(self) -> float:
        """Tokens that are trained on in a second."""
        return self.step_tokens / self.step_s

    @property
    def hours(self) -> float | None:
        """Of the whole run."""
        return None if self.steps is None else self.steps * self.step_s / 3600

    @property
    def uses(self) -> Mapping[str, tuple[MemoryUse, int]]:
        """What is taken of each memory, and the bytes that it has."""
        gpus = dict(zip(self.machine.device_names[1:], self.machine.gpus, strict=True))
        return {
            "host": (self.need.host, int(self.machine.host.memory_bytes)),
            **{
                name: (use, int(gpus[name].memory_bytes)) for name, use in self.need.devices.items()
            },
        }

    def check(self) -> None:
        """Refuse what the machine's memory cannot hold. Raises as `MemoryNeed.check`."""
        room = {name: there for name, (_, there) in self.uses.items()}
        self.need.check(room.pop("host") - self.need.host.process, room)


def plan_run(
    config: TuneConfig,
    shape: ModelShape,
    machine: Machine,
    counts: RowCounts,
    *,
    process: int,
    pace: Pace = TYPICAL,
) -> RunPlan:
    """Count and time a run. Routed experts are the processors', all else the GPUs' if there are.

    Args:
        process: bytes, as `inlay.tune.memory.process_bytes` gives them.
        pace: of the processors; that of this machine is `inlay.tune.trial.measure_pace`'s.

    Raises:
        ConfigError: a target matches nothing.
    """
    expert_format = held_format(shape, halves(config.base_format)[0], product_dtype(config))
    targets = chosen_targets(shape, config.lora_target)
    stages = stages_of(config.devices, shape.layers, 0 if config.use_cpu else len(machine.gpus))
    need = memory_need(
        config,
        shape,
        expert_format,
        targets,
        counts.batch_tokens,
        process=process,
        stages=stages,
    )
    batches = config.gradient_accumulation_steps
    batch_tokens = counts.mean_tokens * config.per_device_train_batch_size
    on_gpus = sum(len(stage.layers) for stage in stages if stage.device != CPU) / shape.layers
    of_batch = BatchTime(
        config, shape, machine, pace, on_gpus, round(batch_tokens), counts.mean_tokens
    )
    seconds = {name: batches * taken for name, taken in of_batch.seconds(expert_format).items()} | {
        "optimizer": _update_s(config, machine, targets)
    }
    steps = None
    if config.max_steps > 0:
        steps = config.max_steps
    elif counts.rows is not None:
        steps = StepPlan.of(config, counts.rows).total
    return RunPlan(
        config=config,
        shape=shape,
        machine=machine,
        expert_format=expert_format,
        targets=tuple(targets),
        counts=counts,
        need=need,
        pace=pace,
        seconds=seconds,
        step_tokens=batches * batch_tokens,
        steps=steps,
    )


def _update_s(config: TuneConfig, machine: Machine, targets: list[Target]) -> float:
    """What the norm and AdamW read and write, an operation after the other."""
    moved = _UPDATE_BYTES * trainable_of(targets, config.lora_rank)
    return moved / (machine.host.bandwidth_gbs * 1e9)
