"""What admission does to requests that are taken and to those that are not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.slo import SloClass
from inlay.sim.transform import merge
from tests.unit.sim.workloads import no_sharing, simulated

pytest.importorskip("inlay._native")

SLO = SloClass(ttft_s=8.0, tbt_s=0.025)


@cache
def overload(mode, rate):
    """Long prompts, and decoding that is scarce."""
    trace = no_sharing(int(rate * 90), rate=rate, seed=4, outputs=8)
    roles = ["prefill", "prefill", "prefill", "decode"]
    admission = AdmissionConfig(mode=mode)
    return simulated(trace, "inlay", roles, pages=4000, slo=SLO, admission=admission)


def goodput(results):
    """Requests that kept their objectives, per second."""
    return results.meets(SLO).sum() / results.duration_s


def test_goodput_holds_at_twice_the_load():
    base = goodput(overload("predicted", 1.0))
    kept = goodput(overload("predicted", 2.4))
    lost = goodput(overload("off", 2.4))
    assert kept >= 0.9 * base
    assert base - kept <= 0.5 * (base - lost)


def test_prediction_damps_the_swing_between_prefill_and_decode():
    def swing(mode):
        results = overload(mode, 2.4)
        taken = results.arrival_s[results.finished]
        counts = np.histogram(taken, bins=np.arange(10.0, 91.0, 2.0))[0]
        return counts.std() / counts.mean(), goodput(results)

    early, early_goodput = swing("early")
    predicted, predicted_goodput = swing("predicted")
    assert predicted < early
    assert predicted_goodput >= early_goodput


def test_a_tenant_that_asks_for_too_much_is_refused_first():
    rates = (("many", 4.0, 1), ("few", 0.5, 2))
    trace = merge(
        [
            no_sharing(int(rate * 60), rate=rate, seed=seed, tenant=tenant)
            for tenant, rate, seed in rates
        ]
    )
    slo = replace(SLO, ttft_s=4.0, tbt_s=np.inf)
    results = simulated(
        trace, "inlay", ["both"] * 3, pages=4000, slo=slo,
        admission=AdmissionConfig(mode="predicted"),
    )  # fmt: skip
    tenants = np.array(trace.groups)[trace.group]
    many, few = (1 - results.finished[tenants == tenant].mean() for tenant, *_ in rates)
    assert many > 0.2
    assert few < 0.2 * many
    assert results.meets(slo).any()
