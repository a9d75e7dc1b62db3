"""experts/large_models: whole random models, loaded from one GGUF file by both programs in turns.

`load_gbs` is the file's bytes over the time until all of it is packed, from disk or the system's
cache of it; `peak_gib` the highest resident memory, mapped pages of the file included. The file is
written into the temporary directory (TMPDIR names another one) and deleted after its shape.
"""

import tempfile
from collections.abc import Generator
from pathlib import Path

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import (
    NAMES,
    EngineRun,
    Rates,
    decode_limit,
    engine_run,
    llama_label,
    llama_rates,
)
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
from inlay.core.model_config import read_shape

ONE = 1  # stream


def measure(run: Run) -> Generator[Samples, None, None]:
    """One shape after the other."""
    for params in run.params("decode_tokens_per_s"):
        layers = run.workload["layers"].get(params["shape"])
        changed = {"num_hidden_layers": layers} if layers else {}
        yield from of_shape(run, params, RandomModel(params["shape"], run.seeds[0], **changed))


def of_shape(run: Run, params: dict[str, str], model: RandomModel) -> list[Samples]:
    """Write the file, let both programs take turns, and sort what they say."""
    experts, rest = run.workload["experts"], run.workload["rest"]
    llama = None if run.quick else llama_label(run, experts, rest)
    ours: list[EngineRun] = []
    theirs: list[Rates] = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.gguf"
        write_gguf(file, model, experts=experts, rest=rest)
        size = file.stat().st_size
        folder = gguf_folder(Path(name) / "model", file)
        shape = read_shape(folder)  # with the formats that the file has
        for _ in range(run.repeats):
            ours.append(engine_run(run, folder, "auto", [ONE]))
            if llama:
                theirs.append(llama_rates(run, file, [ONE]))
    rates = [one.rates for one in ours]
    limit = decode_limit(run, shape, params["format"], ONE, rates)
    values = {
        **{name: [one[ONE][name] for one in rates] for name in NAMES},
        "load_gbs": [size / one.load_s / 1e9 for one in ours],
        "peak_gib": [one.peak_rss_bytes / 2**30 for one in ours],
    }
    return [
        Samples(
            name=name,
            params=params,
            values=found,
            limit=limit if name == "decode_tokens_per_s" else None,
            peers={llama: [one[ONE][name] for one in theirs]} if llama and name in NAMES else {},
            seeds=run.seeds,
        )
        for name, found in values.items()
    ]
