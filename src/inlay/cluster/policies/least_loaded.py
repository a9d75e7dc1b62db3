"""The instance whose queue is shortest: load balance without regard to caches."""

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.state import ClusterState


class LeastLoaded(Policy):
    """Each request goes where it would wait for the shortest time; ties where least decodes."""

    name = "least_loaded"
    columns = ("cost", "wait_s")

    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        answer = state.core.least_loaded(*asked(request, matches_S), now_s)
        return self._decision(Choice._make(answer))
