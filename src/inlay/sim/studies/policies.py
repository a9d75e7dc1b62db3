"""Who chooses the machine of a prompt: 16 of them, half for prompts and half for outputs.

Source: Mooncake (FAST'25), figure 5, conversation: mean time to first token of random choice, load
balancing, local and global cache-awareness; how many of the 16 compute prompts is not said.
"""

from inlay.cluster.slo import SloClass
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster
from inlay.sim.studies.mooncake_run import mean_tbt_s, mean_ttft_s, run
from inlay.sim.trace import Trace

SLO = SloClass(ttft_s=30.0, tbt_s=0.2)
PAPER = {
    ("conversation", "random"): 19.65,
    ("conversation", "least_loaded"): 5.27,
    ("conversation", "local_cache_aware"): 3.58,
    ("conversation", "kv_centric"): 3.07,
}


def measure(name: str, trace: Trace, *, policy: str) -> list[Found]:
    """`mean_ttft_s`, `mean_tbt_s`, `hit_ratio` and `kept`, the share within 30 s and 200 ms."""
    results = run(trace, cluster(8, 8), policy=policy, slo=SLO)
    return [
        Found(name="mean_ttft_s", value=mean_ttft_s(results), published=PAPER.get((name, policy))),
        Found(name="mean_tbt_s", value=mean_tbt_s(results)),
        Found(name="hit_ratio", value=results.hit_ratio),
        Found(name="kept", value=float(results.meets(SLO).mean())),
    ]
