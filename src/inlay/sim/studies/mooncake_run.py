"""Runs scenarios of `mooncake` and sums them up as its figures do."""

from collections.abc import Mapping, Sequence

from inlay.cluster.admission import AdmissionConfig, AdmissionMode
from inlay.cluster.slo import SloClass
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace

ALGORITHM_1 = "kv_centric"


def run(
    trace: Trace,
    kinds: Sequence[Kind],
    *,
    policy: str = ALGORITHM_1,
    options: Mapping[str, object] | None = None,
    slo: SloClass | None = None,
    mode: AdmissionMode = "off",
    copies: bool = True,
) -> Results:
    """Replay a trace; the same call gives the same results."""
    scenario = Scenario(
        kinds=tuple(kinds),
        policy=policy,
        policy_options=options or {},
        slo=slo or SloClass(),
        admission=AdmissionConfig(mode=mode),
        copies=copies,
    )
    return Simulation(scenario).run(trace)


def mean_ttft_s(results: Results) -> float:
    """Of requests that were not refused."""
    return float(results.ttft_s[results.finished].mean())


def mean_tbt_s(results: Results) -> float:
    """Of those that have a gap."""
    several = results.finished & (results.output_tokens > 1)
    return float(results.tbt_s[several].mean())
