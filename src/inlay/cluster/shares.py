"""Who uses how much of the cluster, against the share that they should have."""

import math
from collections.abc import Mapping

from inlay.core.errors import ConfigError

_IDLE = 1e-3  # a tenant with less of all use than this is not there


class Shares:
    """Work of tenants, as sums that decay.

    Args:
        weights: of tenants; 1 where there is none.
        memory_s: after that time work counts 1/e.
    """

    def __init__(self, weights: Mapping[str, float], memory_s: float) -> None:
        for tenant, weight in weights.items():
            if not weight > 0:
                raise ConfigError(f"tenants.{tenant}.weight must be above 0, got {weight}")
        self._weights = dict(weights)
        self._memory_s = memory_s
        self._used: dict[str, float] = {}
        self._used_s = 0.0  # the time to which they have decayed

    def used(self, tenant: str, work_s: float, now_s: float) -> None:
        """A tenant was given so many seconds of an instance."""
        self._decay(now_s)
        self._used[tenant] = self._used.get(tenant, 0.0) + work_s

    def excess(self, tenant: str, now_s: float) -> float:
        """How many times its share a tenant uses, at least 1; only tenants in use count.

        One that is alone has all as its share, whatever it uses.
        """
        used = self._used
        mine = used.get(tenant, 0.0)
        if len(used) - (tenant in used) == 0 or not mine:
            return 1.0
        self._decay(now_s)
        total = sum(used.values())
        weight = self._weights.get(tenant, 1.0)
        weights = sum(self._weights.get(name, 1.0) for name in used)
        return max(1.0, used.get(tenant, 0.0) * weights / (total * weight)) if total else 1.0

    def _decay(self, now_s: float) -> None:
        """Bring all to `now_s`, once a second is over, and forget who is idle."""
        if now_s < self._used_s + 1.0:
            return
        keep = math.exp((self._used_s - now_s) / self._memory_s)
        least = sum(self._used.values()) * keep * _IDLE
        self._used = {name: work * keep for name, work in self._used.items() if work * keep > least}
        self._used_s = now_s
