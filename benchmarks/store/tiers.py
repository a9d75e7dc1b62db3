"""store/tiers: what a prompt costs whose blocks are in one of the tiers.

Every repeat draws a new prompt; its blocks are computed, brought to where they are to be found, and
the prompt is sent again. Both answers must be the same, and the tier must have given the blocks.
"""

import contextlib
import random
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from benchmarks.case import Run
from benchmarks.serving.server import Server
from benchmarks.store.instances import (
    Answer,
    ask,
    forget_device,
    instance,
    metric,
    random_tokens,
    store_master,
    wait_until_written,
)
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """First and second TTFT per tier."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "random"
        make_tiny_model(model, "qwen3_moe", dtype="bfloat16", **run.workload["random"])
        for params in run.params("ttft_ratio"):
            draw = random.Random(run.seeds[0])
            prompts = [
                random_tokens(draw, run.workload["prompt_tokens"]) for _ in range(run.repeats)
            ]
            pairs = list(_pairs(params["tier"], model, prompts, run.workload["output_tokens"]))
            for first, second in pairs:
                if first.token_ids != second.token_ids:
                    raise RuntimeError(f"{params['tier']}: the answers differ")
            values = {
                "ttft_ratio": [second.ttft_ms / first.ttft_ms for first, second in pairs],
                "first_ttft_ms": [first.ttft_ms for first, _ in pairs],
                "second_ttft_ms": [second.ttft_ms for _, second in pairs],
            }
            for value, samples in values.items():
                yield Samples(name=value, params=params, values=samples, seeds=run.seeds)


def _pairs(
    tier: str, model: Path, prompts: list[list[int]], output_tokens: int
) -> Iterator[tuple[Answer, Answer]]:
    """The answers to each prompt before and after its blocks are in a tier."""

    def answers(server: Server) -> list[Answer]:
        return [ask(server, prompt, output_tokens) for prompt in prompts]

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings: dict[str, object] = {}
        if tier != "device":
            settings["host"] = "1GiB"
        if tier == "disk":
            settings["disk"] = f"{folder}/kv:4GiB"
        if tier == "store":
            settings["store"] = stack.enter_context(store_master())
        if tier == "disk":  # memory forgets with its process
            with instance(model, settings) as server:
                firsts = answers(server)
                wait_until_written(server)
            server = stack.enter_context(instance(model, settings))
        elif tier == "store":
            server = stack.enter_context(instance(model, settings))
            firsts = answers(server)
            wait_until_written(server)
            server = stack.enter_context(instance(model, {"store": settings["store"]}))
        else:
            server = stack.enter_context(instance(model, settings))
            firsts = answers(server)
            if tier == "host":
                wait_until_written(server)
                forget_device(server)
        yield from zip(firsts, answers(server), strict=True)
        if tier != "device":
            _check_hits(server, tier, sum(map(len, prompts)))


def _check_hits(server: Server, tier: str, prompt_tokens: int) -> None:
    loaded = metric(server, f'inlay_tier_hit_tokens_total{{tier="{tier}"}}')
    if loaded < 0.9 * prompt_tokens:
        raise RuntimeError(f"only {loaded:g} of {prompt_tokens} tokens came from the tier {tier}")
