"""Which instance should change its role when the mix of work shifts. Pure: no clock."""

from dataclasses import dataclass

import numpy as np

from inlay.cluster.slo import SloClass
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import Role


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """When roles change.

    Attributes:
        period_s: loads are looked at so often. Shorter makes many changes for no gain, longer lets
            queues grow (see the source).
        patience: in so many looks one after the other the same change must be worth it.
        gain: a change must lower the greater load at least to this share of it. Changing back
            would then raise it, which is what keeps roles from swinging.
        busy: below this load nothing is changed.
        settle_s: after a change, time for it to show before the next.

    Source: findings on planners of other systems: 1 s gave 1,529 changes for no gain, 60 s a p90
    of the TTFT of 47 s.
    """

    period_s: float = 5.0
    patience: int = 2
    gain: float = 0.85
    busy: float = 0.5
    settle_s: float = 15.0

    def __post_init__(self) -> None:
        if not 0 < self.gain < 1:
            raise ConfigError(f"roles.gain must be between 0 and 1, got {self.gain}")
        if self.patience < 1:
            raise ConfigError(f"roles.patience must be at least 1, got {self.patience}")
        for name in ("period_s", "busy", "settle_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"roles.{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class RoleChange:
    """An instance that should take another role, and the loads that say so."""

    slot: int
    role: Role
    prefill_load: float
    decode_load: float


class RolePlanner:
    """Looks at the loads of both pools and moves one instance at a time.

    The load of prefill is work sent over time, or the longest wait over the objective for the first
    token, whichever is greater. That of decode is rows over their limit, or the time between tokens
    over its objective. Instances with role `both` stay; the last one of a role does, too.

    Args:
        slo: the objectives to go by.
    """

    def __init__(self, config: RoleConfig | None = None, slo: SloClass | None = None) -> None:
        self._config = config or RoleConfig()
        self._slo = slo or SloClass()
        self._next_s = 0.0
        self._wanted: Role | None = None
        self._looks = 0

    def plan(self, state: ClusterState, now_s: float) -> RoleChange | None:
        """A change to make now, if it is time to look and one is worth it.

        The caller makes it (`SetRole`) and tells the state.
        """
        if now_s < self._next_s:
            return None
        self._next_s = now_s + self._config.period_s
        pools: dict[Role, list[int]] = {"prefill": [], "decode": []}
        for slot in state.slots:
            role = state.role(slot)
            if role in ("prefill", "decode") and np.isfinite(state.closed_short_s[slot]):
                pools[role].append(slot)
        if not (pools["prefill"] and pools["decode"]):
            return None
        loads = self._loads(state, pools, now_s)
        wanted = self._wants(loads, pools)
        self._looks = self._looks + 1 if wanted is not None and wanted == self._wanted else 1
        self._wanted = wanted
        if wanted is None or self._looks < self._config.patience:
            return None
        giver: Role = "decode" if wanted == "prefill" else "prefill"
        slot = min(pools[giver], key=lambda one: self._busy_s(state, one, giver, now_s))
        self._next_s = now_s + self._config.settle_s
        self._wanted = None
        return RoleChange(
            slot=slot, role=wanted, prefill_load=loads["prefill"], decode_load=loads["decode"]
        )

    def _loads(
        self, state: ClusterState, pools: dict[Role, list[int]], now_s: float
    ) -> dict[Role, float]:
        prefill, decode = pools["prefill"], pools["decode"]
        wait_s = float(state.wait_s(0, now_s)[prefill].mean())
        rows_S = state.rows + state.coming_rows
        tbt_s = state.tbt_s(state.rows, state.context_tokens)
        return {
            "prefill": max(state.utilisation_of(prefill, now_s), wait_s / self._slo.ttft_s),
            "decode": max(
                float((rows_S[decode] / np.maximum(state.max_rows[decode], 1.0)).mean()),
                float(tbt_s[decode].mean()) / self._slo.tbt_s,
            ),
        }

    def _wants(self, loads: dict[Role, float], pools: dict[Role, list[int]]) -> Role | None:
        """The role that one more instance should have, if that lowers the greater load enough."""
        taker: Role = "prefill" if loads["prefill"] > loads["decode"] else "decode"
        giver: Role = "decode" if taker == "prefill" else "prefill"
        given, taken = len(pools[giver]), len(pools[taker])
        if loads[taker] < self._config.busy or given < 2:
            return None
        after = max(loads[taker] * taken / (taken + 1), loads[giver] * given / (given - 1))
        return taker if after <= self._config.gain * loads[taker] else None

    def _busy_s(self, state: ClusterState, slot: int, role: Role, now_s: float) -> float:
        """What is lost or late if an instance changes: work queued, or rows that decode there."""
        if role == "prefill":
            return float(state.free_at_s[-1, slot]) - now_s
        return float(state.rows[slot] + state.coming_rows[slot])
