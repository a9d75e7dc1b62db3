"""experts/on_gpu: a random model over a CUDA GPU and the host, with a share of the experts on each.

One process loads the model once for each way to run it (`Way`) and serves batches of random
prompts, each twice: the first time kernels are compiled and recordings made, and everybody waits.

Runs where a GPU is, and nowhere else: no other device can stand in. llama.cpp has whole layers'
experts on the host (`--n-cpu-moe`), as many as leave the same share on the GPU. It is the peer
environment `llama.cpp-cuda`: as `llama.cpp`, built with `-DGGML_CUDA=ON`.
"""

import random
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.case import Run
from benchmarks.experts import gpu_idle
from benchmarks.kernels.gpu_limits import LINK, GpuLimits, measure_limits
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import NAMES, Rates, llama_label, llama_rates, step_bytes
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
from inlay import kernels
from inlay.cache import CacheConfig
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.model_shape import ModelShape
from inlay.core.overrides import apply_overrides
from inlay.core.roofline import bytes_per_weight
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig, SchedulerConfig

PEER = "llama.cpp-cuda"
MEMORIES = "reads of the touched weights by the GPU and, beside it, the host"
PAGE_TOKENS = 16
PROFILED_STEPS = 3
# Bytes of the file's types, as our own of the same size.
SAME_BYTES = {"Q4_0": "int4:g32", "Q8_0": "int8"}


@dataclass(frozen=True)
class Way:
    """One way to run a model.

    Attributes:
        chunk: prompt tokens of one request in a step; a step has at most twice as many.
    """

    shape: str
    layers: int
    gpu_share: float
    graph: str
    deferral: str
    chunk: int

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Way":
        """That of a measurement's parameters."""
        return cls(**{name: params[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Machine:
    """Where it runs, and what that gives.

    Attributes:
        host_read_gbs: reads of the host's memory.
    """

    device: str
    gpu: GpuLimits
    host_read_gbs: float


@dataclass(frozen=True)
class Served:
    """A batch of prompts: until all had their first token, and each step after that."""

    prompt_s: float
    steps_s: list[float]


def measure(run: Run) -> Generator[Samples, None, None]:
    """All ways, those of one file after another."""
    machine = this_machine("cuda:0")
    of_way = points_by_way(run)
    for shape, layers in dict.fromkeys((way.shape, way.layers) for way in of_way):
        model = model_of(run, shape, layers)
        with tempfile.TemporaryDirectory() as name:
            folder = write_model(run, model, Path(name))
            ways = [way for way in of_way if (way.shape, way.layers) == (shape, layers)]
            shares = [] if run.quick else [way.gpu_share for way in ways]
            peers = peer_rates(run, model.shape, folder, dict.fromkeys(shares))
            for way in ways:
                found = measure_way(run, way, of_way[way], model.shape, folder, machine)
                yield from (beside(run, samples, peers) for samples in found)


def this_machine(device: str) -> Machine:
    """Measure what it gives."""
    return Machine(device, measure_limits(torch.device(device)), kernels.MemoryProbe().read_gbs())


def points_by_way(run: Run) -> dict[Way, list[dict[str, Any]]]:
    """The parameter points of a run, grouped by what needs a load of its own."""
    ways: dict[Way, list[dict[str, Any]]] = {}
    for point in run.params("decode_tokens_per_s"):
        ways.setdefault(Way.of(point), []).append(point)
    return ways


def model_of(run: Run, shape: str, layers: int) -> RandomModel:
    """The model; nothing is drawn yet."""
    return RandomModel(shape, run.seeds[0], num_hidden_layers=layers, **run.workload["changed"])


def write_model(run: Run, model: RandomModel, folder: Path) -> Path:
    """Write the file, `weights.gguf`, and a model directory around it, which is returned."""
    file = folder / "weights.gguf"
    write_gguf(file, model, experts=run.workload["experts"], rest=run.workload["rest"])
    return gguf_folder(folder / "model", file)


def measure_way(
    run: Run,
    way: Way,
    points: Sequence[dict[str, Any]],
    shape: ModelShape,
    folder: Path,
    machine: Machine,
) -> Iterator[Samples]:
    """Load the model and serve a batch for each point. Gives what the case declares of it."""
    begin_s = time.perf_counter()
    with closing(new_engine(run, way, points, shape, folder, machine.device)) as engine:
        load_s = time.perf_counter() - begin_s
        yield from _declared(run, {"load_s": [load_s]}, points[0])
        for number, point in enumerate(points):
            streams, prompt = point["streams"], point["prompt"]
            first, again = (
                serve(engine, f"{number}-{time}", streams, prompt, run.workload["output_tokens"])
                for time in range(2)
            )
            step_s, worst_s = median(again.steps_s), max(*first.steps_s, *again.steps_s)
            values = {
                "prefill_tokens_per_s": [streams * prompt / again.prompt_s],
                "first_prefill_tokens_per_s": [streams * prompt / first.prompt_s],
                "decode_tokens_per_s": [streams / one for one in again.steps_s],
                "step_ms": [1e3 * one for one in again.steps_s],
                "worst_step_ms": [1e3 * worst_s],
                "worst_step_over_median": [worst_s / step_s],
            }
            limits = {
                "prefill_tokens_per_s": prefill_limit(run, way, point, shape, machine),
                "decode_tokens_per_s": decode_limit(run, way, point, shape, machine),
            }
            yield from _declared(run, values, point, limits)
        if machine.device != "cpu":
            idle = profiled(engine)
            values = {
                "launches_per_layer": [idle.launches / PROFILED_STEPS / shape.layers],
                "gpu_idle_share": [idle.most_of_launches],
            }
            yield from _declared(run, values, points[0])


def _declared(
    run: Run,
    values: Mapping[str, list[float]],
    point: Mapping[str, Any],
    limits: Mapping[str, tuple[str, float] | None] | None = None,
) -> Iterator[Samples]:
    """Those of the values that the case has a measurement for, with its parameters."""
    for name, own in values.items():
        for measurement in run.case.measurements:
            kept = {*measurement.params, *measurement.rows[0]}
            params = {key: value for key, value in point.items() if key in kept}
            if measurement.name == name and measurement.covers(params):
                limit = (limits or {}).get(name)
                yield Samples(name=name, params=params, values=own, limit=limit, seeds=run.seeds)
                break


def new_engine(
    run: Run,
    way: Way,
    points: Sequence[Mapping[str, Any]],
    shape: ModelShape,
    folder: Path,
    device: str,
) -> Engine:
    """With room for the largest batch, and no prefix cache: prompts are all new."""
    # While the last prompt is computed, the first may be as many tokens ahead as there are prompts.
    tail = run.workload["output_tokens"] + PROFILED_STEPS + PAGE_TOKENS
    lengths = {(p["streams"], p["prompt"] + tail + 2 * p["streams"]) for p in points}
    config = EngineConfig(
        model=str(folder),
        device=device,
        load="whole",
        max_context_tokens=max(tokens for _, tokens in lengths),
        cache=CacheConfig(
            pages=max(streams * -(-tokens // PAGE_TOKENS) for streams, tokens in lengths),
            page_tokens=PAGE_TOKENS,
            prefix=False,
        ),
        scheduler=SchedulerConfig(
            max_running=max(streams for streams, _ in lengths),
            prefill_chunk=way.chunk,
            max_batch_tokens=2 * way.chunk,
        ),
        seed=0,
    )
    return Engine(apply_overrides(config, settings(run, way, shape, device)))


def settings(run: Run, way: Way, shape: ModelShape, device: str) -> list[str]:
    """Of the engine, for a way to run a model; a CPU alone has none of them to choose."""
    if device == "cpu":
        return []
    return [
        *run.workload["settings"],
        f"placement.gpu_experts={round(way.gpu_share * shape.experts)}",
        f"experts.deferral={way.deferral}",
        f"graph={way.graph}",
    ]


def serve(engine: Engine, name: str, streams: int, prompt_tokens: int, steps: int) -> Served:
    """Random prompts arrive together; then so many steps give each of them a token."""
    requests = [f"{name}-{index}" for index in range(streams)]
    for request_id in requests:
        begin_request(engine, request_id, prompt_tokens)
    waiting = set(requests)
    begin_s = time.perf_counter()
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    prompt_s = time.perf_counter() - begin_s
    steps_s = []
    for _ in range(steps):
        begin_s = time.perf_counter()
        engine.step()
        steps_s.append(time.perf_counter() - begin_s)
    for request_id in requests:
        engine.cancel(request_id)
    engine.step()
    return Served(prompt_s, steps_s)


def begin_request(engine: Engine, request_id: str, prompt_tokens: int) -> None:
    """Give the engine a random prompt, which it answers until it is cancelled."""
    draw = random.Random(request_id)
    tokens = [draw.randrange(engine.info.vocab_size) for _ in range(prompt_tokens)]
    engine.add(
        GenerateRequest(
            request_id=request_id,
            prompt=pack_token_ids(tokens),
            params=SamplingParams(temperature=0, ignore_eos=True),
            arrival_s=time.monotonic(),
        )
    )


def profiled(engine: Engine, trace: str | None = None) -> gpu_idle.Idle:
    """Decode steps of one stream, as `gpu_idle.measure` sees them."""
    begin_request(engine, "profiled", PAGE_TOKENS)
    for _ in range(PROFILED_STEPS):
        engine.step()
    idle = gpu_idle.measure(engine.step, steps=PROFILED_STEPS, trace=trace)
    engine.cancel("profiled")
    engine.step()
    return idle


def prefill_limit(
    run: Run, way: Way, point: Mapping[str, Any], shape: ModelShape, machine: Machine
) -> tuple[str, float] | None:
    """Tokens per second if a step took what bringing the host's experts for it takes."""
    held = (1 - way.gpu_share) * expert_bytes(run, shape) * shape.experts * len(shape.sparse_layers)
    if not held:
        return None
    tokens = min(point["streams"] * min(point["prompt"], way.chunk), 2 * way.chunk)
    return LINK, tokens * machine.gpu.link_gbs * 1e9 / held


def decode_limit(
    run: Run, way: Way, point: Mapping[str, Any], shape: ModelShape, machine: Machine
) -> tuple[str, float]:
    """Tokens per second if a step took what the slower of GPU and host needs for its bytes."""
    streams = point["streams"]
    context = point["prompt"] + run.workload["output_tokens"] // 2
    read = step_bytes(shape, SAME_BYTES[run.workload["experts"]], streams, context)
    touched = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** streams)
    on_host = (1 - way.gpu_share) * touched * expert_bytes(run, shape) * len(shape.sparse_layers)
    host_s = on_host / machine.host_read_gbs / 1e9
    gpu_s = (read - on_host) / machine.gpu.copy_gbs / 1e9
    return MEMORIES, streams / max(host_s, gpu_s)


def expert_bytes(run: Run, shape: ModelShape) -> float:
    """Of one expert of a layer."""
    weights = 3 * shape.hidden * shape.moe_intermediate
    return weights * bytes_per_weight(SAME_BYTES[run.workload["experts"]])


def peer_rates(
    run: Run, shape: ModelShape, folder: Path, shares: Iterable[float]
) -> dict[float, tuple[str, Rates]]:
    """Of llama.cpp, its label and rates by streams, for each share of experts on the GPU."""
    label = llama_label(run, run.workload["experts"], run.workload["rest"], PEER)
    if label is None:
        return {}
    file = folder.parent / "weights.gguf"
    return {
        share: (
            label,
            llama_rates(run, file, run.workload["peer_streams"], PEER, peer_options(shape, share)),
        )
        for share in shares
    }


def peer_options(shape: ModelShape, gpu_share: float) -> list[str]:
    """Of llama.cpp: all layers on the GPU, the experts of the first of them on the host."""
    dense = shape.layers - len(shape.sparse_layers)
    on_host = round((1 - gpu_share) * len(shape.sparse_layers))
    return ["-fa", "on", "-ngl", "999", "--n-cpu-moe", str(dense + on_host if on_host else 0)]


def beside(run: Run, samples: Samples, peers: Mapping[Any, tuple[str, Rates]]) -> Samples:
    """With the peer's value of the same cell, if there is one."""
    params = samples.params
    if samples.name not in NAMES or params["prompt"] != run.workload["prompt_tokens"]:
        return samples
    share, streams = params["gpu_share"], params["streams"]
    if share not in peers or streams not in peers[share][1]:
        return samples
    label, rates = peers[share]
    value = rates[streams][samples.name]
    return replace(samples, peers={label: [value] * len(samples.values)})
