"""tune/plan_speed: tokens/s of whole runs beside what `inlay tune plan` says of them.

Each repeat is a process of its own, which trains and plans; models are random but for the demo.
"""

import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
from benchmarks.tune.large_model import PLAN, trained
from inlay.models.source import resolve_model
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """A model after the other."""
    work = run.workload
    for params in run.params("tokens_per_s"):
        given = {
            "row_tokens": params["row_tokens"],
            "seed": run.seeds[0],
            "config": {
                "lora_target": params["lora_target"],
                "bf16": params["dtype"] == "bfloat16",
                "lora_rank": work["lora_rank"],
                "cutoff_len": params["row_tokens"],
                "per_device_train_batch_size": params["batch"],
                "gradient_accumulation_steps": work["accumulation"],
                "max_steps": work["steps"][params["model"]],
            },
        }
        with tempfile.TemporaryDirectory() as name:
            model = directory(params["model"], work, run.seeds[0], Path(name))
            found = [trained(model, given) for _ in range(run.repeats)]
        real, planned = (
            [one[key] for one in found] for key in ("tokens_per_s", "planned_tokens_per_s")
        )
        errors = [abs(said / took - 1) for said, took in zip(planned, real, strict=True)]
        for name, values, limit in (
            ("tokens_per_s", real, (PLAN, planned)),
            ("rate_error", errors, None),
        ):
            yield Samples(name=name, params=params, values=values, limit=limit, seeds=run.seeds)


def directory(name: str, work: dict[str, Any], seed: int, folder: Path) -> Path:
    """A model's directory, made in a folder but for the demo model."""
    if name == "demo":
        return resolve_model(None).directory
    sizes = work[name]
    if name == "qwen3moe-165m":
        return make_tiny_model(
            folder / "model", "qwen3_moe", dtype="bfloat16", tokenizer="none", **sizes
        )
    file = folder / "model.gguf"
    random = RandomModel(name, seed, num_hidden_layers=sizes["layers"])
    write_gguf(file, random, experts=sizes["experts"], rest=sizes["rest"])
    return gguf_folder(folder / "model", file)
