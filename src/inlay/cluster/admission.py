"""Refuses at arrival what would miss its objectives, or make others miss theirs.

Load is a predicted time over the objective for it, and 1 is full. `early` takes what decodes now
for what will decode when the request gets there, one prefill later, so that many are taken while
many compute prompts and none while these decode: prefill and decode swing against each other.
`predicted` adds those that will have begun by then and leaves out those that will have ended.

Source: Mooncake (FAST'25; arXiv 2407.00079, section 7); there the prediction is of the whole pool,
here of the instance that was chosen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from inlay.cluster.decision import Decision, Refusal, RequestView
from inlay.cluster.policies.policy import Blocks, Policy
from inlay.cluster.shares import Shares
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError

AdmissionMode = Literal["off", "early", "predicted"]
_MODES: tuple[AdmissionMode, ...] = ("off", "early", "predicted")


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """When requests are refused.

    Attributes:
        mode: `off` takes everything that an instance takes; see above.
        max_load: predicted time over objective at which a request is refused. Below 1 keeps a
            reserve for predictions that are wrong.
        caution: by how many standard deviations a first token is taken to be late.
        max_wait_s: the same for the predicted wait before a prompt is computed, and for that until
            there is room to decode, whatever the objectives: it bounds the queues.
        share_s: time over which a tenant's use of the cluster counts against its share.
        min_retry_s, max_retry_s: bounds of Retry-After.
    """

    mode: AdmissionMode = "predicted"
    max_load: float = 0.9
    caution: float = 1.0
    max_wait_s: float = 60.0
    share_s: float = 30.0
    min_retry_s: float = 0.5
    max_retry_s: float = 60.0

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(f"admission.mode {self.mode!r} is not one of {', '.join(_MODES)}")
        for name in ("max_load", "max_wait_s", "share_s", "min_retry_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"admission.{name} must be above 0, got {getattr(self, name)}")
        if not self.caution >= 0:
            raise ConfigError(f"admission.caution must be at least 0, got {self.caution}")
        if not self.max_retry_s >= self.min_retry_s:
            raise ConfigError(
                f"admission.max_retry_s must be at least min_retry_s ({self.min_retry_s}), got "
                f"{self.max_retry_s}"
            )


class Admission:
    """A policy behind a gate: `choose` as a policy has it, with refusals.

    While there is room everybody is taken. An idle instance takes what it cannot serve in time,
    too: that harms nobody, and a prediction that is wrong is mended by it. When load rises, a
    tenant that uses more than its share of the work is refused first: its load counts as many times
    as it is above its share. Best effort (priority above 0) has no objectives, and gives up its
    place to a request that has.

    Args:
        weights: of tenants, 1 where there is none; shares are in proportion to them.
    """

    def __init__(
        self,
        policy: Policy,
        config: AdmissionConfig | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._policy = policy
        self._config = config or AdmissionConfig()
        self._shares = Shares(weights or {}, self._config.share_s)

    @property
    def name(self) -> str:
        """Of the policy."""
        return self._policy.name

    def choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        """The policy's decision, or a refusal. See `Policy.choose`.

        A request that is taken counts as work of its tenant.
        """
        decision = self._policy.choose(request, matches_S, state, now_s)
        if decision.refusal is not None or self._config.mode == "off":
            return decision
        excess = self._shares.excess(request.tenant, now_s)
        limit = self._config.max_load / excess
        prompt_load, ttft_s = self._prompt_load(request, decision, state)
        decode_load, tbt_s = self._decode_load(request, decision, state, now_s, 0)
        if prompt_load > limit:
            retry_s = min(decision.ttft_s * (1.0 - limit / prompt_load), decision.wait_s)
            return self._refuse(decision, _late(request, decision, ttft_s), retry_s, excess)
        if decode_load > limit:
            victim = self._victim(request, decision, state)
            if victim is None or limit < self._decode_load(request, decision, state, now_s, 1)[0]:
                # Rows end evenly over the time that an output takes.
                output_s = state.outputs * tbt_s
                return self._refuse(
                    decision,
                    f"a gap between tokens is expected to take {tbt_s:.3g} s"
                    if tbt_s / request.slo.tbt_s >= decode_load
                    else "no room is expected where it would decode",
                    output_s * (1.0 - limit / decode_load),
                    excess,
                )
            decision = msgspec.structs.replace(decision, preempt=victim)
        self._shares.used(request.tenant, decision.work_s, now_s)
        return decision

    def sent(self, request: RequestView, decision: Decision, now_s: float) -> None:
        """See `Policy.sent`."""
        self._policy.sent(request, decision, now_s)

    def _prompt_load(
        self, request: RequestView, decision: Decision, state: ClusterState
    ) -> tuple[float, float]:
        """Load until its first token, and when that is expected at the latest."""
        late = 1.0 + self._config.caution * float(state.relative_std[decision.prefill])
        ttft_s = decision.ttft_s * late
        load = decision.wait_s / self._config.max_wait_s
        if request.priority > 0 or not decision.wait_s:
            return load, ttft_s
        return max(load, ttft_s / request.slo.ttft_s), ttft_s

    def _decode_load(
        self,
        request: RequestView,
        decision: Decision,
        state: ClusterState,
        now_s: float,
        fewer: int,
    ) -> tuple[float, float]:
        """Load where it would decode when it gets there, and the expected TBT.

        Args:
            fewer: rows that make room for it.
        """
        slot = decision.decode
        rows, tokens = float(state.rows[slot]), float(state.context_tokens[slot])
        if self._config.mode == "predicted":
            rows, tokens = state.load_after(slot, decision.ttft_s, now_s)
        rows += 1 - fewer
        tokens += request.num_tokens * (1 - fewer)
        tbt_s = state.tbt_at_s(slot, rows, tokens)
        max_rows = max(float(state.max_rows[slot]), 1.0)
        ahead = float(state.rows[slot] + state.coming_rows[slot]) - fewer
        pages_over = _pages_over(request, decision, state, fewer)
        # Rows end one after the other.
        over = max((ahead + 1) / max_rows - 1.0, pages_over, 0.0)
        load = over * state.outputs * tbt_s / self._config.max_wait_s
        if request.priority > 0 or not ahead:
            return load, tbt_s
        objective_s = min(request.slo.tbt_s, request.slo.itl_s)
        # Rows are counted, not predicted: they need no reserve.
        room = max(rows / max_rows, 1.0 + pages_over) if math.isfinite(objective_s) else 0.0
        room *= self._config.max_load
        return max(load, tbt_s / objective_s, room), tbt_s

    def _victim(self, request: RequestView, decision: Decision, state: ClusterState) -> str | None:
        """The best-effort request to take away: the one with the least to compute again."""
        if request.priority > 0:
            return None
        there = state.best_effort(decision.decode)
        return min(there, key=lambda live: live.num_tokens).request_id if there else None

    def _refuse(self, decision: Decision, reason: str, retry_s: float, excess: float) -> Decision:
        config = self._config
        if excess > 1.0:
            reason += f", and its tenant has {excess:.2g} times its share of the cluster"
        retry_after_s = min(max(retry_s, config.min_retry_s), config.max_retry_s)
        return Decision(
            policy=decision.policy,
            ttft_s=decision.ttft_s,
            tbt_s=decision.tbt_s,
            refusal=Refusal(reason, retry_after_s),
            terms=decision.terms,
        )


def _pages_over(request: RequestView, decision: Decision, state: ClusterState, fewer: int) -> float:
    """By what share of its pages a slot has too few for one more request; below 0: they are left.

    Pages that it can give away are known. Who waits for pages is not: where there are too few, all
    tokens that are there or come are taken to need pages of their own.
    """
    slot, page_tokens = decision.decode, state.page_tokens
    total = float(state.pages_total[slot])
    if not total or fewer:
        return -1.0
    outputs = min(state.outputs, request.max_output_tokens)
    own = (request.num_tokens + outputs) / page_tokens
    if not decision.split:
        own -= decision.reused_blocks - decision.loaded_blocks
    rows, coming = float(state.rows[slot]), float(state.coming_rows[slot])
    growth = (rows / 2 + coming) * state.outputs / page_tokens
    free = float(state.pages_free[slot] + state.pages_cached[slot] - state.coming_pages[slot])
    short = (own + growth - free) / total
    if short <= 0:
        return short
    tokens = float(state.context_tokens[slot] + state.coming_tokens[slot])
    return max((tokens / page_tokens + growth + own) / total - 1.0, short)


def _late(request: RequestView, decision: Decision, ttft_s: float) -> str:
    alone_s, objective_s = decision.ttft_s - decision.wait_s, request.slo.ttft_s
    if alone_s > objective_s:
        return (
            f"this prompt's first token takes {alone_s:.3g} s on an idle instance, and the "
            f"objective of class {request.slo.name} is {objective_s:.3g} s: only one that is idle "
            "takes it"
        )
    return f"the first token is expected after {ttft_s:.3g} s"
