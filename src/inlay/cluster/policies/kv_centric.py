"""Blocks are worth moving: Algorithm 1 of Mooncake.

Source: Mooncake (FAST'25), section 5.1.
"""

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies.policy import Blocks, Choice, Policy, asked
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError


class KvCentric(Policy):
    """The least time to first token; where another instance has far more blocks, they are copied.

    Args:
        balancing_threshold: how many times as many blocks the best instance must have for a
            candidate to be given them; below that it computes the difference. At least 1.
    """

    name = "kv_centric"
    columns = ("cost", "blocks", "copied", "copy_s", "wait_s", "work_s")

    def __init__(self, balancing_threshold: float = 4.0) -> None:
        if not balancing_threshold >= 1:
            raise ConfigError(
                f"kv_centric: balancing_threshold must be at least 1, got {balancing_threshold}"
            )
        self._threshold = balancing_threshold

    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        answer = state.core.kv_centric(
            *asked(request, matches_S), now_s, state.copies, self._threshold
        )
        return self._decision(Choice._make(answer))
