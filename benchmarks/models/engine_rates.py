"""Prefill and decode rates of the engine on one model, as a program of its own.

    python -m benchmarks.models.engine_rates DIRECTORY FORMAT PROMPT OUTPUT BATCH... [SETTING...]

Prints one JSON line per batch: so many random prompts of PROMPT tokens arrive together, and once
the last of them has its first token, OUTPUT steps are timed in which each gets one. The first part
is prefill, though prompts that are ready decode already while others wait. Greedy, no end token.
Settings of the engine are written as `--set` takes them.

Memory changes its speed within seconds on a shared machine, so steps are timed a few at a time,
each time between two measurements of what memory gives; where these differ by more than `NOISE`,
that time does not count. The last line is about loading and memory.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path
from statistics import fmean

from benchmarks.triples import NOISE
from inlay import kernels
from inlay.cache import CacheConfig
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.overrides import apply_overrides
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig, SchedulerConfig

PAGE_TOKENS = 16
STEPS_AT_ONCE = 8


def main() -> None:
    """Load the model, then measure every batch."""
    directory, weight_format, prompt_tokens, output_tokens, *others = sys.argv[1:]
    sizes = [int(one) for one in others if "=" not in one]
    settings = [one for one in others if "=" in one]
    lengths = int(prompt_tokens), int(output_tokens)
    engine = new_engine(directory, weight_format, *lengths, sizes, settings)
    # Pages and caches as they are later.
    measure(engine, 1, int(prompt_tokens), 1)
    for batch in sizes:
        rates = measure(engine, batch, int(prompt_tokens), int(output_tokens))
        print(json.dumps({"batch": batch, **rates}), flush=True)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"held_bytes": held_bytes(Path(directory)), "peak_rss_bytes": peak}
    print(json.dumps({"load_s": engine.info.load_s, **memory}), flush=True)


def new_engine(
    directory: str,
    weight_format: str,
    prompt_tokens: int,
    output_tokens: int,
    batches: list[int],
    settings: list[str],
) -> Engine:
    """An engine with room for the largest batch, and no prefix cache: prompts are all new."""
    # While the last prompt is computed, the first gets a token with each part of another one.
    parts = max(batches) * (1 + -(-prompt_tokens // SchedulerConfig().prefill_chunk))
    context = prompt_tokens + output_tokens + parts + PAGE_TOKENS
    config = EngineConfig(
        model=directory,
        device="cpu",
        weight_format=weight_format,
        load="whole",
        max_context_tokens=context,
        cache=CacheConfig(
            pages=max(batches) * -(-context // PAGE_TOKENS),
            page_tokens=PAGE_TOKENS,
            prefix=False,
        ),
        scheduler=SchedulerConfig(max_running=max(batches)),
        seed=0,
    )
    return Engine(apply_overrides(config, settings))


def measure(engine: Engine, batch: int, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
    """Tokens per second of prefill and of decode, and what the machine gave meanwhile.

    Returns:
        `prefill_tokens_per_s`, `decode_tokens_per_s`; `decode_read_gbs` of the same times; `kept`,
        the share of them that count. If none does, all of them do.
    """
    draw = random.Random(batch)
    for index in range(batch):
        engine.add(
            GenerateRequest(
                request_id=f"{batch}-{index}",
                prompt=pack_token_ids(
                    [draw.randrange(engine.info.vocab_size) for _ in range(prompt_tokens)]
                ),
                params=SamplingParams(temperature=0, ignore_eos=True),
                arrival_s=time.monotonic(),
            )
        )
    waiting = {f"{batch}-{index}" for index in range(batch)}
    start = time.perf_counter()
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    prefill_s = time.perf_counter() - start
    times = decode_times(engine, batch, output_tokens)
    for index in range(batch):
        engine.cancel(f"{batch}-{index}")
    engine.step()
    calm = [one for one in times if abs(one[2] - one[1]) <= NOISE * max(one[1:])]
    counted = calm or times
    return {
        "prefill_tokens_per_s": batch * prompt_tokens / prefill_s,
        "decode_tokens_per_s": batch / fmean(step_s for step_s, _, _ in counted),
        "decode_read_gbs": fmean((before + after) / 2 for _, before, after in counted),
        "kept": len(calm) / len(times),
    }


def decode_times(engine: Engine, batch: int, steps: int) -> list[tuple[float, float, float]]:
    """Seconds of a step, and GB/s that memory gave before and after, some steps at a time."""
    probe = kernels.MemoryProbe()
    times = []
    before = probe.read_gbs()
    for first in range(0, steps, STEPS_AT_ONCE):
        count = min(STEPS_AT_ONCE, steps - first)
        start = time.perf_counter()
        for _ in range(count):
            if len(engine.step()) != batch:
                raise RuntimeError(f"a step of {batch} requests did not serve all of them")
        step_s = (time.perf_counter() - start) / count
        after = probe.read_gbs()
        times.append((step_s, before, after))
        before = after
    return times


def held_bytes(directory: Path) -> int:
    """Memory of this process: all but clean pages of files, and of those the model's weights."""
    held, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if " " in key:  # a mapping's first line, which ends with the file
            counts = str(directory.resolve()) in line
        elif key == "Pss":
            proportional = int(value.split()[0])
        elif key == "Pss_Dirty":
            held += proportional if counts else int(value.split()[0])
    return 1024 * held


if __name__ == "__main__":
    main()
