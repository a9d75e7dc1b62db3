"""The planner: bounds that hold, plans that nothing cheaper beats, files that others read."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from inlay.cluster.deployment_file import read_deployment
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError, TraceError
from inlay.core.hardware import machine_named
from inlay.sim import transform
from inlay.sim.formats import read
from inlay.sim.planner.bounds import bound
from inlay.sim.planner.candidates import Candidate, candidates_of, machines_of
from inlay.sim.planner.demand import Demand, demand_of
from inlay.sim.planner.files import deployment_toml, scenario_toml
from inlay.sim.planner.fleet import Fleet, Mix, simulate
from inlay.sim.planner.search import Search, mixes_of, rival_of, search
from inlay.sim.scenario_file import read_scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace
from tests.support.tree import ROOT
from tests.unit.sim.test_scenario_file import shape_named

SLO = SloClass(ttft_s=2.0, tbt_s=0.05)
ATTAIN = 0.9
MODEL = "qwen3-8b"


@pytest.fixture(scope="module")
def trace() -> Trace:
    whole = read(ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz")
    return transform.scale_rate(transform.cut(whole, 0, 60), 2.0)


def offered(demand: Demand, *names: str, model: str = MODEL) -> list[Candidate]:
    found, _ = candidates_of(shape_named(model), machines_of(names, machine_named), demand)
    return found


def mixes(demand: Demand, *names: str) -> list[Mix]:
    return mixes_of(offered(demand, *names))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Search:
    demand = demand_of(lambda: [trace], SLO)
    return search(mixes(demand, "h800", "h20"), demand, attain=ATTAIN)


def test_demand_counts_what_an_earlier_request_had() -> None:
    trace = Trace(
        arrival_s=[0.0, 1.0, 2.0],
        input_tokens=[10, 9, 8],
        output_tokens=[1, 3, 2],
        block_starts=[0, 3, 6, 8],
        blocks=[1, 2, 3, 1, 2, 4, 1, 2],
        block_tokens=4,
    )
    demand = demand_of(lambda: [trace], SloClass(ttft_s=5, tbt_s=0.5))
    # The third prompt is known to its end: one token of it is computed.
    assert demand.new_R.tolist() == [10, 1, 1]
    assert demand.pairs_R.tolist() == [55, 9, 8]
    assert demand.rows_R.tolist() == [0, 2, 1]
    assert (demand.prefill_s, demand.decode_s) == (7.0, 8.0)
    with pytest.raises(TraceError, match="no request"):
        demand_of(lambda: [trace.select([])], SLO)


def test_parts_are_planned_for_as_their_whole(trace: Trace) -> None:
    cuts = [0, 1, len(trace) // 3, len(trace)]
    parts = [trace.select(range(*ends)) for ends in pairwise(cuts)]
    whole, again = demand_of(lambda: [trace], SLO), demand_of(lambda: parts, SLO)
    for name in ("input_R", "output_R", "new_R"):
        assert np.array_equal(getattr(whole, name), getattr(again, name))
    assert (again.prefill_s, again.decode_s, again.last_s) == (
        whole.prefill_s,
        whole.decode_s,
        trace.duration_s,
    )
    mix = mixes(whole, "h800")[0]
    for rate in (1.0, 2.0):
        one, other = (simulate(Fleet(mix, (2,)), demand, rate) for demand in (whole, again))
        shares = ("served", "kept", "ttft_kept", "tbt_kept")
        assert [getattr(one, name) for name in shares] == [getattr(other, name) for name in shares]
        assert one.figures["ttft_s"]["p90"] == other.figures["ttft_s"]["p90"]  # type: ignore[index]
        assert one.figures["tiers"] == other.figures["tiers"]


def test_no_simulation_is_busy_for_less_than_its_bound(trace: Trace) -> None:
    """Bounds count the work that the simulator then does, and never more."""
    demand = demand_of(lambda: [trace], SloClass(ttft_s=2.0, tbt_s=10.0))
    for one in offered(demand, "h800", "h20"):
        if one.role == "both":
            results = Simulation(Fleet(Mix((one,)), (3,)).scenario(SLO)).run(trace)
            assert results.finished.all()
            busy_s = bound(one, demand, attain=0.01).instances * demand.decode_s
            assert 0.2 * results.busy_s.sum() < busy_s <= results.busy_s.sum()


def test_plans_keep_objectives_and_no_pool_has_one_too_many(found: Search, trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    assert len(found.plans) >= 3
    prices = [plan.fleet.price_usd for plan in found.plans]
    assert prices == sorted(prices)
    for plan in found.plans:
        assert plan.kept >= ATTAIN
        again = simulate(plan.fleet, demand)
        assert again.kept == plan.kept
    best = found.plans[0].fleet
    for place, count in enumerate(best.counts):
        if count > 1:
            assert simulate(best.more(place, -1), demand).kept < ATTAIN
    # All that was simulated and kept the objectives is a plan, or was beaten by one of its mix.
    for attempt in found.attempts:
        if attempt.kept >= ATTAIN:
            assert any(
                plan.fleet.mix == attempt.fleet.mix
                and plan.fleet.price_usd <= attempt.fleet.price_usd
                for plan in found.plans
            )


def test_the_same_again(found: Search, trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    again = search(mixes(demand, "h800", "h20"), demand, attain=ATTAIN)
    assert [a.fleet.name for a in again.attempts] == [a.fleet.name for a in found.attempts]


def test_a_budget_that_is_too_small(found: Search, trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    cheapest = found.plans[0].fleet.price_usd
    tight = search(mixes(demand, "h800", "h20"), demand, attain=ATTAIN, budget_usd=cheapest - 1)
    assert not tight.plans
    assert all(loss.fleet.price_usd > cheapest - 1 for loss in tight.losses)
    assert all("above the budget by" in loss.reason for loss in tight.losses)


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        (SloClass(ttft_s=1e-3, tbt_s=0.05), "TTFT: only"),
        (SloClass(ttft_s=2.0, tbt_s=1e-4), "TBT: only"),
    ],
)
def test_objectives_that_nothing_keeps(trace: Trace, slo: SloClass, told: str) -> None:
    demand = demand_of(lambda: [trace], slo)
    none = search(mixes(demand, "h20"), demand, attain=ATTAIN)
    assert not none.plans and not none.attempts
    assert any(told in why and "times as long" in why for why in none.unfit.values())
    missing = [bound(one, demand, ATTAIN).missing for one in none.unfit]
    assert missing == sorted(missing) and missing[0] > 1


def test_requests_that_are_too_long_for_an_instance(trace: Trace) -> None:
    demand = demand_of(lambda: [transform.scale_lengths(trace, 8)], SLO)
    (one, *_) = offered(demand, "4090")
    limit = bound(one, demand, ATTAIN)
    assert "memory: only" in limit.reason and math.isinf(limit.instances)


def test_files_are_what_others_read(found: Search, trace: Trace, tmp_path: Path) -> None:
    for plan in found.plans:
        file = tmp_path / "plan.toml"
        file.write_text(scenario_toml(plan.fleet, MODEL, SLO, trace.block_tokens))
        scenario = read_scenario(file, shape_named, machine_named)
        # The file says the same fleet, to the last digit.
        assert Simulation(scenario).run(trace).meets(SLO).mean() == plan.kept
        file.write_text(deployment_toml(plan.fleet, MODEL, SLO))
        deployment = read_deployment(file)
        counts = [group.count for group in deployment.instances.values()]
        assert sum(counts) == sum(plan.fleet.counts)
        assert deployment.slo["default"].tbt_s == SLO.tbt_s
        one_gpu_each = fleet_of_one_machine(plan.fleet)
        assert deployment.launcher == ("local" if one_gpu_each else "ray")
    (one,) = found.plans[0].fleet.mix.groups[:1]
    file.write_text(deployment_toml(Fleet(Mix((replace(one, role="both"),)), (1,)), MODEL, SLO))
    assert read_deployment(file).launcher == "local"


def fleet_of_one_machine(fleet: Fleet) -> bool:
    """Whether each instance has a GPU of one machine, and nothing stands elsewhere."""
    (one, *others) = fleet.mix.groups
    return not others and one.gpus == 1 and fleet.gpus <= 8 and not fleet.mix.memory.nodes


def test_nothing_to_deploy_where_experts_are_whole(trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    (whole,) = (
        one
        for one in offered(demand, "h20", model="qwen3-30b-a3b")
        if one.role == "both" and one.gpus == 8 and one.design.parallelism.whole_experts
    )
    with pytest.raises(ConfigError, match="whole experts is nothing that inlay up can start"):
        deployment_toml(Fleet(Mix((whole,)), (1,)), MODEL, SLO)


def test_one_kind_at_the_price_of_a_mixed_fleet(found: Search, trace: Trace) -> None:
    rival = rival_of(found, demand_of(lambda: [trace], SLO))
    best = found.plans[0].fleet
    if len({one.hardware for one in best.mix.groups}) == 1:
        assert rival is None
    else:
        assert rival is not None and rival.fleet.price_usd <= best.price_usd


def test_hardware() -> None:
    assert "h800" in machines_of(None, machine_named)
    own = machines_of(["epyc-genoa-2s+4xh20"], machine_named)
    assert [len(machine.gpus) for _, machine in own.values()] == [4]
    with pytest.raises(ConfigError, match="did you mean h800"):
        machines_of(["h8000"], machine_named)
    with pytest.raises(ConfigError, match="has no"):
        machines_of(["epyc-genoa+2xh21"], machine_named)


def test_a_model_that_fits_nowhere(trace: Trace) -> None:
    none, why = candidates_of(
        shape_named("deepseek-v3"),
        machines_of(["4090"], machine_named),
        demand_of(lambda: [trace], SLO),
        tensor_only=True,
    )
    assert none == [] and "take more GPUs" in why["4090"]
