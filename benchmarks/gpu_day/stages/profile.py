"""Three decode steps and a chunk of a prompt under PyTorch's profiler: where a step's time goes."""

import gzip
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.experts import gpu_idle
from benchmarks.experts.on_gpu import (
    PROFILED_STEPS,
    Way,
    begin_request,
    model_of,
    new_engine,
    profiled,
    serve,
)
from benchmarks.gpu_day.stage import Context
from benchmarks.gpu_day.write_model import SHAPE, SMALL_LAYERS, model_folder, the_run
from inlay.engine import Engine

LAYERS = 12
SHARES = (1.0, 0.5)
CHUNK = 512
MOST_NAMES = 25


def run(context: Context) -> None:
    """With all and with half of the experts on the GPU."""
    of_case = the_run(context.rehearsal)
    layers = SMALL_LAYERS if context.rehearsal else LAYERS
    shape = model_of(of_case, SHAPE, layers).shape
    prompt = 40 if context.rehearsal else CHUNK
    for share in SHARES:
        context.need(12, f"{share:.0%} of the experts on the GPU")
        way = Way(SHAPE, layers, share, "auto", "0", CHUNK)
        folder = model_folder(context.work, LAYERS)
        points = [{"streams": 1, "prompt": prompt}]
        name = f"{layers} layers, {share:.0%} of experts on the GPU"
        with closing(new_engine(of_case, way, points, shape, folder, context.device)) as engine:
            serve(engine, "warm", 1, prompt, of_case.workload["output_tokens"])
            for what, steps in (("decode", PROFILED_STEPS), ("prompt", 1)):
                trace = context.folder("traces") / f"{what}-{round(100 * share)}.json"
                with context.checking(f"profile of {what}, {name}"):
                    tell(context, f"{what}, {name}", engine, what, prompt, trace, steps * layers)


def tell(
    context: Context,
    name: str,
    engine: Engine,
    what: str,
    prompt: int,
    trace: Path,
    layer_runs: int,
) -> None:
    """Profile some steps and say where their time went."""
    try:
        if what == "decode":
            idle = profiled(engine, str(trace))
        else:
            begin_request(engine, what, prompt)
            idle = gpu_idle.measure(engine.step, steps=1, trace=str(trace))
            engine.cancel(what)
            engine.step()
    except gpu_idle.NothingSeenError:
        if not context.rehearsal:
            raise
        context.left_out(f"kernels of {name}", "there is no GPU that the profiler could watch")
    else:
        context.fact(f"profile: {name}", summary(idle, layer_runs))
    finally:
        if trace.exists():
            with gzip.open(trace.with_suffix(".json.gz"), "wb") as packed:
                packed.write(trace.read_bytes())
            trace.unlink()


def summary(idle: gpu_idle.Idle, layer_runs: int) -> dict[str, Any]:
    """For the results; times in ms."""
    longest = sorted(idle.seconds_of.items(), key=lambda one: -one[1][0])[:MOST_NAMES]
    return {
        "span_ms": round(1e3 * idle.span_s, 3),
        "busy_ms": round(1e3 * idle.busy_s, 3),
        "idle_share": round(idle.most_of_launches, 4),
        "launches_per_layer": round(idle.launches / layer_runs, 2),
        "kernels": {name[:80]: [round(1e3 * s, 3), count] for name, (s, count) in longest},
    }
