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

What is compared for each instance is in `native/cluster/choice.cpp`, `choose_inlay`.

Shapes: `S` slots.
"""

import numpy as np

from inlay.cluster.decision import DIGEST_BYTES, Copy, Decision, RequestView
from inlay.cluster.policies.heat import Heat
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.policies.seen import SeenPrompts
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

    Cost: 2.5 us for 64 slots.
    """

    name = "inlay"
    columns = (
        "cost", "blocks", "wait_s", "work_s", "late", "weight", "prompt_s", "decode_s", "lost_s",
    )  # fmt: skip

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
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        seen = self._seen
        if seen is None:
            seen = self._seen = SeenPrompts(max(1, _STRIDE_TOKENS // state.page_tokens))
        answer = Choice._make(
            state.core.inlay(
                *asked(request, matches_S), now_s, self._caution, self._later, self._eviction,
                self._max_pressure, seen.displaced,
            )
        )  # fmt: skip
        replicate = None
        # What is expected there can be waited for, but not copied.
        if (
            answer.held_blocks
            and state.copies
            and seen.ready_s(request.digests, answer.held_blocks) <= now_s
        ):
            replicate = self._replicate(request, answer, state, now_s)
        return self._decision(answer, replicate)

    def sent(self, request: RequestView, decision: Decision, now_s: float) -> None:
        """Remember what is computed now, or soon."""
        assert self._seen is not None
        ready_s = now_s + decision.wait_s + decision.work_s
        self._seen.add(request.digests, decision.held_blocks, ready_s)

    def _replicate(
        self, request: RequestView, answer: Choice, state: ClusterState, now_s: float
    ) -> Copy | None:
        """One more holder of a prefix, where those it has will be too busy with it."""
        best = answer.held_blocks
        hot = self._heat.hit(
            request.digests[(best - 1) * DIGEST_BYTES : best * DIGEST_BYTES], now_s
        )
        if hot.hits < _HOT_HITS or now_s < hot.asked_s + _ASK_AGAIN_S:
            return None
        cost_S, blocks_S = answer.values[:2]
        slot = int(cost_S.argmin())
        share = self._heat.rate(hot) * _work_at_s(slot, request.num_tokens, best, state)
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
        return Copy(answer.source, target, had, best - had)


def _work_at_s(slot: int, num_tokens: int, num_blocks: int, state: ClusterState) -> float:
    """Predicted time to compute a prompt behind so many blocks, at one slot."""
    known = num_blocks * state.page_tokens
    num_new = num_tokens - known
    work_s = state.token_s.item(slot) * num_new
    work_s += state.half_pair_s.item(slot) * (num_new * (num_tokens + known))
    return work_s + state.base_s.item(slot)
