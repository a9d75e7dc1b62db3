"""tune/large_model: a whole random model, trained for a few steps by `inlay.tune.train`.

The file is written a matrix at a time into the temporary directory (TMPDIR names another one) and
deleted after the run. Each repeat is a process of its own, whose highest resident memory counts,
mapped pages of the file included; what the plan says comes from config.json alone.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples

PLAN = "what the plan said"
RUN_S = 3600


def measure(run: Run) -> Generator[Samples, None, None]:
    """Write the file, train, and sort what the runs say."""
    for params in run.params("tokens_per_s"):
        layers = run.workload["layers"].get(params["model"])
        changed = {"num_hidden_layers": layers} if layers else {}
        model = RandomModel(params["model"], run.seeds[0], **changed)
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "model.gguf"
            write_gguf(file, model, experts=run.workload["experts"], rest=run.workload["rest"])
            folder = gguf_folder(Path(name) / "model", file)
            found = [trained(folder, settings(run, params)) for _ in range(run.repeats)]
        columns: dict[str, list[float]] = {key: [one[key] for one in found] for key in found[0]}
        errors = [
            abs(planned / real - 1)
            for planned, real in zip(columns["planned_mib"], columns["peak_rss_mib"], strict=True)
        ]
        for name, values, limit in (
            ("tokens_per_s", columns["tokens_per_s"], (PLAN, columns["planned_tokens_per_s"])),
            ("peak_rss_mib", columns["peak_rss_mib"], (PLAN, columns["planned_mib"])),
            ("memory_error", errors, None),
        ):
            yield Samples(name=name, params=params, values=values, limit=limit, seeds=run.seeds)


def settings(run: Run, params: dict[str, Any]) -> dict[str, Any]:
    """Of the run, for `large_model_run`."""
    work = run.workload
    return {
        "row_tokens": work["row_tokens"],
        "seed": run.seeds[0],
        "config": {
            "lora_target": params["lora_target"],
            "bf16": params["dtype"] == "bfloat16",
            "lora_rank": work["lora_rank"],
            "cutoff_len": work["row_tokens"],
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": work["accumulation"],
            "max_steps": work["steps"],
        },
    }


def trained(folder: Path, given: dict[str, Any]) -> dict[str, float]:
    """What one run says."""
    command = [sys.executable, "-m", "benchmarks.tune.large_model_run", str(folder)]
    done = subprocess.run(
        [*command, json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
