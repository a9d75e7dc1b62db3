"""What the same money buys: GPUs of one kind or of two, with and without memory for blocks alone.

A fleet for LLaMA-3.1-70B in bf16 within a budget, objectives of 5 s to the first token and 100 ms
between tokens (the mean of a request's worst tenth of gaps), which nine of ten requests keep: the
highest rate of requests, times the trace's own, and which fleet has it. Prices, and what kernels
reach of the hardware's peaks, are those of the catalogue (`core/hardware.toml`), where nearly all
of them are assumptions.

Source of the question: the talk, that compute per dollar is for prompts, bandwidth per dollar for
tokens, and capacity per dollar for keys and values.
"""

from functools import cache

from inlay.cluster.slo import SloClass
from inlay.core.hardware import catalogue_gpus, machine_named
from inlay.sim.planner.budget import best_for
from inlay.sim.planner.candidates import candidates_of, machines_of
from inlay.sim.planner.demand import demand_of
from inlay.sim.planner.fleet import Attempt
from inlay.sim.planner.memory import MEMORIES, Memory
from inlay.sim.planner.record import ASSUMED, ASSUMPTIONS
from inlay.sim.planner.search import Search, mixes_of
from inlay.sim.studies.found import Found
from inlay.sim.studies.known import known_shape
from inlay.sim.trace import Trace

MODEL = "llama-3.1-70b"
SLO = SloClass(ttft_s=5.0, tbt_s=0.1)
ATTAIN = 0.9
BUDGET_USD = 1_000_000.0
_GPUS = (4, 8)  # of an instance, so that all requests fit
_MEMORIES = {
    "gpus": (Memory(hosts=False),),
    "hosts": (Memory(),),
    "bought": MEMORIES,
}


def measure(name: str, trace: Trace, *, gpus: str, memory: str) -> list[Found]:
    """`rate`, `requests_per_s`, the same `_per_million_usd` that is spent, `hit_ratio`, `price_usd`
    and `cache_tb` of the best fleet; nothing but a `rate` of 0 where none keeps the objectives.

    Args:
        gpus: kinds of the catalogue; of two, a fleet has both.
        memory: `gpus`: blocks are cached nowhere else; `hosts`: each instance has its part of its
            host's memory, too; `bought`: what `planner.memory.MEMORIES` has, disks and nodes.

    Prints the fleet, and before the first one what all of it stands on.
    """
    say_assumptions()
    found = best(trace, gpus, memory)
    if not found.plans:
        print(f"{name}, {gpus}, {memory}: no fleet keeps the objectives")
        return [Found(name="rate", value=0.0)]
    plan = found.plans[0]
    print(f"{name}, {gpus}, {memory}: {plan.fleet.name}, {plan.fleet.price_usd:,.0f} USD")
    return figures_of(plan, trace)


def best(trace: Trace, gpus: str, memory: str) -> Search:
    """The search for the highest rate."""
    names = gpus.split("+")
    demand = demand_of(lambda: [trace], SLO)
    candidates, _ = candidates_of(
        known_shape(MODEL), machines_of(names, machine_named), demand, tensor_only=True
    )
    offered = [one for one in candidates if one.gpus in _GPUS]
    mixes = [
        mix
        for mix in mixes_of(offered, _MEMORIES[memory])
        if len({one.hardware for one in mix.groups}) == len(names)
    ]
    return best_for("throughput", mixes, demand, attain=ATTAIN, budget_usd=BUDGET_USD, most=1)


def figures_of(plan: Attempt, trace: Trace) -> list[Found]:
    """Of the best fleet."""
    hits = plan.figures["hit_ratio"]
    assert isinstance(hits, float)
    per_s = plan.rate * len(trace) / trace.duration_s
    return [
        Found(name="rate", value=plan.rate),
        Found(name="requests_per_s", value=per_s),
        Found(name="requests_per_s_per_million_usd", value=1e6 * per_s / plan.fleet.price_usd),
        Found(name="hit_ratio", value=hits),
        Found(name="price_usd", value=plan.fleet.price_usd),
        Found(name="cache_tb", value=plan.fleet.cache_tb),
    ]


@cache
def say_assumptions() -> None:
    """Print them once."""
    prices = (
        f"{gpu.title}: {gpu.price_usd:,.0f} USD ({gpu.sources['price_usd']})"
        for name, gpu in catalogue_gpus().items()
        if name in ("h800", "h20") and gpu.price_usd is not None
    )
    print("Assumptions:", *ASSUMPTIONS, ASSUMED, *prices, sep="\n  ")
