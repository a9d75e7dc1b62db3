"""Which rows a step takes, and its learning rate: functions of the step's number alone.

So a run that was resumed, at whatever step, goes on as it would have gone.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from inlay.core.errors import ConfigError
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Int64Array, row_order

CONSTANT = ("constant", "constant_with_warmup")
"""Schedules whose learning rate does not depend on how many steps follow."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The steps of a run, from 0.

    Attributes:
        num_rows: of the data.
        rows_per_batch: of a micro-batch.
        batches_per_step: micro-batches whose gradients are summed; the last step of an epoch may
            have fewer.
        total: number of steps.
        warmup: steps in which the learning rate rises.
    """

    num_rows: int
    rows_per_batch: int
    batches_per_step: int
    total: int
    warmup: int
    schedule: str
    learning_rate: float
    seed: int
    shuffle: bool

    @classmethod
    def of(cls, config: TuneConfig, num_rows: int) -> "StepPlan":
        """That of a configuration.

        Raises:
            ConfigError: there are no rows.
        """
        if num_rows < 1:
            raise ConfigError(
                "no sample is left to train on: look at dataset, max_samples, val_size"
            )
        batches = math.ceil(num_rows / config.per_device_train_batch_size)
        per_epoch = math.ceil(batches / config.gradient_accumulation_steps)
        total = math.ceil(per_epoch * config.num_train_epochs)
        if config.max_steps > 0:
            total = config.max_steps
        warmup = steps_of(config.warmup_steps, total) or math.ceil(config.warmup_ratio * total)
        return cls(
            num_rows=num_rows,
            rows_per_batch=config.per_device_train_batch_size,
            batches_per_step=config.gradient_accumulation_steps,
            total=total,
            warmup=warmup,
            schedule=config.lr_scheduler_type,
            learning_rate=config.learning_rate,
            seed=config.seed,
            shuffle=not config.disable_shuffling,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Steps that take each row once."""
        return math.ceil(math.ceil(self.num_rows / self.rows_per_batch) / self.batches_per_step)

    def epoch_after(self, step: int) -> float:
        """Passes over the data that are done after a step."""
        return (step + 1) / self.steps_per_epoch

    def batches(self, step: int) -> list[list[int]]:
        """Rows of each micro-batch of a step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        order = _order(self.num_rows, self.seed, epoch, self.shuffle)
        first = number * self.batches_per_step * self.rows_per_batch
        of_step = order[first : first + self.batches_per_step * self.rows_per_batch].tolist()
        return [
            of_step[start : start + self.rows_per_batch]
            for start in range(0, len(of_step), self.rows_per_batch)
        ]

    def rate(self, step: int) -> float:
        """The learning rate of a step.

        Source: the schedules of transformers' `get_scheduler`, with their names.
        """
        if self.schedule == "constant":
            return self.learning_rate
        if step < self.warmup:
            return self.learning_rate * step / self.warmup
        if self.schedule in CONSTANT:
            return self.learning_rate
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * max(0.0, 1 - done)


@lru_cache(maxsize=2)
def _order(num_rows: int, seed: int, epoch: int, shuffle: bool) -> Int64Array:
    return row_order(num_rows, seed=seed, epoch=epoch, shuffle=shuffle)


def steps_of(value: float, total: int) -> int:
    """A number of steps; below 1 it is a share of all."""
    return math.ceil(value * total) if value < 1 else int(value)
