"""Any instance: what others are compared with."""

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Policy, decide
from inlay.cluster.state import ClusterState


class Random(Policy):
    """Each request goes to any slot that takes prompts, with equal chances."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        cost_S = self._rng.random(state.num_slots) + state.closed_prefill_s
        return decide(self, request, int(cost_S.argmin()), blocks_S, state, now_s, {"cost": cost_S})
