"""The best fleets of a budget: what was simulated again, and nothing better among all splits."""

import pytest

from inlay.cluster.slo import SloClass
from inlay.sim.planner.bounds import bound
from inlay.sim.planner.budget import AIMS, Throughput, best_for, splits_of
from inlay.sim.planner.demand import demand_of
from inlay.sim.planner.fleet import simulate
from inlay.sim.planner.search import Search
from inlay.sim.trace import Trace
from tests.unit.sim.test_planner import ATTAIN, SLO, mixes, trace

__all__ = ["trace"]  # a fixture

BUDGET = 300_000.0


@pytest.fixture(scope="module")
def best(trace: Trace) -> dict[str, Search]:
    demand = demand_of(lambda: [trace], SLO)
    return {
        name: best_for(
            aim,
            mixes(demand, "h800", "h20"),
            demand,
            attain=ATTAIN,
            budget_usd=BUDGET,
        )
        for name, aim in AIMS.items()
    }


@pytest.mark.parametrize("aim", AIMS)
def test_plans_keep_objectives_and_budget(aim: str, best: dict[str, Search], trace: Trace) -> None:
    plans, demand = best[aim].plans, demand_of(lambda: [trace], SLO)
    assert len(plans) >= 3 and any(plan.fleet.mix.is_single for plan in plans)
    for plan in plans:
        assert plan.fleet.price_usd <= BUDGET and plan.kept >= ATTAIN
        assert simulate(plan.fleet, demand, plan.rate).kept == plan.kept
    lost = [loss.fleet.mix for loss in best[aim].losses]
    assert not {plan.fleet.mix for plan in plans} & set(lost)


def test_throughput_is_the_highest_rate_and_within_bounds(
    best: dict[str, Search], trace: Trace
) -> None:
    plans = best["throughput"].plans
    assert [plan.rate for plan in plans[:3]] == sorted((p.rate for p in plans[:3]), reverse=True)
    first = plans[0]
    tried = [one for one in best["throughput"].attempts if one.fleet == first.fleet]
    assert any(first.rate < one.rate < 1.07 * first.rate and one.kept < ATTAIN for one in tried)
    demand = demand_of(lambda: [trace], SLO)
    bounds = {one: bound(one, demand, ATTAIN) for one in first.fleet.mix.groups}
    goal = Throughput(bounds=bounds, demand=demand, attain=ATTAIN)
    assert first.rate <= goal.limit(first.fleet)


def test_no_fleet_that_was_simulated_has_earlier_first_tokens(best: dict[str, Search]) -> None:
    found = best["ttft"]
    kept = [one for one in found.attempts if one.kept >= ATTAIN]
    times = [one.figures["ttft_s"]["p90"] for one in kept]  # type: ignore[index]
    assert found.plans[0].figures["ttft_s"]["p90"] == min(times)  # type: ignore[index]
    assert all(plan.rate == 1.0 for plan in found.plans)


def test_a_budget_for_nothing(trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    none = best_for("throughput", mixes(demand, "h20"), demand, attain=ATTAIN, budget_usd=1000.0)
    assert not none.plans and not none.attempts
    assert all("above the budget by" in loss.reason for loss in none.losses)


def test_objectives_that_nothing_keeps(trace: Trace) -> None:
    slo = SloClass(ttft_s=0.35, tbt_s=0.05)
    demand = demand_of(lambda: [trace], slo)
    none = best_for("ttft", mixes(demand, "h20"), demand, attain=ATTAIN, budget_usd=BUDGET)
    assert not none.plans
    assert none.unfit or all("objectives" in loss.reason for loss in none.losses)


def test_splits_spend_the_budget(trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    for mix in mixes(demand, "h800", "h20"):
        fleets = list(splits_of(mix, BUDGET))
        places = len(mix.groups)
        assert all(fleet.price_usd <= BUDGET for fleet in fleets)
        assert all(fleet.more(places - 1, 1).price_usd > BUDGET for fleet in fleets)
        assert [fleet.counts[0] for fleet in fleets] == sorted(
            {fleet.counts[0] for fleet in fleets}
        )
