"""Runner of connect/foreign_dispatch."""

import random
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.connect.vllm_fleet import deployment_text, fleet, hit_tokens
from benchmarks.serving.server import Server
from benchmarks.store.instances import ask
from benchmarks.triples import Samples
from tests.support.deployments import running_deployment
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """Rounds by turns: prefixes that nobody knows, and questions to them in any order."""
    environment = None if run.quick else peers.environment(run.peers, "vllm")  # it starts slowly
    if environment is None:
        return
    work = run.workload
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = make_tiny_model(folder / "random", **work["random"])
        (params,) = run.params("ttft_ratio")
        servers = stack.enter_context(
            fleet(
                environment,
                model,
                params["servers"],
                context_tokens=work["context_tokens"],
                kv_tokens=work["kv_tokens"],
            )
        )
        fronts = []
        for policy in ("kv_centric", "round_robin"):
            place = folder / policy
            place.mkdir()
            text = deployment_text(model, [server.url for server in servers], policy=policy)
            deployment = stack.enter_context(running_deployment(place, text))
            fronts.append(replace(servers[0], url=deployment.url))
        drawn = random.Random(run.seeds[0])
        for front in fronts:  # the first requests of a server take longer
            _round(front, servers, drawn, work)
        rounds = [
            [_round(front, servers, drawn, work) for front in fronts] for _ in range(run.repeats)
        ]
    for index, policy in enumerate(("dispatched", "round_robin")):
        ttfts, shares = zip(*(pair[index] for pair in rounds), strict=True)
        yield Samples(name=f"{policy}_ttft_ms", params=params, values=list(ttfts))
        yield Samples(name=f"{policy}_hit_share", params=params, values=list(shares))
    ratios = [dispatched[0] / round_robin[0] for dispatched, round_robin in rounds]
    yield Samples(name="ttft_ratio", params=params, values=ratios)


def _round(
    front: Server, servers: Sequence[Server], drawn: random.Random, work: dict[str, Any]
) -> tuple[float, float]:
    """Mean TTFT of a round in ms, and the share of its prompts that the servers' caches had."""

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(3, work["random"]["vocab_size"]) for _ in range(count)]

    prefixes = [tokens(work["prefix_tokens"]) for _ in range(work["prefixes"])]
    prompts = [
        prefix + tokens(work["question_tokens"])
        for _ in range(work["turns"])
        for prefix in prefixes
    ]
    drawn.shuffle(prompts)
    before = sum(map(hit_tokens, servers))
    with ThreadPoolExecutor(work["clients"]) as clients:
        answers = list(
            clients.map(lambda prompt: ask(front, prompt, work["output_tokens"]), prompts)
        )
    hits = sum(map(hit_tokens, servers)) - before
    return fmean(one.ttft_ms for one in answers), hits / sum(map(len, prompts))
