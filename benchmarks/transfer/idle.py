"""transfer/idle: what two connected engines cost while nothing is under way.

`busy_percent`: processor time of all threads of a process, of one core. `all` has every transport
that works here by default; `fabric` is libfabric's tcp provider, which has a timer.
"""

import json
import time
from collections.abc import Generator

from benchmarks.case import CaseError, Run
from benchmarks.transfer.told import Told, module
from benchmarks.triples import Comparison, Samples
from inlay.core.errors import TransportUnavailableError
from inlay.transfer import TransferEngine
from tests.integration.transfer.target import TOKEN

MOVED = 1 << 20
THEIRS = "int(1e9 * __import__('time').process_time())"


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Watch a pair for a while, `repeats` times."""
    for name, transports in (("all", []), ("fabric", ["fabric"])):
        try:
            engine = TransferEngine(token=TOKEN, transports=transports)
        except TransportUnavailableError as error:
            raise CaseError(f"transfer/idle: {error}") from error
        command = module("tests.integration.transfer.target", "127.0.0.1:0", *transports)
        with engine, Told(command) as target:
            peer = engine.connect(target.first)
            engine.read(engine.allocate(MOVED), peer["source"][0:MOVED])
            sides: dict[str, list[float]] = {"initiator": [], "target": []}
            for _ in range(run.repeats):
                times = []
                for _ in range(2):
                    times.append((time.process_time(), json.loads(target.tell(THEIRS)) / 1e9))
                    if len(times) == 1:
                        time.sleep(run.workload["watched_s"])
                for at, side in enumerate(sides):
                    busy = (times[1][at] - times[0][at]) / run.workload["watched_s"]
                    sides[side].append(100 * busy)
            for side, values in sides.items():
                yield Samples(
                    name="busy_percent", values=values, params={"transports": name, "side": side}
                )
