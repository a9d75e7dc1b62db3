"""Service level objectives, and how a request's times are judged by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from inlay.core.errors import ConfigError

WORST_SHARE = 0.1
"""Of a request's gaps, those that its TBT is the mean of."""


@dataclass(frozen=True, kw_only=True)
class SloClass:
    """Objectives of a kind of requests; infinite where there is none.

    Attributes:
        name: how requests and metrics call it.
        ttft_s: from arrival to the first token.
        tbt_s: mean of the worst tenth of a request's gaps between tokens.
        itl_s: each of these gaps.
    """

    name: str = "default"
    ttft_s: float = inf
    tbt_s: float = inf
    itl_s: float = inf

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("slo.name is empty: give the class a name")
        for field in ("ttft_s", "tbt_s", "itl_s"):
            value = getattr(self, field)
            if not value > 0:
                raise ConfigError(f"slo.{self.name}.{field} must be above 0 seconds, got {value}")
        if math.isfinite(self.tbt_s) and self.tbt_s > self.itl_s:
            raise ConfigError(
                f"slo.{self.name}.tbt_s ({self.tbt_s}) is above itl_s ({self.itl_s}): no request "
                "whose gaps all keep the second can miss the first; lower tbt_s or leave it out"
            )


def gaps_s(token_times_s: Sequence[float]) -> list[float]:
    """Seconds between consecutive tokens."""
    return [
        later - earlier for earlier, later in zip(token_times_s, token_times_s[1:], strict=False)
    ]


def tbt_s(gaps: Sequence[float]) -> float:
    """A request's time between tokens: the mean of its longest tenth of gaps, at least of one.

    0 where there is no gap. Source: Mooncake (FAST'25), section 3.
    """
    if not gaps:
        return 0.0
    worst = sorted(gaps, reverse=True)[: max(1, math.ceil(WORST_SHARE * len(gaps)))]
    return sum(worst) / len(worst)


def meets(slo: SloClass, ttft_s: float, gaps: Sequence[float]) -> bool:
    """Whether a finished request kept all its objectives."""
    return ttft_s <= slo.ttft_s and tbt_s(gaps) <= slo.tbt_s and max(gaps, default=0.0) <= slo.itl_s
