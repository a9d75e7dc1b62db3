"""What a run will take, before it starts and from a model's shape alone: memory, tokens/s, hours.

    plan = plan_run(config, shape, machine, RowCounts(...), process=process_bytes())

Times are those of `inlay.core.roofline`: of each part, bytes over bandwidth or operations over
peak, whichever is longer, times the passes that training makes over it. Parts follow one another.
Left out: norms, the products of LoRA matrices (a percent of their targets' at rank 8), launches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from inlay.core.hardware import Device, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU
from inlay.core.roofline import Formats, Kind, Part, Step, Work, parts_of, seconds_on, work_of
from inlay.models.formats import halves
from inlay.models.targets import Target
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Dataset
from inlay.tune.devices import stages_of
from inlay.tune.frozen_formats import held_format, product_dtype
from inlay.tune.memory import MemoryNeed, MemoryUse, memory_need, trainable_of
from inlay.tune.steps import StepPlan
from inlay.tune.targets import chosen_targets

# Gate and up, of a routed expert's three products: what the backward pass computes again.
_GATE_AND_UP = 2 / 3
# Of attention backward over forward: scores again, and four products for two.
_ATTENTION_BACKWARD = 2.5
_CROSSING_BYTES = 4  # rows go to the host's experts and back as float32


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
) -> RunPlan:
    """Count and time a run. Routed experts are the processors', all else the GPUs' if there are.

    Args:
        process: bytes, as `inlay.tune.memory.process_bytes` gives them.

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
    of_batch = _Batch(config, shape, machine, on_gpus, round(batch_tokens), counts.mean_tokens)
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
        seconds=seconds,
        step_tokens=batches * batch_tokens,
        steps=steps,
    )


def _update_s(config: TuneConfig, machine: Machine, targets: list[Target]) -> float:
    """Reading a matrix, its gradient and moments, and writing all but the gradient."""
    width = 2 if config.pure_bf16 else 4
    moved = 7 * width * trainable_of(targets, config.lora_rank)
    return moved / (machine.host.bandwidth_gbs * 1e9)


class _Batch:
    """One micro-batch, forward and backward."""

    def __init__(
        self,
        config: TuneConfig,
        shape: ModelShape,
        machine: Machine,
        gpu_share: float,
        tokens: int,
        row_tokens: float,
    ) -> None:
        self._config, self._shape, self._machine = config, shape, machine
        self._gpu_share, self._tokens, self._row_tokens = gpu_share, tokens, row_tokens
        self._recomputes = not config.disable_gradient_checkpointing

    def seconds(self, expert_format: str) -> dict[str, float]:
        """By part."""
        shape, products = self._shape, product_dtype(self._config)
        parts = parts_of(
            shape,
            Formats(
                experts=expert_format,
                mlp=products,
                attention=products,
                latent=products,
                head=products,
                kv=products,
            ),
        )
        found = {
            part.name: self._part_s(part, products)
            for part in parts
            if part.name not in ("embedding", "norms")
        }
        if self._gpu_share and shape.sparse_layers:
            found["between GPU and host"] = self._crossing_s()
        return found

    def _part_s(self, part: Part, products: str) -> float:
        share = 0.0 if part.name == "routed experts" else self._gpu_share
        host = self._device_s(self._machine.host, "cpu", part, products)
        if not share or self._machine.gpu is None:
            return host
        return (1 - share) * host + share * self._device_s(self._machine.gpu, "gpu", part, products)

    def _device_s(self, device: Device, kind: Kind, part: Part, products: str) -> float:
        work = work_of(self._shape, part, Step(new_tokens=max(1, self._tokens)))
        passes = self._passes(part.name)
        if part.name == "attention core":
            work = self._attention()
        elif part.name == "output matrix":
            work = replace(work, flops=2.0 * self._tokens * part.elements)
        read = Work(flops=0, read_bytes=passes * work.read_bytes)
        compute = Work(flops=passes * work.flops, read_bytes=0)
        # Whatever weights are held in, they are multiplied in the dtype of products.
        return max(
            seconds_on(device, kind, part, read)[0],
            seconds_on(device, kind, replace(part, format=products), compute)[0],
        )

    def _passes(self, part: str) -> float:
        """Times the forward pass's products: forward, again for the backward pass, backward."""
        if part == "output matrix":
            return 2
        again = 1 if self._recomputes else 0
        if part == "attention core":
            return 1 + again + _ATTENTION_BACKWARD
        if part == "routed experts" and self._config.kt_cpu_activation == "recompute":
            return 2 + again + _GATE_AND_UP
        return 2 + again

    def _attention(self) -> Work:
        """Each token with those before it in its row."""
        shape = self._shape
        pairs = self._tokens * (self._row_tokens + 1) / 2
        return Work(flops=shape.layers * pairs * 4 * shape.heads * shape.head_dim, read_bytes=0)

    def _crossing_s(self) -> float:
        gpu = self._machine.gpu
        assert gpu is not None
        times = 2 * (2 + (1 if self._recomputes else 0))
        moved = times * len(self._shape.sparse_layers) * self._tokens * self._shape.hidden
        if not gpu.link_gbs:
            return math.inf
        return self._gpu_share * moved * _CROSSING_BYTES / (gpu.link_gbs * 1e9)
