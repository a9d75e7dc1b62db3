"""Caches of their own against one of all, of ten machines that compute prompts alone.

`local`: a request goes anywhere, and finds what was computed there. `aware`: it goes where its
blocks are, if that is soonest. `shared`: blocks that another machine has are copied
whenever it has more. `one`: the same, and each machine has room for what all ten have together.

Source: Mooncake (FAST'25), figure 10: 10 machines, 3 M tokens each, outputs of one token.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import CACHE_TOKENS, GPUS, cluster
from inlay.sim.studies.mooncake_run import ALGORITHM_1, run
from inlay.sim.trace import Trace

MACHINES = 10
PAPER = {
    ("conversation", "local"): 0.168,
    ("conversation", "one"): 0.373,
    ("synthetic", "local"): 0.265,
    ("synthetic", "one"): 0.625,
}
_ALWAYS: Mapping[str, object] = {"balancing_threshold": 1.0}
_CACHES: Mapping[str, tuple[str, Mapping[str, object], int]] = {
    "local": ("random", {}, CACHE_TOKENS),
    "aware": ("local_cache_aware", {}, CACHE_TOKENS),
    "shared": (ALGORITHM_1, _ALWAYS, CACHE_TOKENS),
    "one": (ALGORITHM_1, _ALWAYS, MACHINES * CACHE_TOKENS),
}


def measure(name: str, trace: Trace, *, cache: str) -> list[Found]:
    """`hit_ratio`, and `gpu_s`, in which machines computed, for each request."""
    policy, options, tokens = _CACHES[cache]
    prompts = replace(trace, output_tokens=np.ones(len(trace), np.int32))
    results = run(
        prompts, cluster(MACHINES, 0, cache_tokens=tokens), policy=policy, options=options
    )
    return [
        Found(name="hit_ratio", value=results.hit_ratio, published=PAPER.get((name, cache))),
        Found(name="gpu_s", value=GPUS * float(results.busy_s.sum()) / len(trace)),
    ]
