"""experts/on_gpu: random models over a CUDA GPU and the host, with a share of the experts on each.

Runs where a GPU is, and nowhere else: without one it measures nothing and leaves no record, and no
other device can stand in. llama.cpp has whole layers' experts on the host (`--n-cpu-moe`), as many
as leave the same share on the GPU. It is the peer environment `llama.cpp-cuda`: as `llama.cpp`,
built with `-DGGML_CUDA=ON`.
"""

import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import NAMES, Rates, engine_run, llama_label, llama_rates
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
from inlay.core.model_shape import ModelShape

ONE = 1  # stream
PEER = "llama.cpp-cuda"
IDLE = "gpu_idle_share"


def measure(run: Run) -> Generator[Samples, None, None]:
    """One shape after the other."""
    points = list(run.params(NAMES[0]))
    for shape in dict.fromkeys(point["shape"] for point in points):
        model = RandomModel(shape, run.seeds[0], **run.workload["changed"])
        yield from of_model(run, model, [point for point in points if point["shape"] == shape])


def of_model(run: Run, model: RandomModel, points: Sequence[dict[str, Any]]) -> list[Samples]:
    """Write the file, let both programs take turns, and sort what they say by point."""
    experts, rest = run.workload["experts"], run.workload["rest"]
    label = None if run.quick else llama_label(run, experts, rest, PEER)
    ours: dict[int, list[Rates]] = defaultdict(list)
    theirs: dict[float, list[Rates]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "weights.gguf"
        write_gguf(file, model, experts=experts, rest=rest)
        folder = gguf_folder(Path(name) / "model", file)
        for _ in range(run.repeats):
            for at, point in enumerate(points):
                changed = settings(run, model.shape, point)
                ours[at].append(engine_run(run, folder, "auto", [ONE], changed).rates)
            for share in dict.fromkeys(point["gpu_share"] for point in points) if label else ():
                options = peer_options(model.shape, share)
                theirs[share].append(llama_rates(run, file, [ONE], PEER, options))
    found = []
    for at, point in enumerate(points):
        peers = theirs[point["gpu_share"]]
        for name in (*NAMES, IDLE) if point["gpu_share"] == 1 else NAMES:
            rates = {label: [one[ONE][name] for one in peers]} if label and name in NAMES else {}
            values = [one[ONE][name] for one in ours[at]]
            found.append(
                Samples(name=name, params=point, values=values, peers=rates, seeds=run.seeds)
            )
    return found


def settings(run: Run, shape: ModelShape, point: dict[str, Any]) -> list[str]:
    """Of the engine, for a point."""
    return [
        *run.workload["settings"],
        f"placement.gpu_experts={round(point['gpu_share'] * shape.experts)}",
        f"experts.deferral={point['deferral']}",
        f"graph={point['graph']}",
    ]


def peer_options(shape: ModelShape, gpu_share: float) -> list[str]:
    """Of llama.cpp: all layers on the GPU, the experts of the first of them on the host."""
    dense = shape.layers - len(shape.sparse_layers)
    on_host = round((1 - gpu_share) * len(shape.sparse_layers))
    return ["-ngl", "999", "--n-cpu-moe", str(dense + on_host if on_host else 0)]
