"""The least time to first token, each instance with its own blocks.

Source: the "local cache-aware" baseline of Mooncake (FAST'25), figure 5.
"""

import numpy as np

from inlay.cluster.decision import Columns, Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Policy, decide, work_s
from inlay.cluster.state import ClusterState


class LocalCacheAware(Policy):
    """Each request goes where queue and prefill of the rest end first. No block moves."""

    name = "local_cache_aware"

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        wait_S = state.wait_s(request.priority, now_s)
        work_S = work_s(request, blocks_S, state)
        cost_S = wait_S + work_S + state.closed_prefill_s
        columns: Columns = {"cost": cost_S, "blocks": blocks_S, "wait_s": wait_S, "work_s": work_S}
        slot = int(np.argmin(cost_S))
        return decide(self, request, slot, blocks_S, state, now_s, columns)
