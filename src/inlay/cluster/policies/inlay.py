"""The default: where a request, and all that it keeps waiting, lose the least time.

For each instance it predicts when the first token would come, and weighs the time that the prompt
takes there by what that costs others: those that decode there wait for it, those that arrive later
wait for it in the queue, and the blocks that must go for it would perhaps have been used again. So
reuse is worth little while there is room, when the shortest queue wins, and much when all have
queues or blocks are displaced, when what is computed twice is what limits all; in between there is
no threshold.
Times count as they may turn out late, so that an instance whose steps vary is not taken for as
quick as a steady one.

No request waits for a copy: what takes two steps at least, and displaces other blocks, gains less
than it costs others (docs/experiments.md). Prefixes that keep their holders too busy are copied
ahead of need. A prompt of which less than a chunk is left is computed where it will decode, if that
is better by the same account.

Shapes: `S` slots.
"""

from typing import Any

import numpy as np

from inlay.cluster.decision import DIGEST_BYTES, NOWHERE, Copy, Decision, RequestView
from inlay.cluster.policies.heat import Heat
from inlay.cluster.policies.policy import (
    Blocks,
    Policy,
    decide,
    decode_cost_s,
    work_s,
    work_same_s,
)
from inlay.cluster.policies.seen import SeenPrompts
from inlay.cluster.slots import Floats
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError

_HOT_HITS = 3.0  # fewer say nothing of a rate
_ASK_AGAIN_S = 2.0
_STRIDE_TOKENS = 512  # each block at so many tokens tells what was displaced


class Inlay(Policy):
    """Least expected loss of time, for the request and for others.

    Args:
        caution: by how many standard deviations a predicted time is taken to be late.
        later: what a second counts by which later tokens come late, the request's own and those of
            others that decode there, against one by which its first token does.
        eviction: what computing a prompt costs more by the blocks that it displaces, times the
            share of what was reusable and is displaced already.
        max_pressure: how many later prompts are taken to wait for one at most, however long the
            queues are.
        holder_share: a prefix gets one more holder ahead of need when requests for it are
            predicted to take a larger share of its holders' time.
        heat_s: time over which hits of a prefix count.

    Cost: about 25 numpy calls.
    """

    name = "inlay"

    def __init__(
        self,
        caution: float = 1.0,
        later: float = 0.05,
        eviction: float = 10.0,
        max_pressure: float = 3.0,
        holder_share: float = 0.5,
        heat_s: float = 30.0,
    ) -> None:
        for name, value in (
            ("caution", caution),
            ("later", later),
            ("eviction", eviction),
            ("max_pressure", max_pressure),
        ):
            if not value >= 0:
                raise ConfigError(f"inlay: {name} must be at least 0, got {value}")
        for name, value in (("holder_share", holder_share), ("heat_s", heat_s)):
            if not value > 0:
                raise ConfigError(f"inlay: {name} must be above 0, got {value}")
        self._caution, self._later, self._eviction = caution, later, eviction
        self._max_pressure, self._holder_share = max_pressure, holder_share
        self._heat = Heat(heat_s)
        self._seen: SeenPrompts | None = None

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        seen = self._seen
        if seen is None:
            seen = self._seen = SeenPrompts(max(1, _STRIDE_TOKENS // state.page_tokens))
        source = int(blocks_S.argmax())
        best = blocks_S.item(source)
        given = bool(best) and state.copies
        if given:
            # What is expected there can be waited for, but not copied.
            given = seen.ready_s(request.digests, best) <= now_s
        work_S = work_s(request, blocks_S, state)
        late_S = state.relative_std * self._caution
        late_S += 1.0
        # Infinite from here on where the request may not go.
        closed_S = _closed_s(request, blocks_S, work_S, late_S, state)
        wait_S = state.wait_s(request.priority, now_s, closed_S)
        # How many such prompts wait even in the shortest queue: so many more will wait for this.
        pressure = wait_S.item(wait_S.argmin()) / work_S.item(source)
        pressure = min(pressure, self._max_pressure)
        # What each second of computing takes from the request and from others.
        weight_S = state.rows * self._later
        weight_S += 1.0 + pressure
        prompt_S = weight_S * work_S
        prompt_S += wait_S
        prompt_S *= late_S
        decode_S, decode = self._decoding(request, blocks_S, state)
        cost_S = prompt_S + decode_S
        columns: dict[str, Any] = {
            "cost": cost_S, "blocks": blocks_S, "wait_s": wait_S, "work_s": work_S,
            "late": late_S, "weight": weight_S, "prompt_s": prompt_S, "decode_s": decode_S,
        }  # fmt: skip
        short_S = state.pages_free < request.num_tokens / state.page_tokens
        if np.count_nonzero(short_S):
            # The blocks that a slot has not will displace others.
            lost_S = work_S * (self._eviction * seen.displaced * (1.0 + pressure))
            lost_S *= short_S
            cost_S += lost_S
            columns["lost_s"] = lost_S
        slot = int(cost_S.argmin())
        replicate = None
        if given:
            replicate = self._replicate(request, source, slot, blocks_S, cost_S, state, now_s)
        return decide(
            self, request, slot, blocks_S, state, now_s, columns,
            replicate=replicate, decode=decode, held_blocks=best,
        )  # fmt: skip

    def sent(self, request: RequestView, decision: Decision, now_s: float) -> None:
        """Remember what is computed now, or soon."""
        assert self._seen is not None
        ready_s = now_s + decision.wait_s + decision.work_s
        self._seen.add(request.digests, decision.held_blocks, ready_s)

    def _decoding(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState
    ) -> tuple[Floats, int]:
        """What decoding costs, and where those decode whose instance only computes prompts."""
        outputs = min(state.outputs, request.max_output_tokens)
        decode_S = state.context_s * request.num_tokens
        decode_S += state.next_step_s
        decode_S *= outputs * self._later
        if not state.num_splits:
            return decode_S, NOWHERE
        there_S = decode_cost_s(request, blocks_S, state)
        decode = int(there_S.argmin())
        np.copyto(decode_S, there_S[decode] * self._later, where=state.splits)
        return decode_S, decode

    def _replicate(
        self,
        request: RequestView,
        source: int,
        slot: int,
        blocks_S: Blocks,
        cost_S: Floats,
        state: ClusterState,
        now_s: float,
    ) -> Copy | None:
        """One more holder of a prefix, where those it has will be too busy with it."""
        best = int(blocks_S[source])
        hot = self._heat.hit(
            request.digests[(best - 1) * DIGEST_BYTES : best * DIGEST_BYTES], now_s
        )
        if hot.hits < _HOT_HITS or now_s < hot.asked_s + _ASK_AGAIN_S:
            return None
        each_s = float(work_same_s(request, best, state)[slot])
        share = self._heat.rate(hot) * each_s
        if share < self._holder_share:
            return None
        holds_S = blocks_S >= best
        if share < self._holder_share * int(np.count_nonzero(holds_S)):
            return None
        others_S = np.where(holds_S, np.inf, cost_S + state.closed_prefill_s)
        target = int(others_S.argmin())
        if target == slot or not np.isfinite(others_S[target]):
            return None
        hot.asked_s = now_s
        had = int(blocks_S[target])
        return Copy(source, target, had, best - had)


def _closed_s(
    request: RequestView, blocks_S: Blocks, work_S: Floats, late_S: Floats, state: ClusterState
) -> Floats:
    """0 where a prompt may go, infinite elsewhere: its rest is long for instances that decode."""
    if state.num_open == state.num_prefill:
        return state.closed_prefill_s
    long_S = request.num_tokens - blocks_S * state.page_tokens > state.chunk
    # All that decode there wait for the step that computes it.
    if (gap_s := min(request.slo.tbt_s, request.slo.itl_s)) < np.inf:
        long_S |= work_S * late_S > gap_s
    return np.where(long_S, state.closed_prefill_s, state.closed_short_s)
