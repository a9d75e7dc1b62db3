"""What would end a run after hours, looked for before it begins: token ids, room on the disk."""

import shutil
from pathlib import Path

from inlay.core.errors import DataError, ResourceError
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.models.adapter import Adapter
from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Dataset
from inlay.tune.steps import StepPlan


def check_rows(rows: Dataset, shape: ModelShape) -> None:
    """Refuse token ids that the model has no embedding for.

    Raises:
        DataError: there is one; the message has it.
    """
    if rows.highest_id >= shape.vocab:
        raise DataError(
            f"token {rows.highest_id} is in the data, and the model has {shape.vocab} embeddings: "
            "tokenizer and weights belong to different models"
        )


def position_note(rows: Dataset, shape: ModelShape) -> str:
    """A line where samples are longer than what the model was made for; empty: none is."""
    longest = rows.longest_segment
    if longest <= shape.max_context_tokens:
        return ""
    return (
        f"a sample has {longest} tokens, and the model was made for {shape.max_context_tokens}: "
        f"set cutoff_len={shape.max_context_tokens}"
    )


def warmup_note(plan: StepPlan) -> str:
    """A line where the learning rate never gets to what it is set to; empty: it does."""
    if plan.warmup < plan.total or plan.warmup < 2:
        return ""
    return (
        f"warmup takes {plan.warmup} of {plan.total} steps: learning_rate={plan.learning_rate:g} "
        "is not reached before the end"
    )


def base_note(config: TuneConfig, adapter: Adapter) -> str:
    """A line where an adapter names another model as its own, by the last part of the name."""
    base = adapter.config.get("base_model_name_or_path")
    model = config.model_name_or_path
    if not isinstance(base, str) or Path(base).name == Path(model).name:
        return ""
    return f"adapter_name_or_path has an adapter that was made for {base}, the model is {model}"


def check_disk(config: TuneConfig, trainable: int) -> None:
    """Refuse a run whose files do not fit where they go.

    Args:
        trainable: number of weights that change.

    Raises:
        ResourceError: one checkpoint beside the one before it, and the adapter, do not fit.
    """
    adapter = trainable * (2 if config.pure_bf16 else 4)
    checkpoint = 0
    if config.save_strategy != "no":
        checkpoint = adapter * (1 if config.save_only_model else 3)  # with two moments
    need = 2 * checkpoint + adapter
    free = shutil.disk_usage(Path(config.output_dir)).free
    if need <= free:
        return
    raise ResourceError(
        f"output_dir {config.output_dir} has {format_bytes(free)} left, and the run needs "
        f"{format_bytes(need)}: two checkpoints of {format_bytes(checkpoint)}, as the older one "
        f"stays until the newer one is whole, and an adapter of {format_bytes(adapter)}; free "
        "some, name another output_dir, or lower lora_rank"
    )
