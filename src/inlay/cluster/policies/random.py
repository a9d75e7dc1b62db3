"""Any instance: what others are compared with."""

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.state import ClusterState


class Random(Policy):
    """Each request goes to any slot that takes prompts, with equal chances."""

    name = "random"
    columns = ("cost",)

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        cost_S = self._rng.random(state.num_slots) + state.closed_prefill_s
        answer = state.core.lowest(*asked(request, matches_S), now_s, cost_S)
        return self._decision(Choice._make(answer))
