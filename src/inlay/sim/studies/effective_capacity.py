"""The share of a trace's requests that 16 machines serve within 30 s and a time between tokens.

`mooncake`: half for prompts, half for outputs, caches in hosts' memory, Algorithm 1. `inlay`: the
same machines and caches by Inlay's policy. `vllm`: all do both, a step takes whole prompts, and
nothing is cached. `vllm_prefix`: the same with what GPUs have room for as a cache. `vllm_chunked`:
chunks of 2,048 and no cache. `modern`: chunks and that cache, and requests go where their blocks
are. To those that cache nothing no two prompts are alike.

Source: Mooncake (FAST'25), section 6.2: against vLLM 0.5.1, whose machines had one instance each.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from inlay.cluster.slo import SloClass
from inlay.sim.scenario import Kind
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster
from inlay.sim.studies.mooncake_run import run
from inlay.sim.studies.scheduling_modes import WHOLE_PROMPTS
from inlay.sim.trace import Trace

TTFT_S = 30.0
TBT_MS = (100, 200, 300)
PAPER: Mapping[tuple[str, str], tuple[float, float, float]] = {
    ("conversation", "mooncake"): (0.97, 1.0, 1.0),
    ("conversation", "vllm"): (0.16, 0.39, 0.63),
    ("synthetic", "mooncake"): (0.99, 1.0, 1.0),
    ("synthetic", "vllm"): (0.61, 0.71, 0.78),
}
_CHUNK = 2048


def measure(name: str, trace: Trace, *, system: str) -> list[Found]:
    """`kept_100ms`, `kept_200ms` and `kept_300ms`, of all requests."""
    kinds, policy, caches = _system(system)
    results = run(trace if caches else _all_different(trace), kinds, policy=policy)
    published = PAPER.get((name, system), (None, None, None))
    return [
        Found(
            name=f"kept_{tbt_ms}ms",
            value=float(results.meets(SloClass(ttft_s=TTFT_S, tbt_s=tbt_ms / 1e3)).mean()),
            published=theirs,
        )
        for tbt_ms, theirs in zip(TBT_MS, published, strict=True)
    ]


def _system(name: str) -> tuple[tuple[Kind, ...], str, bool]:
    """Machines, who chooses one, and whether blocks are shared."""
    whole = cluster(16, 0, chunk_tokens=WHOLE_PROMPTS, cache_tokens=None)
    chunked = cluster(16, 0, chunk_tokens=_CHUNK, cache_tokens=None)
    return {
        "mooncake": (cluster(8, 8), "kv_centric", True),
        "inlay": (cluster(8, 8), "inlay", True),
        "vllm": (whole, "least_loaded", False),
        "vllm_prefix": (whole, "least_loaded", True),
        "vllm_chunked": (chunked, "least_loaded", False),
        "modern": (chunked, "local_cache_aware", True),
    }[name]


def _all_different(trace: Trace) -> Trace:
    return replace(trace, blocks=np.arange(len(trace.blocks), dtype=np.uint64))
