"""Blocks are worth moving: Algorithm 1 of Mooncake.

Source: Mooncake (FAST'25), section 5.1.
"""

import numpy as np

from inlay.cluster.decision import Columns, Copy, Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Policy, copy_s, decide, work_s
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError


class KvCentric(Policy):
    """The least time to first token; where another instance has far more blocks, they are copied.

    Args:
        balancing_threshold: how many times as many blocks the best instance must have for a
            candidate to be given them; below that it computes the difference. At least 1.
    """

    name = "kv_centric"

    def __init__(self, balancing_threshold: float = 4.0) -> None:
        if not balancing_threshold >= 1:
            raise ConfigError(
                f"kv_centric: balancing_threshold must be at least 1, got {balancing_threshold}"
            )
        self._threshold = balancing_threshold

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        source = int(blocks_S.argmax())
        best = int(blocks_S[source])
        wait_S = state.wait_s(request.priority, now_s)
        if best and state.copies:
            missing_S = best - blocks_S
            copied_S = np.where(best > self._threshold * blocks_S, missing_S, 0).astype(np.int32)
            first_s = copy_s(source, 0, state)
            block_s = copy_s(source, 1, state) - first_s
            copy_S = np.where(copied_S > 0, first_s + copied_S * block_s, 0.0)
        else:  # nobody has any, and in that slot there may be nobody at all
            copied_S, copy_S = np.zeros_like(blocks_S), np.zeros(len(blocks_S))
        work_S = work_s(request, blocks_S + copied_S, state)
        cost_S = copy_S + wait_S + work_S + state.closed_prefill_s
        slot = int(cost_S.argmin())
        copied = int(copied_S[slot])
        columns: Columns = {
            "cost": cost_S, "blocks": blocks_S, "copied": copied_S, "copy_s": copy_S,
            "wait_s": wait_S, "work_s": work_S,
        }  # fmt: skip
        copy = Copy(source, slot, best - copied, copied) if copied else None
        return decide(self, request, slot, blocks_S, state, now_s, columns, copy=copy)
