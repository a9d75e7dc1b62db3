"""Faults of a deployment's processes, at random times under load.

A process is killed while clients ask; all answers are those of one instance alone. What a fault
returns are seconds.

    python -m tests.integration.cluster.faults RECORD.json [RUNS [SEED [FAULT...]]]
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.cluster.control import ProcessStatus
from tests.integration.cluster.askers import Askers, answer, questions
from tests.support.deployments import RunningDeployment, running_deployment, wait_until
from tests.support.fault_runs import Outcome, repeat
from tests.support.server import RunningServer

BACK_S = 5.0
READY_S = 90.0  # imports take seconds, with a share of two cores
ENGINE = {"device": "cpu", "threads": 1, "max_context_tokens": 512}
FILE = """
name = "faults"

[engine]
device = "cpu"
threads = 1
max_context_tokens = 512
cache.memory = "8MiB"

[instances.prefill]
role = "prefill"
count = 2

[instances.decode]
role = "decode"
count = 2

[dispatcher]
port = 0

[store.nodes.n0]
memory = "32MiB"
"""
# By name: the kinds or roles of processes of which one is killed.
FAULTS = ("prefill", "decode", "dispatcher", "node", "master")


class Faulted:
    """A deployment under load, whose processes are killed.

    Args:
        deployment: runs.
        askers: ask it.
    """

    def __init__(self, deployment: RunningDeployment, askers: Askers) -> None:
        self._deployment = deployment
        self._askers = askers

    def run(self, fault: str, seed: int) -> Outcome:
        """Kill one process, and see that it is noticed by nobody but those who must."""
        draw = random.Random(seed)
        began_s = time.monotonic()
        time.sleep(draw.uniform(0.1, 1.5))
        processes = self._deployment.processes().values()
        victim = draw.choice([one for one in processes if fault in (one.kind, one.role)])
        in_flight = self._askers.in_flight()
        killed_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: self._served_since(killed_s), READY_S, f"answers after {victim.name}")
        wait_until(lambda: self._is_back(victim), READY_S, f"{victim.name} is back")
        ready_s = time.monotonic() - killed_s
        time.sleep(draw.uniform(0.1, 0.5))
        self._check(fault, victim, began_s, killed_s, in_flight)
        slowest_s = max(
            one.ended_s - max(one.began_s, killed_s) for one in self._askers.since(killed_s)
        )
        back_s = self._served_since(killed_s) - killed_s
        assert back_s < BACK_S, f"{victim.name} was killed, and for {back_s:.1f} s nobody answered"
        return {"back_s": back_s, "slowest_answer_s": slowest_s, "ready_s": ready_s}

    def _check(
        self, fault: str, victim: ProcessStatus, began_s: float, killed_s: float, in_flight: int
    ) -> None:
        assert not self._askers.wrong, self._askers.wrong[0]
        failed = [one for one in self._askers.since(began_s) if one.error is not None]
        allowed = in_flight if fault == "dispatcher" else 0
        assert len(failed) <= allowed, (
            f"{victim.name} was killed with {in_flight} requests in flight, "
            f"and {len(failed)} failed: {failed[0].error}\n{self._deployment.logs()}"
        )
        late = [one for one in failed if one.began_s > killed_s]
        assert not late, f"a request that began after the kill failed: {late[0].error}"

    def _served_since(self, killed_s: float) -> float:
        """When the first request that began after a kill was answered; 0 if none was."""
        ends_s = [
            one.ended_s
            for one in self._askers.since(killed_s)
            if one.error is None and one.began_s >= killed_s
        ]
        return min(ends_s, default=0.0)

    def _is_back(self, victim: ProcessStatus) -> bool:
        now = self._deployment.processes()[victim.name]
        return now.state == "ready" and now.run > victim.run


@contextmanager
def faulted(folder: Path, seed: int) -> Iterator[Faulted]:
    """A deployment under load; what one instance answers was asked before."""
    bodies = questions(seed)
    server = RunningServer(None, engine=ENGINE).wait_ready()
    try:
        expected = [answer(server.url, body) for body in bodies]
    finally:
        server.kill()
    with running_deployment(folder, FILE) as deployment:
        askers = Askers(deployment.url, bodies, expected)
        try:
            wait_until(lambda: len(askers.since(0.0)) > len(bodies), 60, "it answers")
            yield Faulted(deployment, askers)
        finally:
            askers.stop()


def main() -> None:
    """Each fault so many times; the record is written after each."""
    record = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    seeds = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    found: list[dict[str, object]] = []
    for fault in sys.argv[4:] or FAULTS:
        load_seed = seeds.getrandbits(32)
        told = repeat(fault, _once(fault, load_seed), runs, seeds)
        found.append({**told, "load_seed": load_seed})
        record.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not all(one["passed"] for one in found))


@contextmanager
def _once(fault: str, load_seed: int) -> Iterator[Callable[[int], Outcome]]:
    """A deployment of its own for each fault, so that one that fails does not spoil the others."""
    with tempfile.TemporaryDirectory() as folder, faulted(Path(folder), load_seed) as one:
        yield lambda seed: one.run(fault, seed)


if __name__ == "__main__":
    main()
