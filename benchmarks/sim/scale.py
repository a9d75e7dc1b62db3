"""sim/scale: what a trace on disk takes to simulate, by its length.

Limits are none: what counts is how the figures grow.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.sim.figures import figures
from inlay.sim.formats import read_chunks, write
from inlay.sim.generators import WORKLOADS
from inlay.sim.results import ResultsFile
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.step_time import StepTime
from inlay.sim.transform import head
from inlay.sim.world import InstanceConfig

LIMIT_S = 3600


def measure(run: Run) -> Generator[Samples, None, None]:
    """One size after the other, each in a process of its own."""
    workload = run.workload
    with tempfile.TemporaryDirectory(prefix="inlay-scale-") as folder:
        for point in run.params("peak_rss_mib"):
            file = Path(folder) / f"{point['requests']}.jsonl"
            drawn = WORKLOADS["tool_and_agent"](rate=workload["rate"])
            write(head(drawn.parts(run.seeds[0]), point["requests"]), file)
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.sim.scale", str(file), json.dumps(workload)],
                capture_output=True,
                check=True,
                timeout=LIMIT_S,
            )
            file.unlink()
            for name, value in json.loads(done.stdout).items():
                yield Samples(name=name, values=[value], params=point, seeds=run.seeds)


def simulated(file: Path, workload: dict[str, Any]) -> dict[str, float]:
    """What it took this process to replay a file."""
    instance = InstanceConfig(
        step_time=StepTime.fitted(workload["step_seconds"]),
        num_pages=workload["pages"],
        max_batch_tokens=workload["max_batch_tokens"],
        max_running=workload["max_running"],
        prefill_chunk=workload["prefill_chunk"],
    )
    scenario = Scenario(
        kinds=(Kind(instance=instance, count=workload["instances"]),),
        policy=workload["policy"],
        report_s=workload["report_s"],
    )
    began = time.perf_counter()
    found = figures(ResultsFile(Simulation(scenario).replay(read_chunks(file))), scenario)
    took_s = time.perf_counter() - began
    assert found["finished"] == found["requests"], "all requests fit, and none is refused"
    busy = found["instances"]["instances"]["busy_share"]
    print(f"busy {busy:.2f}, hits {found['hit_ratio']:.2f}", file=sys.stderr)
    return {
        "peak_rss_mib": peak_rss_mib(),
        "us_per_request": 1e6 * took_s / found["requests"],
    }


def peak_rss_mib() -> float:
    """Of this process alone: `getrusage` counts its parent as it was before, too."""
    (line,) = (line for line in Path("/proc/self/status").open() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(simulated(Path(sys.argv[1]), json.loads(sys.argv[2]))))
