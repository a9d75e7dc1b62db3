"""sim/speed: how long a simulation takes.

Limits are none: what a decision takes is measured by cluster/dispatch_cost.
"""

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.sim.formats import read
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.step_time import StepTime
from inlay.sim.trace import Trace
from inlay.sim.transform import merge, scale_rate
from inlay.sim.world import InstanceConfig

TRACES = Path(__file__).parent.parent / "traces"


def measure(run: Run) -> Generator[Samples, None, None]:
    """Each policy on the two sizes."""
    workload = run.workload
    both = merge(
        [read(TRACES / f"mooncake_{name}.jsonl.gz") for name in ("conversation", "synthetic")]
    )
    for point in run.params("seconds_16024x8"):
        values = [
            seconds(workload, both, workload["instances"], point["policy"])
            for _ in range(run.repeats)
        ]
        yield Samples(name="seconds_16024x8", values=values, params=point, seeds=run.seeds)
    times = workload["large_instances"] / workload["instances"]
    large = repeated(scale_rate(both, times), workload["large_requests"])
    for point in run.params("seconds_1m_x64"):
        took_s = seconds(workload, large, workload["large_instances"], point["policy"])
        yield Samples(name="seconds_1m_x64", values=[took_s], params=point, seeds=run.seeds)


def seconds(workload: dict[str, object], trace: Trace, instances: int, policy: str) -> float:
    """Of one simulation, from the first request to the results."""
    instance = InstanceConfig(
        step_time=StepTime.fitted(workload["step_seconds"]),
        num_pages=workload["pages"],
        max_batch_tokens=workload["max_batch_tokens"],
        max_running=workload["max_running"],
        prefill_chunk=workload["prefill_chunk"],
    )
    simulation = Simulation(
        Scenario(
            kinds=(Kind(instance=instance, count=instances),),
            policy=policy,
            report_s=workload["report_s"],
        )
    )
    began = time.perf_counter()
    results = simulation.run(trace)
    took_s = time.perf_counter() - began
    assert results.finished.all(), "all requests fit, and none is refused"
    return took_s


def repeated(trace: Trace, requests: int) -> Trace:
    """So many requests of a trace that begins again when it is over, with other blocks."""
    rounds = -(-requests // len(trace))
    apart_s = trace.duration_s + trace.duration_s / len(trace)
    later = [replace(trace, arrival_s=trace.arrival_s + i * apart_s) for i in range(rounds)]
    return merge(later).select(np.arange(requests))
