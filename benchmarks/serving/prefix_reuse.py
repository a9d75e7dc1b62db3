"""serving/prefix_reuse: what the prefix cache saves on a long prompt.

Every repeat draws a new prompt, sends it (all pages computed) and sends it again (all full pages
found). The answers must be the same text.
"""

import random
import tempfile
from collections.abc import Generator
from pathlib import Path

from benchmarks.case import Run
from benchmarks.serving.load import completion_body, stream_completions
from benchmarks.serving.server import Server, model_arguments, serve, wait_until_ready
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """Three measurements per model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiny_model(folder / "random", "qwen3_moe", dtype="bfloat16", **run.workload["random"])
        for params in run.params("first_ttft_ms"):
            with serve(*model_arguments(params["model"], folder)) as server:
                wait_until_ready(server)
                yield from measure_model(run, server, params)


def measure_model(run: Run, server: Server, params: dict[str, object]) -> list[Samples]:
    """First and second TTFT of `run.repeats` prompts."""
    draw = random.Random(run.seeds[0])
    first_ms, second_ms = [], []
    for _ in range(run.repeats):
        prompt = [draw.randrange(300, 1000) for _ in range(run.workload["prompt_tokens"])]
        first, first_text = ttft_ms(server, prompt, run.workload["output_tokens"])
        second, second_text = ttft_ms(server, prompt, run.workload["output_tokens"])
        if first_text != second_text:
            raise RuntimeError(f"texts differ after a hit: {first_text!r}, {second_text!r}")
        first_ms.append(first)
        second_ms.append(second)
    ratios = [second / first for first, second in zip(first_ms, second_ms, strict=True)]
    values = {
        "ttft_ratio": ratios,
        "first_ttft_ms": first_ms,
        "first_token_after_full_hit_ms": second_ms,
    }
    return [
        Samples(name=name, params=params, values=samples, seeds=run.seeds)
        for name, samples in values.items()
    ]


def ttft_ms(server: Server, prompt: list[int], output_tokens: int) -> tuple[float, str]:
    """Time from sending to the first token, and the text."""
    record = stream_completions(server.url, [completion_body(prompt, output_tokens)])[0]
    return 1000 * (record.token_times_s[0] - record.sent_s), record.text
