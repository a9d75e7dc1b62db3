"""kernels/end_to_end: whole random models in the shape of Qwen3-30B-A3B, ours and llama.cpp.

Both programs get the same weights, each quantised by its own side, and run one after the other, so
that only one model is in memory; they take turns `repeats` times. The models are written into the
temporary directory (TMPDIR names another one) and deleted after their format.
"""

import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import (
    NAMES,
    Rates,
    decode_limit,
    engine_run,
    llama_rates,
    write_ggufs,
)
from benchmarks.models.write_packed import write_packed_model
from benchmarks.triples import Samples


def measure(run: Run) -> Generator[Samples, None, None]:
    """One pair of models per format and number of layers."""
    points = list(run.params(NAMES[0]))
    for name, layers, weight_format in dict.fromkeys(
        (p["model"], p["layers"], p["format"]) for p in points
    ):
        model = RandomModel(name, run.seeds[0], num_hidden_layers=layers, **run.workload["changed"])
        of_pair = [p for p in points if (p["layers"], p["format"]) == (layers, weight_format)]
        yield from measure_pair(run, model, weight_format, of_pair)


def measure_pair(
    run: Run, model: RandomModel, weight_format: str, points: Sequence[dict[str, Any]]
) -> list[Samples]:
    """Write both models, let the programs take turns, and sort their rates by batch."""
    batches = [point["batch"] for point in points]
    ours: list[Rates] = []
    theirs: dict[str, list[Rates]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_packed_model(folder / "model", model, weight_format)
        files = write_ggufs(run, folder, model, run.workload["peer_forms"][weight_format])
        for _ in range(run.repeats):
            ours.append(engine_run(run, folder / "model", weight_format, batches).rates)
            for gguf in files:
                theirs[gguf.label].append(llama_rates(run, gguf.file, gguf.batches or batches))
    return [
        Samples(
            name=name,
            params=point,
            values=[rates[point["batch"]][name] for rates in ours],
            limit=decode_limit(run, model.shape, weight_format, point["batch"], ours)
            if name == "decode_tokens_per_s"
            else None,
            peers={
                label: [rates[point["batch"]][name] for rates in runs]
                for label, runs in theirs.items()
                if point["batch"] in runs[0]
            },
            seeds=run.seeds,
        )
        for point in points
        for name in NAMES
    ]
