"""One instance after the other."""

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.state import ClusterState


class RoundRobin(Policy):
    """Each request goes to the next slot that takes prompts. Knows no load and no cache."""

    name = "round_robin"
    columns = ("cost",)

    def __init__(self) -> None:
        self._next = 0

    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        turn_S = (np.arange(state.num_slots) - self._next) % state.num_slots
        cost_S = turn_S + state.closed_prefill_s
        self._next = int(cost_S.argmin()) + 1
        answer = state.core.lowest(*asked(request, matches_S), now_s, cost_S)
        return self._decision(Choice._make(answer))
