"""serving/startup: how long until the first answer, and what that takes, beside llama.cpp's server.

Both read the same GGUF file; the demo model is its directory for ours, and for llama.cpp a GGUF
file with the same weights.
"""

import time
from collections import defaultdict
from collections.abc import Generator

from benchmarks.case import Run
from benchmarks.serving.asking import first_token_s
from benchmarks.serving.small_models import starts
from benchmarks.triples import Samples

NAMES = ("first_answer_s", "first_answer_cpu_s", "rss_mib")


def measure(run: Run) -> Generator[Samples, None, None]:
    """Start, ask, stop; as often as the case says, the servers taking turns."""
    for params in run.params(NAMES[0]):
        found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in NAMES}
        with starts(run, params["model"], load="lazy") as servers:
            order = list(servers)
            for _ in range(run.repeats):
                for label in order:
                    begin = time.perf_counter()
                    with servers[label]() as server:
                        first = first_token_s(server.url, run.workload["output_tokens"])
                        found["first_answer_s"][label].append(first - begin)
                        found["first_answer_cpu_s"][label].append(server.cpu_s())
                        found["rss_mib"][label].append(server.rss_mib())
                order.append(order.pop(0))
        for name in NAMES:
            ours = found[name].pop("")
            yield Samples(name=name, params=params, values=ours, peers=found[name], seeds=run.seeds)
