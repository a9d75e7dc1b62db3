"""store/multi_turn: conversations of ten rounds, with ever more tiers behind the pages.

Conversations take turns in a random order, one request at a time: a round's prompt is all that was
said before and a new question. The device's pages hold about two conversations, the host's memory
about four, disk and store all of them. Prompts of the same lengths whose tokens nobody has seen
say what computing a round costs.

Source: the multi-turn benchmark of SGLang's HiCache.
"""

import contextlib
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.serving.server import Server
from benchmarks.store.instances import (
    Answer,
    ask,
    forget_device,
    instance,
    random_tokens,
    store_master,
)
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model

Rounds = dict[int, dict[int, tuple[Answer, int]]]
CONFIGURATIONS = ("device", "host", "disk", "store")


def measure(run: Run) -> Generator[Samples, None, None]:
    """TTFT and hit rate of each round, and hits beside recomputing."""
    workload = run.workload
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "random"
        make_tiny_model(model, "qwen3_moe", dtype="bfloat16", **workload["random"])
        with instance(model, {"pages": workload["device_pages"]}) as server:
            recomputed = _recompute(server, run)
        for round_, times_ms in recomputed.items():
            yield Samples(
                name="recompute_ttft_ms", params={"round": round_}, values=times_ms, seeds=run.seeds
            )
        costs_ms = {round_: statistics.median(times) for round_, times in recomputed.items()}
        for params in run.params("hit_rate"):
            with _configured(params["tiers"], model, workload) as server:
                rounds = _converse(server, run)
            yield from _samples(run, params, rounds, costs_ms)


def _samples(
    run: Run, params: Any, rounds: Rounds, costs_ms: dict[int, float]
) -> Iterator[Samples]:
    """`rounds`: conversation -> its answer, and how much of its prompt had been said before."""
    hits: dict[int, list[float]] = defaultdict(list)
    cached: dict[int, float] = defaultdict(float)
    known_before: dict[int, float] = defaultdict(float)
    for round_, answers in rounds.items():
        yield Samples(
            name="ttft_ms",
            params={**params, "round": round_},
            values=[answer.ttft_ms for answer, _ in answers.values()],
            seeds=run.seeds,
        )
        if round_ == 1:
            continue
        yield Samples(
            name="round_hit_rate",
            params={**params, "round": round_},
            values=[answer.cached_tokens / known for answer, known in answers.values()],
            seeds=run.seeds,
        )
        for number, (answer, known) in answers.items():
            cached[number] += answer.cached_tokens
            known_before[number] += known
            if answer.cached_tokens > 0.9 * known:
                hits[number].append(answer.ttft_ms / costs_ms[round_])
    rates = [cached[number] / known_before[number] for number in known_before]
    yield Samples(name="hit_rate", params=params, values=rates, seeds=run.seeds)
    if hits:
        means = [statistics.mean(ratios) for ratios in hits.values()]
        yield Samples(name="hit_ttft_ratio", params=params, values=means, seeds=run.seeds)


@contextlib.contextmanager
def _configured(tiers: str, model: Path, workload: Any) -> Iterator[Server]:
    """An instance with all tiers up to the named one."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        depth = CONFIGURATIONS.index(tiers)
        settings: dict[str, object] = {"pages": workload["device_pages"]}
        if depth >= 1:
            settings["host"] = workload["host"]
        if depth >= 2:
            settings["disk"] = f"{folder}/kv:{workload['disk']}"
        if depth >= 3:
            settings["store"] = stack.enter_context(store_master())
        yield stack.enter_context(instance(model, settings))


def _prompt_tokens(workload: Any, round_: int) -> int:
    said = workload["question_tokens"] + workload["output_tokens"]
    return int(workload["first_tokens"] + (round_ - 1) * said)


def _recompute(server: Server, run: Run) -> dict[int, list[float]]:
    """TTFT of new prompts as long as those of each round."""
    draw = random.Random(run.seeds[0] + 1)
    times: dict[int, list[float]] = defaultdict(list)
    for _ in range(run.workload["recomputes"]):
        for round_ in range(1, run.workload["rounds"] + 1):
            prompt = random_tokens(draw, _prompt_tokens(run.workload, round_))
            forget_device(server)
            times[round_].append(ask(server, prompt, 1).ttft_ms)
    return times


def _converse(server: Server, run: Run) -> Rounds:
    """All rounds of all conversations, each a closed loop."""
    workload = run.workload
    draw = random.Random(run.seeds[0])
    said = [random_tokens(draw, workload["first_tokens"]) for _ in range(workload["conversations"])]
    known = [0] * len(said)
    rounds: Rounds = defaultdict(dict)
    for round_ in range(1, workload["rounds"] + 1):
        for number in draw.sample(range(len(said)), len(said)):
            answer = ask(server, said[number], workload["output_tokens"])
            rounds[round_][number] = (answer, known[number])
            said[number] += answer.token_ids
            known[number] = len(said[number])
            said[number] += random_tokens(draw, workload["question_tokens"])
    return rounds
