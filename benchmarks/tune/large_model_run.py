"""Trains a model on random rows, as a program of its own.

    python -m benchmarks.tune.large_model_run DIRECTORY SETTINGS

SETTINGS is JSON: `config` with keys of `TuneConfig`, `row_tokens`, `seed`. Lines about the run go
to stderr; the last line of stdout is JSON: the peak of resident memory and tokens/s of the steps
after the first, if there are such, and what the plan says of both. It is made after the run, with
the process as it was before, so that its trials take no memory of the run.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from inlay.core.model_config import read_shape
from inlay.models.source import resolve_model
from inlay.serve.plan.machine import measure_machine
from inlay.tune import Dataset, StepFigures, TuneConfig, TuneData, train
from inlay.tune.memory import process_bytes
from inlay.tune.plan import RowCounts, plan_run
from inlay.tune.trial import measure_pace


class Steps:
    """Keeps what each step was."""

    def __init__(self) -> None:
        self.figures: list[StepFigures] = []

    def on_step(self, figures: StepFigures) -> None:
        """Note it, and say it."""
        self.figures.append(figures)
        print(f"{figures} peak {peak_mib():.0f} MiB", file=sys.stderr, flush=True)


def main() -> None:
    """Plan, train, print."""
    directory, given = sys.argv[1], json.loads(sys.argv[2])
    with tempfile.TemporaryDirectory() as output:
        config = new_config(directory, output, given["config"])
        rows = config.max_steps * config.gradient_accumulation_steps
        rows *= config.per_device_train_batch_size
        shape = read_shape(resolve_model(directory).directory)
        data = TuneData(
            random_rows(rows, given["row_tokens"], shape.vocab, given["seed"]), None, ()
        )
        process, steps = process_bytes(), Steps()
        train(config, data, watchers=(steps,), say=lambda line: print(line, file=sys.stderr))
        peak = peak_mib()
        machine, _ = measure_machine()
        counts = RowCounts.of(config, data.train)
        pace = measure_pace(config, shape, machine, counts)
        plan = plan_run(config, shape, machine, counts, process=process, pace=pace)
    timed = steps.figures[1:] or steps.figures
    found = {
        "tokens_per_s": median(one.tokens / one.seconds for one in timed),
        "planned_tokens_per_s": plan.tokens_per_s,
        "peak_rss_mib": peak,
        "planned_mib": plan.need.host.total / 2**20,
    }
    print({name: round(taken, 3) for name, taken in plan.seconds.items()}, pace, file=sys.stderr)
    print(json.dumps(found))


def new_config(directory: str, output: str, given: dict[str, Any]) -> TuneConfig:
    """Settings of a run that writes nothing before its end."""
    return TuneConfig(
        model_name_or_path=directory,
        output_dir=output,
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        **given | {"lora_target": tuple(given["lora_target"].split(","))},
    )


def random_rows(count: int, tokens: int, vocab: int, seed: int) -> Dataset:
    """Rows of one sample each, with a loss behind the first three tokens."""
    ids = np.random.default_rng(seed).integers(3, vocab, count * tokens).astype(np.int32)
    starts = np.arange(count + 1, dtype=np.int64) * tokens
    labels = ids.copy()
    for start in starts[:-1]:
        labels[start : start + 3] = -100
    return Dataset(ids, labels, starts, starts[:-1])


def peak_mib() -> float:
    """The highest resident memory of this process so far.

    `ru_maxrss` would begin with what the process had that started this one.
    """
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
