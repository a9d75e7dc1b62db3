"""What the network between machines must carry, where each prompt's blocks are fetched.

All keys and values that a prefill computes go to another machine, and blocks that others have are
copied whenever these have more. Without a network nothing is divided and nothing copied.

Source: Mooncake (FAST'25), figure 13, synthetic: above 100 Gb/s the mean time to first token stays
at 1.3 to 1.6 s; computing everything again takes 2.6 s, and at 24 Gb/s it is above 5 s.
"""

from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster
from inlay.sim.studies.mooncake_run import ALGORITHM_1, mean_tbt_s, mean_ttft_s, run
from inlay.sim.trace import Trace

PAPER = {24: 5.0, 100: 1.6, 200: 1.45, 400: 1.3}


def measure(name: str, trace: Trace, *, gbits: int) -> list[Found]:
    """`mean_ttft_s`, `mean_tbt_s` and `sent_tb`, by what a machine sends in a second."""
    results = run(
        trace,
        cluster(8, 8, network_gbits=gbits),
        policy=ALGORITHM_1,
        options={"balancing_threshold": 1.0},
    )
    return [
        Found(
            name="mean_ttft_s",
            value=mean_ttft_s(results),
            published=PAPER.get(gbits) if name == "synthetic" else None,
        ),
        Found(name="mean_tbt_s", value=mean_tbt_s(results)),
        Found(name="sent_tb", value=float(results.sent_bytes.sum()) / 1e12),
    ]
