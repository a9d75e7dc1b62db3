"""`inlay plan --cluster`: which hardware to buy for a trace and its objectives."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console

from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError, ResourceError
from inlay.core.settings import read_settings
from inlay.core.tables import read_table
from inlay.core.units import parse_seconds
from inlay.serve.commands.trace_requests import parts_of
from inlay.serve.plan.fleets import print_fleets
from inlay.serve.plan.machine import find_machine
from inlay.serve.plan.model import find_model
from inlay.sim.planner.budget import AIMS, Aim, best_for
from inlay.sim.planner.candidates import Candidate, candidates_of, machines_of
from inlay.sim.planner.demand import Parts, demand_of
from inlay.sim.planner.files import deployment_toml, scenario_toml
from inlay.sim.planner.fleet import Fleet, neighbours
from inlay.sim.planner.record import as_dict
from inlay.sim.planner.search import Search, mixes_of, rival_of, search
from inlay.sim.trace import BLOCK_TOKENS, Trace

_KEPT_PARTS = 4
"""Of a trace, some 20,000 requests each, that memory may hold; longer ones are read again."""


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What the command line says, as it says it; see its help."""

    model: str | None
    trace: str
    slo: str
    until: str | None
    budget: float | None
    hardware: str | None
    attain: float
    optimize: str
    save: str | None
    deployment: str | None
    as_json: bool


def plan_cluster(options: FleetOptions) -> None:
    """Search, print, and write what was asked for.

    Raises:
        ConfigError: an option is wrong.
        ResourceError: the model fits nowhere, or no fleet keeps the objectives or the budget.
    """
    slo = _objectives(options.slo)
    if not 0 < options.attain <= 1:
        raise ConfigError(f"--attain is {options.attain}: it must be above 0 and at most 1")
    if options.budget is not None and not options.budget > 0:
        raise ConfigError(f"--budget is {options.budget}: it must be above 0")
    aim = _aim(options.optimize, options.budget)
    settings = read_settings()
    names = None if options.hardware is None else options.hardware.replace(" ", "").split(",")
    machines = machines_of(names, lambda name: find_machine(name, settings)[0])
    model = find_model(options.model)
    demand = demand_of(_requests(options), slo)
    candidates, unfit = candidates_of(
        model.shape,
        machines,
        demand,
        tensor_only=options.deployment is not None,
    )
    if not candidates:
        raise ResourceError(
            f"{model.name} fits nowhere: " + "; ".join(f"{on}: {why}" for on, why in unfit.items())
        )
    mixes = mixes_of(candidates)
    console = Console()
    progress = Console(stderr=True, quiet=options.as_json)
    with progress.status("bounds") as status:

        def told(fleet: Fleet) -> None:
            status.update(f"simulating {fleet.name}, {fleet.price_usd:,.0f} USD")

        budget_usd = math.inf if options.budget is None else options.budget
        if aim is None:
            found = search(
                mixes,
                demand,
                attain=options.attain,
                budget_usd=budget_usd,
                told=told,
            )
        else:
            found = best_for(
                aim,
                mixes,
                demand,
                attain=options.attain,
                budget_usd=budget_usd,
                told=told,
            )
        near = neighbours(found.plans[0], demand) if found.plans else []
        rival = rival_of(found, demand) if aim is None else None
    record = {
        "model": model.name,
        "requests": len(demand),
        "optimize": options.optimize,
        "does_not_fit": unfit,
        **as_dict(found, near, rival, options.attain),
    }
    if options.as_json:
        print(json.dumps(record, indent=2))
    else:
        print_fleets(console, record)
    if not found.plans:
        raise ResourceError(_why_none(found, candidates))
    best = found.plans[0].fleet
    name = options.model or model.name
    if options.save is not None:
        _write(options.save, scenario_toml(best, name, slo, demand.block_tokens))
    if options.deployment is not None:
        _write(options.deployment, deployment_toml(best, name, slo))


def _requests(options: FleetOptions) -> Parts:
    """The trace from its start, for each simulation: kept where it is short, read again where it is
    not."""

    def read() -> Iterator[Trace]:
        return parts_of(
            Path(options.trace).expanduser(),
            "auto",
            BLOCK_TOKENS,
            until_s=math.inf if options.until is None else parse_seconds(options.until),
        )

    kept = list(islice(read(), _KEPT_PARTS + 1))
    return read if len(kept) > _KEPT_PARTS else lambda: kept


def _objectives(text: str) -> SloClass:
    """`ttft=5s,tbt=100ms` as objectives."""
    table = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"--slo {text}: {part!r} is no objective: write ttft=5s,tbt=100ms")
        table[name.strip()] = value.strip()
    return read_table("--slo", table, SloClass, ready={"name": "default"})


def _aim(optimize: str, budget: float | None) -> Aim | None:
    """What is to be best of a budget; None: the price."""
    if optimize == "cost":
        return None
    if optimize not in AIMS:
        raise ConfigError(f"--optimize {optimize}: it is one of cost, {', '.join(AIMS)}")
    if budget is None:
        raise ConfigError(f"--optimize {optimize} is of what a budget buys: add --budget")
    return AIMS[optimize]


def _why_none(found: Search, candidates: Sequence[Candidate]) -> str:
    """What stands in the way of all fleets: of those that came nearest."""
    if found.losses:
        loss = found.losses[0]
        return (
            "no fleet keeps the objectives within the budget; the cheapest that is not ruled out, "
            f"{loss.fleet.name}, costs {loss.fleet.price_usd:,.0f} USD: {loss.reason}"
        )
    usable = {one.role for one in candidates if one not in found.unfit}
    nearest: dict[str, str] = {}
    for one, why in found.unfit.items():
        if one.role not in usable:
            nearest.setdefault(one.role, f"{one.name}: {why}")
    return "no hardware keeps these objectives; the nearest are " + "; ".join(
        f"for {role}, {why}" for role, why in nearest.items()
    )


def _write(file: str, text: str) -> None:
    try:
        Path(file).expanduser().write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
