"""Makes the parts of a `ClusterStatus` that come from figures and loads."""

import math
from collections.abc import Mapping
from typing import Any

from inlay.cluster.figures import ClassFigures, Figures
from inlay.cluster.status import (
    HIT_TIERS,
    ClassStatus,
    HistoryStatus,
    Percentiles,
    RefusalStatus,
    TrafficStatus,
)
from inlay.cluster.windows import NUM_SLOTS, SLOT_S, Spread, Tally
from inlay.core.messages import EngineStats

WINDOW_S = 60.0


def traffic(
    figures: Figures, now_s: float, *, waiting: int = 0, retries: dict[str, int] | None = None
) -> TrafficStatus:
    """What clients asked for and had.

    Args:
        waiting: requests that wait for an instance.
        retries: by why.
    """
    tally = figures.tally
    sums, covered_s = tally.sums(now_s, WINDOW_S), tally.covered_s(now_s, WINDOW_S)
    refused, failed = _by_code("refused", sums), _by_code("failed", sums)
    return TrafficStatus(
        in_flight=figures.in_flight,
        waiting_for_instance=waiting,
        requests_per_s=sums.get("requests", 0.0) / covered_s,
        output_tokens_per_s=sums.get("output_tokens", 0.0) / covered_s,
        prompt_tokens=int(sums.get("prompt_tokens", 0)),
        hit_tokens={tier: int(sums.get(f"hit_tokens:{tier}", 0)) for tier in HIT_TIERS},
        refused=refused,
        failed=failed,
        requests_total=int(tally.totals.get("requests", 0)),
        refused_total=sum(_by_code("refused", tally.totals).values()),
        failed_total=sum(_by_code("failed", tally.totals).values()),
        retries=retries or {},
        refusals=[
            RefusalStatus(
                request=request_id,
                age_s=now_s - then_s,
                code=error.code,
                reason=str(error),
                retry_after_s=getattr(error, "retry_after_s", None),
            )
            for then_s, request_id, error in reversed(figures.refusals)
        ],
    )


def classes(
    figures: Figures, now_s: float, least_s: Mapping[str, float] | None = None
) -> list[ClassStatus]:
    """Latencies and objectives of each class that there were requests of.

    Args:
        least_s: by objective, what it takes on an idle instance.
    """
    sums = figures.tally.sums(now_s, WINDOW_S)
    covered_s = figures.tally.covered_s(now_s, WINDOW_S)
    return [
        _class(name, of_class, sums, covered_s, now_s, least_s or {})
        for name, of_class in sorted(figures.classes.items())
    ]


def history(tally: Tally, now_s: float) -> HistoryStatus:
    """What happened in each slot of time."""
    codes = [key for key in tally.totals if key.startswith("refused:")]
    refused = [tally.series(key, now_s) for key in codes]
    return HistoryStatus(
        slot_s=SLOT_S,
        requests=tally.series("requests", now_s),
        refused=[sum(parts) for parts in zip(*refused, [0.0] * NUM_SLOTS, strict=True)],
        prompt_tokens=tally.series("prompt_tokens", now_s),
        hit_tokens={tier: tally.series(f"hit_tokens:{tier}", now_s) for tier in HIT_TIERS},
    )


def hits_by_tier(stats: EngineStats) -> dict[str, int]:
    """Prompt tokens that an engine has found, by where they were."""
    behind = {tier: stats.tier_hit_tokens.get(tier, 0) for tier in HIT_TIERS[1:]}
    return {"device": stats.prefix_hit_tokens - sum(behind.values()), **behind}


def totals(stats: EngineStats) -> dict[str, Any]:
    """What an engine has counted, as fields of `InstanceStatus`."""
    return {
        "query_tokens": stats.prefix_query_tokens,
        "hit_tokens": hits_by_tier(stats),
        "loaded_bytes": stats.tier_loaded_bytes,
        "written_bytes": stats.tier_written_bytes,
        "tier_failures": stats.tier_failures,
        "preemptions": stats.preemptions,
    }


def _class(
    name: str,
    figures: ClassFigures,
    sums: dict[str, float],
    covered_s: float,
    now_s: float,
    least_s: Mapping[str, float],
) -> ClassStatus:
    slo = figures.slo
    good = int(sums.get(f"good:{name}", 0))
    return ClassStatus(
        name=name,
        ttft_slo_s=_finite(slo.ttft_s),
        itl_slo_s=_finite(slo.itl_s),
        tbt_slo_s=_finite(slo.tbt_s),
        ttft=_percentiles(figures.ttft, now_s),
        itl=_percentiles(figures.itl, now_s),
        tbt=_percentiles(figures.tbt, now_s),
        finished=int(sums.get(f"finished:{name}", 0)),
        good=good,
        refused=int(sums.get(f"refused_of:{name}", 0)),
        goodput_per_s=good / covered_s,
        impossible="; ".join(
            f"{objective} is {getattr(slo, f'{objective}_s'):.3g} s, and an idle instance needs "
            f"{seconds:.3g} s"
            for objective, seconds in least_s.items()
            if getattr(slo, f"{objective}_s") < seconds
        ),
        ttft_p50_s=figures.ttft.series(0.5, now_s),
        ttft_p99_s=figures.ttft.series(0.99, now_s),
        itl_p50_s=figures.itl.series(0.5, now_s),
        itl_p99_s=figures.itl.series(0.99, now_s),
    )


def _percentiles(spread: Spread, now_s: float) -> Percentiles:
    p50_s, p90_s, p99_s = spread.percentiles((0.5, 0.9, 0.99), now_s, WINDOW_S)
    count = spread.count(now_s, WINDOW_S)
    return Percentiles(p50_s=p50_s, p90_s=p90_s, p99_s=p99_s, count=count)


def _by_code(kind: str, sums: dict[str, float]) -> dict[str, int]:
    return {
        key.partition(":")[2]: int(count)
        for key, count in sums.items()
        if key.startswith(f"{kind}:")
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
