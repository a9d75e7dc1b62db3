"""How many of 16 machines should compute prompts.

Source: Mooncake (FAST'25), figure 15, synthetic: the share of requests within 10 s and 100 ms.
Along that row the mean time to first token falls from 5.7 to 1.1 s, and the mean time between
tokens rises from 32 to 58 ms.
"""

from inlay.cluster.slo import SloClass
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster
from inlay.sim.studies.mooncake_run import mean_tbt_s, mean_ttft_s, run
from inlay.sim.trace import Trace

MACHINES = 16
SLO = SloClass(ttft_s=10.0, tbt_s=0.1)
KEPT = {5: 0.776, 6: 0.97, 7: 0.99, 8: 0.99, 9: 0.99, 10: 0.983, 11: 0.86}
MEAN_TTFT_S = {5: 5.7, 11: 1.1}
MEAN_TBT_S = {5: 0.032, 11: 0.058}


def measure(name: str, trace: Trace, *, prefill: int) -> list[Found]:
    """`kept`, `mean_ttft_s` and `mean_tbt_s` with so many machines for prompts."""
    results = run(trace, cluster(prefill, MACHINES - prefill), slo=SLO)
    known = name == "synthetic"
    return [
        Found(
            name="kept",
            value=float(results.meets(SLO).mean()),
            published=KEPT.get(prefill) if known else None,
        ),
        Found(
            name="mean_ttft_s",
            value=mean_ttft_s(results),
            published=MEAN_TTFT_S.get(prefill) if known else None,
        ),
        Found(
            name="mean_tbt_s",
            value=mean_tbt_s(results),
            published=MEAN_TBT_S.get(prefill) if known else None,
        ),
    ]
