"""More requests than machines can serve: what is refused, and what of the rest is in time.

Source: Mooncake (arXiv 2407.00079), table 3: 8 machines for prompts and 8 for outputs, 23,000
requests at twice their speed; refused were 4,183 of them where decodes are looked at when the
prompt is computed, 3,771 with early refusal, 3,589 with a prediction. Its trace is not public, so
that nothing here stands beside these numbers; on the conversation trace machines for outputs are
the limit only where there are far fewer of them.
"""

from inlay.cluster.admission import AdmissionMode
from inlay.cluster.slo import SloClass
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import cluster
from inlay.sim.studies.mooncake_run import run
from inlay.sim.trace import Trace
from inlay.sim.transform import scale_rate

SLO = SloClass(ttft_s=30.0, tbt_s=0.1)


def measure(
    name: str, trace: Trace, *, prefill: int, decode: int, speed: float, admission: AdmissionMode
) -> list[Found]:
    """The shares of all requests that are `refused`, `kept` and `late`."""
    results = run(scale_rate(trace, speed), cluster(prefill, decode), slo=SLO, mode=admission)
    kept = results.meets(SLO)
    return [
        Found(name="refused", value=1 - float(results.finished.mean())),
        Found(name="kept", value=float(kept.mean())),
        Found(name="late", value=float((results.finished & ~kept).mean())),
    ]
