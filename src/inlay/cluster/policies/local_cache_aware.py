"""The least time to first token, each instance with its own blocks.

Source: the "local cache-aware" baseline of Mooncake (FAST'25), figure 5.
"""

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.state import ClusterState


class LocalCacheAware(Policy):
    """Each request goes where queue and prefill of the rest end first. No block moves."""

    name = "local_cache_aware"
    columns = ("cost", "blocks", "wait_s", "work_s")

    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        answer = state.core.local_cache_aware(*asked(request, matches_S), now_s)
        return self._decision(Choice._make(answer))
