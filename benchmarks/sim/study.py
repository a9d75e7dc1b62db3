"""sim/*: a study of `inlay.sim.studies` by the name of the case, each point beside the paper's.

Nothing here is timed: a second run gives the same. A quick run takes the beginning of a trace, to
which no published figure belongs. Traces are Mooncake's by their names, or drawn.
"""

import importlib
from collections.abc import Generator
from functools import cache
from pathlib import Path

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.sim.formats import read
from inlay.sim.generators import WORKLOADS
from inlay.sim.trace import Trace
from inlay.sim.transform import cut

DRAWN = 23_608
HOUR_S = 3600.0
TRACES = Path(__file__).parent.parent / "traces"


def measure(run: Run) -> Generator[Samples, None, None]:
    """All points, each of them once; a point gives all measurements of the case."""
    study = importlib.import_module(f"inlay.sim.studies.{run.case.name.split('/')[-1]}")
    for point in run.params(run.case.measurements[0].name):
        asked = dict(point)
        traced: tuple[object, ...] = ()
        if name := asked.pop("trace", None):  # some studies are of steps alone
            traced = name, requests(name, run.seeds[0], run.workload["until_s"])
        for found in study.measure(*traced, **asked):
            beside = found.published is not None and not run.quick
            yield Samples(
                name=found.name,
                values=[found.value],
                params=point,
                limit=found.limit,
                peers={run.workload["paper"]: [found.published]} if beside else {},
                seeds=run.seeds,
                simulated=True,
            )


@cache
def requests(name: str, seed: int, until_s: float) -> Trace:
    """What comes before that time of a trace, which is an hour at most where it is drawn."""
    if name in WORKLOADS:
        return cut(WORKLOADS[name]().draw(seed, DRAWN), 0.0, min(until_s, HOUR_S))
    trace = read(TRACES / f"mooncake_{name}.jsonl.gz")
    return cut(trace, 0.0, until_s) if until_s <= trace.duration_s else trace
