"""Service level objectives: who has which, and how a request's times are judged by them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from inlay.core.errors import ConfigError, RequestError
from inlay.core.messages import GenerateRequest

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
        priority: of those that have none of their own; see `RequestView.priority`.
    """

    name: str = "default"
    ttft_s: float = inf
    tbt_s: float = inf
    itl_s: float = inf
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("its name is empty: give the class a name")
        for objective in ("ttft", "tbt", "itl"):
            seconds = getattr(self, f"{objective}_s")
            if not seconds > 0:
                raise ConfigError(f"{objective} is {seconds:g} s: it must be above 0")
        if math.isfinite(self.tbt_s) and self.tbt_s > self.itl_s:
            raise ConfigError(
                f"tbt ({self.tbt_s:g} s) is above itl ({self.itl_s:g} s): no request whose gaps "
                "all keep the second can miss the first; lower tbt or leave it out"
            )


class SloClasses:
    """Which objectives and which priority a request has.

    Two classes are there without being declared: `priority`, urgent with the objectives of
    `default`, and `flex`, best effort without any. Requests that name none, or `auto`, are of
    `default`, or of the first one that there is. These are OpenAI's names.

    Args:
        declared: by name.
        priorities: of tenants, added to those of their requests; 0 where there is none.

    Attributes:
        default: of those who name none.
    """

    def __init__(
        self,
        declared: Mapping[str, SloClass] | None = None,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        declared = declared or {}
        first = next(iter(declared.values()), SloClass())
        self.default = declared.get("default", first)
        self._by_name = {
            "auto": self.default,
            "default": self.default,
            "flex": SloClass(name="flex", priority=1),
            "priority": replace(self.default, name="priority", priority=-1),
            **declared,
        }
        self._priorities = dict(priorities or {})

    def named(self, name: str | None) -> SloClass:
        """The class that a request names.

        Raises:
            RequestError: there is no such class; says which there are.
        """
        found = self._by_name.get(name or "auto")
        if found is None:
            raise RequestError(
                f"service_tier is {name!r}: it may be " + ", ".join(self._by_name), "service_tier"
            )
        return found

    def of(self, request: GenerateRequest) -> SloClass:
        """The class of a request."""
        return self._by_name.get(request.slo, self.default)

    def priority(self, slo: SloClass, wanted: int | None, tenant: str) -> int:
        """Of a request of a tenant: what it wants, or what its class has, and the tenant's.

        Raises:
            RequestError: that is out of range.
        """
        priority = slo.priority if wanted is None else wanted
        if not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority is {priority}: it must fit into 32 bits", "priority")
        return priority + self._priorities.get(tenant, 0)


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
