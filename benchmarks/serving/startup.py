"""serving/startup: how long until the first answer, and how much memory it takes."""

import time
from collections.abc import Generator

from benchmarks.case import Run
from benchmarks.serving.load import completion_body, stream_completions
from benchmarks.serving.server import serve, wait_until_ready
from benchmarks.triples import Samples


def measure(run: Run) -> Generator[Samples, None, None]:
    """Start, ask, stop; as often as the case says."""
    seconds, memory = [], []
    for _ in range(run.repeats):
        start = time.perf_counter()
        with serve(load="lazy") as server:
            wait_until_ready(server)
            records = stream_completions(server.url, [completion_body("Define lantern.", 8)])
            seconds.append(records[0].token_times_s[0] - start)
            memory.append(server.rss_mib())
    yield Samples(name="first_answer_s", params={"model": "demo"}, values=seconds)
    yield Samples(name="rss_mib", params={"model": "demo"}, values=memory)
