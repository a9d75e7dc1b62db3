"""The instance whose queue is shortest: load balance without regard to caches."""

from inlay.cluster.decision import Columns, Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Policy, decide
from inlay.cluster.state import ClusterState

_ROW_S = 1e-6  # only to choose among empty queues


class LeastLoaded(Policy):
    """Each request goes where it would wait for the shortest time; ties where least decodes."""

    name = "least_loaded"

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        wait_S = state.wait_s(request.priority, now_s)
        cost_S = wait_S + (state.rows + state.coming_rows) * _ROW_S + state.closed_prefill_s
        columns: Columns = {"cost": cost_S, "wait_s": wait_S}
        return decide(self, request, int(cost_S.argmin()), blocks_S, state, now_s, columns)
