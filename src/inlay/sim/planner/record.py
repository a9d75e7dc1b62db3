"""A search as plain data with stable names, for people and for JSON."""

from dataclasses import asdict
from typing import Any

from inlay.core.cache_parts import cache_parts
from inlay.sim.planner.candidates import HOST, HOST_GPUS
from inlay.sim.planner.fleet import Attempt, Fleet
from inlay.sim.planner.search import Search


def _parts() -> str:
    return "; ".join(
        f"{part.title} ({part.size_gb / 1e3:g} TB, {part.price_usd:,.0f} USD: "
        f"{part.sources['price_usd']})"
        for part in cache_parts().values()
    )


ASSUMPTIONS = (
    f"A GPU of the catalogue stands in a host of {HOST} with {HOST_GPUS} alike, and pays for its "
    "share of it; prices and their sources are those of the catalogue (core/hardware.toml), most "
    "of them assumptions. Racks, switches, power and people are not in them.",
    "Each group has one kind of GPU. All requests come as in the trace, and none is refused.",
    "Prefixes are cached in the memory of GPUs and behind it: in that of hosts, which is paid with "
    "them, each instance's own or one store of all; instances copy blocks to each other over their "
    "machines' networks.",
    f"Bought for blocks alone: {_parts()}.",
)
ASSUMED = (
    "What kernels reach of this hardware is assumed, nobody has measured it: ratios of prices are "
    "worth more than counts."
)


def as_dict(
    found: Search, neighbours: list[Attempt], rival: Attempt | None, attain: float
) -> dict[str, Any]:
    """Plans, why others lost, and what one instance more or less of the first does.

    Args:
        rival: with one kind of GPU, for no more than the first plan costs.
    """
    best = found.plans[0] if found.plans else None
    assumed = any(
        one.design.is_assumed for attempt in found.attempts for one in attempt.fleet.mix.groups
    )
    return {
        "simulated": True,
        "attain": attain,
        "simulations": len(found.attempts) + len(neighbours) + (rival is not None),
        "plans": [_attempt(plan) for plan in found.plans],
        "neighbours": [
            {**_attempt(near), **_difference(near, best)} for near in neighbours if best is not None
        ],
        "one_kind_at_its_price": None if rival is None else _attempt(rival),
        "lost": [{**_fleet(loss.fleet), "reason": loss.reason} for loss in found.losses],
        "unfit": [
            {"instance": one.name, "role": one.role, "reason": why}
            for one, why in found.unfit.items()
        ],
        "assumptions": [*ASSUMPTIONS, *([ASSUMED] if assumed else [])],
    }


def _fleet(fleet: Fleet) -> dict[str, Any]:
    return {
        "fleet": fleet.name,
        "price_usd": fleet.price_usd,
        "gpus": fleet.gpus,
        "memory": asdict(fleet.mix.memory),
        "cache_tb": fleet.cache_tb,
        "one_kind": fleet.mix.is_single,
        "groups": {
            group: {"instance": one.name, "role": one.role, "count": count}
            for group, (one, count) in fleet.groups.items()
        },
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    names = ("ttft_s", "tbt_s", "usd_per_million_tokens", "hit_ratio", "goodput_per_s", "tiers")
    return {
        **_fleet(attempt.fleet),
        "rate": attempt.rate,
        "kept": attempt.kept,
        "ttft_kept": attempt.ttft_kept,
        "tbt_kept": attempt.tbt_kept,
        **{name: attempt.figures[name] for name in names},
    }


def _difference(near: Attempt, best: Attempt) -> dict[str, Any]:
    """Of a neighbour: GPUs, TB, price and shares beside the plan's."""
    return {
        "more_gpus": near.fleet.gpus - best.fleet.gpus,
        "more_tb": near.fleet.cache_tb - best.fleet.cache_tb,
        "more_usd": near.fleet.price_usd - best.fleet.price_usd,
        "more_kept": near.kept - best.kept,
    }
