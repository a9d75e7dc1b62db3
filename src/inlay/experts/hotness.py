"""Which experts should be resident, by how often tokens chose them of late.

    hotness.observe(counts_LE)  # after each step
    for move in hotness.choose(resident_LE, budget_bytes, expert_bytes):
        ...  # the promoted expert's weights are copied over the demoted one's

Every layer keeps as many resident experts as it has: a move promotes one of its host experts into
the place of a resident one. Knows neither weights nor devices, and does not copy; what `choose`
named is resident when the caller says so in the next call. `L` counts mixture layers, `E` experts.

Places belong to layers, so nothing else changes when experts do. One pool of places for all layers
would spare the host at most 3 % where up to a quarter of the experts is resident
(docs/experiments.md).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError

HALF_LIFE = 2.0
"""An activation counts half after the layer's experts had so many more each, on average: 32 tokens
that choose 8 of 128. With twice as many a shift is followed after 160 steps of a token, not 95."""

CERTAINTY = 2.0
"""A host expert is promoted when it leads by so many standard deviations of what chance does to the
counts of both; so two that are alike do not swap back and forth."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One expert of a layer that takes the place of another."""

    layer: int
    promoted: int
    demoted: int


class Hotness:
    """Activations of all experts, old ones counting less and less.

    Args:
        layers, experts: mixture layers, and routed experts of each.

    Cost: for 58 layers of 256 experts `observe` and `choose` take about 0.1 ms together.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self._half_life = HALF_LIFE * experts
        self._heat_LE = np.zeros((layers, experts))
        self._rows_L = np.arange(layers)

    @property
    def heat_LE(self) -> NDArray[np.float64]:
        """How often tokens chose each expert, decayed: a view that the next `observe` changes."""
        return self._heat_LE

    def observe(self, counts_LE: NDArray[np.integer]) -> None:
        """Take in how often tokens chose each expert since the last call.

        Ageing goes by activations, not by calls: one step of eight tokens does what eight steps of
        one do, and a layer that computed nothing forgets nothing.
        """
        self._check(counts_LE, "counts_LE")
        decay_L = np.exp2(counts_LE.sum(axis=1) / -self._half_life)
        self._heat_LE *= decay_L[:, None]
        self._heat_LE += counts_LE

    def choose(
        self, resident_LE: NDArray[np.bool_], budget_bytes: int, expert_bytes: int
    ) -> list[Move]:
        """Moves worth making now, at most one of each layer, those that bring most first.

        Args:
            resident_LE: as it will be once all moves that were begun are done.
            budget_bytes: that may be copied.
            expert_bytes: of one expert.
        """
        self._check(resident_LE, "resident_LE")
        if expert_bytes < 1 or budget_bytes < 0:
            raise ArgumentError(
                f"experts of {expert_bytes} bytes within {budget_bytes} cannot be moved"
            )
        # A layer without host experts, or without resident ones, has no candidate: its lead is < 0.
        host_LE = np.where(resident_LE, -1.0, self._heat_LE)
        resident_heat_LE = np.where(resident_LE, self._heat_LE, np.inf)
        up_L, down_L = host_LE.argmax(axis=1), resident_heat_LE.argmin(axis=1)
        hot_L, cold_L = host_LE[self._rows_L, up_L], resident_heat_LE[self._rows_L, down_L]
        lead_L = hot_L - cold_L
        # A count varies by its square root; of one that decays the variance is half the count.
        chance_L = CERTAINTY**2 * (hot_L + cold_L) / 2
        ahead_L = np.flatnonzero((lead_L > 0) & (lead_L * lead_L > chance_L))
        best = ahead_L[np.argsort(-lead_L[ahead_L], kind="stable")]
        return [
            Move(layer=int(layer), promoted=int(up_L[layer]), demoted=int(down_L[layer]))
            for layer in best[: budget_bytes // expert_bytes]
        ]

    def _check(self, given_LE: NDArray[np.generic], name: str) -> None:
        if given_LE.shape != self._heat_LE.shape:
            raise ArgumentError(f"{name} is {given_LE.shape}, not {self._heat_LE.shape}")
