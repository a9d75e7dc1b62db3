"""Prefill and decode rates of the engine on one model, as a program of its own.

    python -m benchmarks.kernels.engine_rates DIRECTORY FORMAT PROMPT OUTPUT BATCH...

Prints one JSON line per batch: so many random prompts of PROMPT tokens arrive together, and once
the last of them has its first token, OUTPUT steps are timed in which each gets one. The first part
is prefill, though prompts that are ready decode already while others wait. Greedy, no end token.
"""

import json
import random
import sys
import time

from inlay.cache import CacheConfig
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.engine import Engine, EngineConfig, SchedulerConfig

PAGE_TOKENS = 16


def main() -> None:
    """Load the model, then measure every batch."""
    directory, weight_format, prompt_tokens, output_tokens, *batches = sys.argv[1:]
    sizes = [int(batch) for batch in batches]
    engine = new_engine(directory, weight_format, int(prompt_tokens), int(output_tokens), sizes)
    # A prompt touches every expert, so mapped weights are in memory then, as are the peer's.
    measure(engine, 1, int(prompt_tokens), 1)
    for batch in sizes:
        rates = measure(engine, batch, int(prompt_tokens), int(output_tokens))
        print(json.dumps({"batch": batch, **rates}), flush=True)


def new_engine(
    directory: str, weight_format: str, prompt_tokens: int, output_tokens: int, batches: list[int]
) -> Engine:
    """An engine with room for the largest batch, and no prefix cache: prompts are all new."""
    # While the last prompt is computed, the first may be as many tokens ahead as there are prompts.
    context = prompt_tokens + output_tokens + 2 * max(batches) + PAGE_TOKENS
    return Engine(
        EngineConfig(
            model=directory,
            device="cpu",
            weight_format=weight_format,
            max_context_tokens=context,
            cache=CacheConfig(
                pages=max(batches) * -(-context // PAGE_TOKENS),
                page_tokens=PAGE_TOKENS,
                prefix=False,
            ),
            scheduler=SchedulerConfig(max_running=max(batches)),
            seed=0,
        )
    )


def measure(engine: Engine, batch: int, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
    """Tokens per second of prefill and of decode."""
    draw = random.Random(batch)
    for index in range(batch):
        engine.add(
            GenerateRequest(
                request_id=f"{batch}-{index}",
                token_ids=[draw.randrange(engine.info.vocab_size) for _ in range(prompt_tokens)],
                params=SamplingParams(temperature=0, ignore_eos=True),
                arrival_s=time.monotonic(),
            )
        )
    waiting = {f"{batch}-{index}" for index in range(batch)}
    start = time.perf_counter()
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    prefilled = time.perf_counter()
    for _ in range(output_tokens):
        if len(engine.step()) != batch:
            raise RuntimeError(f"a step of {batch} requests did not serve all of them")
    end = time.perf_counter()
    for index in range(batch):
        engine.cancel(f"{batch}-{index}")
    engine.step()
    return {
        "prefill_tokens_per_s": batch * prompt_tokens / (prefilled - start),
        "decode_tokens_per_s": batch * output_tokens / (end - prefilled),
    }


if __name__ == "__main__":
    main()
