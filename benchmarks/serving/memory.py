"""serving/memory: what a server and its engine hold, ready and after some requests.

Private pages plus their share of shared ones, those of the model's file among them: llama.cpp's
server maps it, and ours packs it. Requests come one after the other.
"""

from collections import defaultdict
from collections.abc import Generator

from benchmarks.case import Run
from benchmarks.serving.asking import chat
from benchmarks.serving.small_models import starts
from benchmarks.triples import Samples

IDLE, CHAT = "idle", "chat"


def measure(run: Run) -> Generator[Samples, None, None]:
    """Start, look, ask, look; as often as the case says, the servers taking turns."""
    points = list(run.params("rss_mib"))
    for model in dict.fromkeys(point["model"] for point in points):
        found: dict[str, dict[str, list[float]]] = {
            when: defaultdict(list) for when in (IDLE, CHAT)
        }
        with starts(run, model, load="whole") as servers:
            order = list(servers)
            for _ in range(run.repeats):
                for label in order:
                    with servers[label]() as server:
                        found[IDLE][label].append(server.rss_mib())
                        chat(
                            server.url,
                            run.workload["requests"],
                            run.workload["prompt_words"],
                            run.workload["output_tokens"],
                            run.seeds[0],
                        )
                        found[CHAT][label].append(server.rss_mib())
                order.append(order.pop(0))
        for params in (point for point in points if point["model"] == model):
            of_point = found[params["when"]]
            ours = of_point.pop("")
            yield Samples(
                name="rss_mib", params=params, values=ours, peers=of_point, seeds=run.seeds
            )
