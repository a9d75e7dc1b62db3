"""serving/concurrency: streams over HTTP beside a static batch in transformers.

Both sides get the same random prompts and write exactly as many tokens. The peers have no server
between: their time is that of `generate` alone.
"""

import random
import time
from collections.abc import Callable, Generator
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.case import Run
from benchmarks.serving.load import completion_body, stream_completions
from benchmarks.serving.server import serve, wait_until_ready
from benchmarks.triples import Comparison
from inlay.models.source import resolve_model

Prompts = list[list[int]]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per concurrency."""
    directory = resolve_model(None).directory
    version = transformers.__version__
    generate = {
        f"transformers {version} {str(dtype).removeprefix('torch.')}": transformers_generate(
            directory, dtype, run.workload["output_tokens"]
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    with serve() as server:
        wait_until_ready(server)
        for params in run.params("output_tokens_per_s"):
            prompts = random_prompts(
                run.seeds[0], params["concurrency"], run.workload["prompt_tokens"]
            )
            yield Comparison(
                name="output_tokens_per_s",
                params=params,
                ours=lambda prompts=prompts: output_rate(
                    server.url, prompts, run.workload["output_tokens"]
                ),
                peers={
                    label: lambda prompts=prompts, peer=peer: peer(prompts)
                    for label, peer in generate.items()
                },
                seeds=run.seeds,
            )


def random_prompts(seed: int, count: int, tokens: int) -> Prompts:
    """Token ids that both sides take as they are."""
    draw = random.Random(seed)
    return [[draw.randrange(300, 4000) for _ in range(tokens)] for _ in range(count)]


def output_rate(url: str, prompts: Prompts, output_tokens: int) -> float:
    """All output tokens over the time from the first request sent to the last token read."""
    records = stream_completions(
        url, [completion_body(prompt, output_tokens) for prompt in prompts]
    )
    start = min(record.sent_s for record in records)
    end = max(record.token_times_s[-1] for record in records)
    return sum(record.counted_tokens for record in records) / (end - start)


def transformers_generate(
    directory: Path, dtype: torch.dtype, output_tokens: int
) -> Callable[[Prompts], float]:
    """The peer: `generate` over a batch of prompts of one length, greedy, no end token."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    model.generation_config.pad_token_id = 0

    def rate(prompts: Prompts) -> float:
        input_ids = torch.tensor(prompts)
        start = time.perf_counter()
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            min_new_tokens=output_tokens,
            max_new_tokens=output_tokens,
        )
        seconds = time.perf_counter() - start
        return (output.shape[1] - input_ids.shape[1]) * len(prompts) / seconds

    return rate
