"""One instance after the other."""

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Policy, decide
from inlay.cluster.state import ClusterState


class RoundRobin(Policy):
    """Each request goes to the next slot that takes prompts. Knows no load and no cache."""

    name = "round_robin"

    def __init__(self) -> None:
        self._next = 0

    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        turn_S = (np.arange(state.num_slots) - self._next) % state.num_slots
        cost_S = turn_S + state.closed_prefill_s
        slot = int(cost_S.argmin())
        self._next = slot + 1
        return decide(self, request, slot, blocks_S, state, now_s, {"cost": cost_S})
