"""What a dispatcher costs where requests pass: beside one server, and on one core of its own."""

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.case import Run
from benchmarks.cluster.figures import throughput
from benchmarks.cluster.fleet import Fleet, running
from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import Arrival, random_prompt
from benchmarks.cores import asking_apart
from benchmarks.serving.server import serve, wait_until_ready
from benchmarks.triples import Samples
from inlay.core.instance_messages import InstanceInfo
from tests.support.cluster import SECRET
from tests.support.instances import Peer
from tests.support.tiny_models import make_tiny_model

_WARM = 20


def passing(run: Run) -> Generator[Samples, None, None]:
    """`overhead_ms_p50` and `requests_per_s`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model", **run.workload["random"])
        with running(model, folder, ["both"]) as fleet:
            yield from _overhead(run, fleet)
            with Peer(fleet.members[0].address, SECRET) as peer:
                info = peer.subscribe().next(InstanceInfo)
        yield from _rate(run, fleet, info)


def _overhead(run: Run, fleet: Fleet) -> Iterator[Samples]:
    """TTFT through a dispatcher less that of `inlay serve`, with the same prompts in turns."""
    draw = random.Random(run.seeds[0])
    work = run.workload
    settings = ("--set", "engine.threads=1", "--set", "engine.device=cpu")
    for params in run.params("overhead_ms_p50"):
        values = []
        with (
            serve(str(fleet.model), *settings) as server,
            fleet.dispatcher(work["policy"]) as url,
        ):
            wait_until_ready(server)
            for repeat in range(run.repeats + 1):
                p50_ms = {}
                for side in (url, server.url) if repeat % 2 else (server.url, url):
                    arrivals = [
                        Arrival(work["gap_s"] * k, random_prompt(draw, params["tokens"]), 1)
                        for k in range(work["paced_requests"])
                    ]
                    records = answered(play(side, arrivals))
                    p50_ms[side] = 1000 * statistics.median(one.ttft_s for one in records)
                if repeat:  # the first warms
                    values.append(p50_ms[url] - p50_ms[server.url])
        yield Samples(name="overhead_ms_p50", params=params, values=values, seeds=run.seeds)


def _rate(run: Run, fleet: Fleet, info: InstanceInfo) -> Iterator[Samples]:
    """Requests a second with the dispatcher on one core, and all else on another."""
    draw = random.Random(run.seeds[0])
    for params in run.params("requests_per_s"):
        arrivals = [
            Arrival(0.0, random_prompt(draw, params["tokens"]), 1)
            for _ in range(run.workload["rate_requests"])
        ]
        with (
            _answering(info) as (address, pid),
            replace(
                fleet, members=(msgspec.structs.replace(fleet.members[0], address=address),)
            ).dispatcher(run.workload["policy"], warm=False) as url,
            asking_apart([pid]),
        ):
            concurrency = run.workload["concurrency"]
            answered(play(url, arrivals[:_WARM], concurrency=concurrency))
            values = [
                throughput(answered(play(url, arrivals, concurrency=concurrency, stream=False)))
                for _ in range(run.repeats)
            ]
        yield Samples(name="requests_per_s", params=params, values=values, seeds=run.seeds)


@contextlib.contextmanager
def _answering(info: InstanceInfo) -> Iterator[tuple[str, int]]:
    """Address and process number of something that answers at once."""
    command = [sys.executable, "-m", "benchmarks.cluster.answering"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.msgpack.encode(info).hex() + "\n")
        process.stdin.flush()
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.stdin.close()
            process.wait(10)
