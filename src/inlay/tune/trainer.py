"""The loop of a run: steps, logs, evaluations and checkpoints.

Given the same weights, data and settings it computes the same losses, in one go or resumed.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from inlay.core.errors import TrainingError
from inlay.tune.adapter_files import CardFacts, model_card
from inlay.tune.checkpoint import Checkpoints, Progress, Say
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Batch, Dataset, collate
from inlay.tune.log_file import LogFile
from inlay.tune.lora import Dropout
from inlay.tune.model import TrainModel
from inlay.tune.optimizer import AdamW
from inlay.tune.overfitting import overfitting
from inlay.tune.steps import StepPlan, steps_of
from inlay.tune.tensorboard import Report

Stop = Callable[[], bool]


def never() -> bool:
    """A `Stop` that lets a run go to its end."""
    return False


@dataclass(frozen=True)
class StepFigures:
    """What one step was.

    Attributes:
        step: its number, from 1.
        loss: mean -log p of its tokens that have a loss.
        norm: of the gradients, before they were scaled down.
        tokens: that were read; there is no padding.
        seconds: it took.
    """

    step: int
    total: int
    epoch: float
    loss: float
    learning_rate: float
    norm: float
    tokens: int
    seconds: float


class Watcher(Protocol):
    """Is told of each step."""

    def on_step(self, figures: StepFigures) -> None:
        """After a step."""
        ...


@dataclass(frozen=True)
class RunResult:
    """A run at its end.

    Attributes:
        log: one entry per logging step and evaluation, as in trainer_state.json.
        results: as in all_results.json.
        state: as in trainer_state.json.
        card: README.md of the adapter.
    """

    log: Sequence[Mapping[str, Any]]
    results: Mapping[str, float]
    state: Mapping[str, Any]
    card: str


class Trainer:
    """One run.

    Args:
        directory: for logs and checkpoints.
        watchers: are told of each step.
    """

    def __init__(
        self,
        config: TuneConfig,
        model: TrainModel,
        data: Dataset,
        evaluation: Dataset | None,
        directory: Path,
        *,
        identity: Mapping[str, Any],
        watchers: Sequence[Watcher],
        say: Say,
    ) -> None:
        self._config, self._model, self._data, self._evaluation = config, model, data, evaluation
        self._plan = StepPlan.of(config, len(data))
        self._optimizer = AdamW(
            model.lora.named(),
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            epsilon=config.adam_epsilon,
            weight_decay=config.weight_decay,
        )
        self._watchers, self._log_file, self._say = watchers, LogFile(directory), say
        self._report: Report | None = None
        self._warned = False  # of overfitting, once
        shape = model.shape
        self._checkpoints = Checkpoints(directory, config, shape, identity, say)
        self._progress = Progress()

    def resume(self) -> None:
        """Go on from a checkpoint, if the settings say so and there is one. Raises as
        `Checkpoints.resume`.
        """
        self._progress = self._checkpoints.resume(self._model.lora, self._optimizer)

    @property
    def steps_done(self) -> int:
        """Steps that a checkpoint brought."""
        return self._progress.step

    def run(self, report: Report | None = None, stop: Stop = never) -> RunResult:
        """Train to the end.

        Args:
            report: takes the entries of the log, too.
            stop: asked after each step.

        Raises:
            TrainingError: a loss or gradient is not finite; the state before it is saved. Or `stop`
                ended it; the state is saved.
            ResourceError: the disk is full.
        """
        self._report = report
        begun, first, tokens_before = time.monotonic(), self._progress.step, self._progress.tokens
        self._log_file.begin(first)
        for step in range(first, self._plan.total):
            figures = self._step(step)
            self._after(figures, begun)
            if stop() and figures.step < self._plan.total:
                raise self._stopped()
        seconds = time.monotonic() - begun
        steps = self._plan.total - first
        losses = [entry["loss"] for entry in self._progress.log if "loss" in entry]
        results: dict[str, float] = {
            "epoch": self._plan.epoch_after(self._plan.total - 1),
            "train_loss": sum(losses) / max(1, len(losses)),
            "train_runtime": seconds,
            "train_steps_per_second": steps / seconds,
            "train_samples_per_second": steps * self._rows_per_step / seconds,
        }
        if self._config.include_effective_tokens_per_second:
            results["effective_tokens_per_sec"] = (self._progress.tokens - tokens_before) / seconds
        if self._evaluation is not None and self._config.evaluates:
            results |= self._evaluate()
        results |= self._tokens_seen()
        return RunResult(self._progress.log, results, self._state(), self._card())

    @property
    def _rows_per_step(self) -> int:
        return self._plan.rows_per_batch * self._plan.batches_per_step

    def _step(self, step: int) -> StepFigures:
        begun = time.monotonic()
        numbers = self._plan.batches(step)
        batches = [collate([self._data[row] for row in rows]) for rows in numbers]
        targets = max(1, sum(batch.num_loss_tokens for batch in batches))
        summed = 0.0
        for number, batch in enumerate(batches):
            if not batch.num_loss_tokens:
                continue
            key = (self._config.seed, step, number)
            try:
                loss = self._model.loss(*_tensors(batch), Dropout(self._config.lora_dropout, key))
            except FloatingPointError as error:  # on the way to the loss
                what = f"{error} that are not finite"
                raise self._not_finite(what, step, numbers[number]) from None
            if not math.isfinite(loss.item()):
                raise self._not_finite(f"loss {loss.item()}", step, numbers[number])
            (loss / targets).backward()  # type: ignore[no-untyped-call]
            summed += loss.item()
        norm, limit = self._optimizer.norm(), self._config.max_grad_norm
        if not math.isfinite(norm):
            raise self._not_finite(f"gradients of norm {norm}", step, sum(numbers, []))
        rate = self._plan.rate(step)
        self._optimizer.step(rate, min(1.0, limit / (norm + 1e-6)) if limit else 1.0)
        return StepFigures(
            step=step + 1,
            total=self._plan.total,
            epoch=self._plan.epoch_after(step),
            loss=summed / targets,
            learning_rate=rate,
            norm=norm,
            tokens=sum(len(batch.input_ids_T) for batch in batches),
            seconds=time.monotonic() - begun,
        )

    def _after(self, figures: StepFigures, begun: float) -> None:
        """Note a step, and what is due after it."""
        before = self._progress
        self._progress = replace(
            before,
            step=figures.step,
            tokens=before.tokens + figures.tokens,
            open_losses=(*before.open_losses, figures.loss),
        )
        for watcher in self._watchers:
            watcher.on_step(figures)
        config, last = self._config, figures.step == self._plan.total
        first = config.logging_first_step and figures.step == 1
        if first or last or self._is_due("steps", config.logging_steps):
            self._log(figures, begun)
        eval_steps = config.logging_steps if config.eval_steps is None else config.eval_steps
        if self._evaluation is not None and self._is_due(config.eval_strategy, eval_steps):
            self._note(self._evaluate() | {"epoch": figures.epoch})
            if not self._warned and (line := overfitting(self._progress.log)):
                self._warned = True
                self._say(line)
        if self._is_due(config.save_strategy, config.save_steps) or (
            last and config.save_strategy != "no"
        ):
            self._save()

    def _is_due(self, strategy: str, every: float) -> bool:
        """Whether the step that was done is one after which something is due.

        Args:
            every: steps between, or their share of all, for the strategy `steps`.
        """
        step = self._progress.step
        if strategy == "epoch":  # the last one may be cut short
            return step % self._plan.steps_per_epoch == 0 or step == self._plan.total
        return strategy == "steps" and step % self._steps(every) == 0

    def _steps(self, every: float) -> int:
        return max(1, steps_of(every, self._plan.total))

    def _log(self, figures: StepFigures, begun: float) -> None:
        open_losses = self._progress.open_losses
        loss = sum(open_losses) / len(open_losses)
        self._progress = replace(self._progress, open_losses=())
        self._note(
            {
                "loss": loss,
                "grad_norm": figures.norm,
                "learning_rate": figures.learning_rate,
                "epoch": figures.epoch,
            }
        )
        tokens = self._progress.tokens if self._config.include_num_input_tokens_seen else None
        self._log_file.add(figures, loss, time.monotonic() - begun, tokens)

    def _note(self, entry: Mapping[str, Any]) -> None:
        entry = {**entry, **self._tokens_seen(), "step": self._progress.step}
        self._progress = replace(self._progress, log=(*self._progress.log, entry))
        if self._report is not None:
            self._report.add(entry)

    def _tokens_seen(self) -> dict[str, int]:
        if not self._config.include_num_input_tokens_seen:
            return {}
        return {"num_input_tokens_seen": self._progress.tokens}

    def _evaluate(self) -> dict[str, float]:
        assert self._evaluation is not None
        rows, size = list(self._evaluation), self._config.per_device_eval_batch_size
        summed, hits, targets = 0.0, 0, 0
        for start in range(0, len(rows), size):
            batch = collate(rows[start : start + size])
            if batch.num_loss_tokens:
                loss, right = self._model.loss_and_hits(*_tensors(batch))
                summed, hits = summed + loss, hits + right
                targets += batch.num_loss_tokens
        found = {"eval_loss": summed / max(1, targets)}
        if self._config.compute_accuracy:
            found["eval_accuracy"] = hits / max(1, targets)
        return found

    def _save(self) -> Path:
        return self._checkpoints.save(
            self._model.lora, self._optimizer, self._progress, self._state(), self._card()
        )

    def _stopped(self) -> TrainingError:
        folder, config = self._save(), self._config
        on = "the same command goes on from it"
        if config.overwrite_output_dir:
            on = "the same command with resume_from_checkpoint=true goes on from it"
        if config.save_only_model:
            on = "save_only_model=true leaves its adapter alone, which no run goes on from"
        return TrainingError(
            f"stopped after step {self._progress.step} of {self._plan.total}; the state is in "
            f"{folder}: {on}"
        )

    def _not_finite(self, what: str, step: int, rows: Sequence[int]) -> TrainingError:
        folder = self._save()
        return TrainingError(
            f"step {step + 1} of {self._plan.total} has {what}, in rows {sorted(rows)} of the "
            f"data; the state before it is in {folder}: lower learning_rate, raise warmup_ratio, "
            "or look at these rows"
        )

    def _state(self) -> dict[str, Any]:
        config, step = self._config, self._progress.step
        return {
            "epoch": self._plan.epoch_after(step - 1),
            "global_step": step,
            "max_steps": self._plan.total,
            "num_train_epochs": config.num_train_epochs,
            "logging_steps": self._steps(config.logging_steps),
            "save_steps": self._steps(config.save_steps),
            "train_batch_size": config.per_device_train_batch_size,
            "num_input_tokens_seen": self._progress.tokens,
            "log_history": self._progress.log,
        }

    def _card(self) -> str:
        losses = [entry for entry in self._progress.log if "loss" in entry]
        facts = CardFacts(
            trainable=self._model.lora.trainable,
            rows=len(self._data),
            steps=self._progress.step,
            losses={"training loss": losses[-1]["loss"]} if losses else {},
        )
        return model_card(self._config, facts)


def _tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, list[int], torch.Tensor]:
    """What `TrainModel.loss` takes."""
    return (
        torch.from_numpy(batch.input_ids_T).long(),
        torch.from_numpy(batch.positions_T).long(),
        batch.segment_starts_S.tolist(),
        torch.from_numpy(batch.targets_T).long(),
    )
