"""Tokens that choose experts by Zipf's law, each layer in an order of its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SAMPLES = 20_000


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """How probable it is that a token chooses each expert, the most probable first.

    Attributes:
        per_token: distinct experts of a token.
        logits_E: their weights' logarithms: the r-th weighs 1 / r^skew.
        chosen_E: probability that a token chooses it; they sum to `per_token`.
    """

    per_token: int
    logits_E: NDArray[np.float64]
    chosen_E: NDArray[np.float64]

    def best_share(self, resident: int) -> float:
        """Share of activations that so many of the most probable experts get."""
        return float(self.chosen_E[:resident].sum()) / self.per_token


def zipf(experts: int, per_token: int, skew: float) -> Popularity:
    """Weights by Zipf's law; what tokens choose of them is drawn."""
    logits_E = -skew * np.log(np.arange(1, experts + 1))
    ids_TK = draw(np.random.default_rng(0), logits_E, _SAMPLES, per_token)
    chosen_E = np.bincount(ids_TK.ravel(), minlength=experts) / _SAMPLES
    return Popularity(per_token=per_token, logits_E=logits_E, chosen_E=np.sort(chosen_E)[::-1])


def draw(
    rng: np.random.Generator, logits_E: NDArray[np.float64], tokens: int, per_token: int
) -> NDArray[np.intp]:
    """Distinct experts of each token, the weights' shares one after the other (Gumbel's top-k)."""
    noisy_TE = logits_E + rng.gumbel(size=(tokens, len(logits_E)))
    return np.argpartition(-noisy_TE, per_token - 1, axis=1)[:, :per_token]


class Routing:
    """What tokens choose in each layer; `shift` gives every layer a new order."""

    def __init__(self, popularity: Popularity, layers: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._popularity = popularity
        self._layers = layers
        self.shift()

    def shift(self) -> None:
        """Other experts are the probable ones from now on."""
        experts = len(self._popularity.logits_E)
        self._ranks_LE = self._rng.permuted(np.tile(np.arange(experts), (self._layers, 1)), axis=1)

    def counts(self, tokens: int) -> NDArray[np.int64]:
        """How often a step of so many tokens chooses each expert, `[L, E]`."""
        popularity = self._popularity
        drawn = [
            np.bincount(
                draw(self._rng, popularity.logits_E[ranks], tokens, popularity.per_token).ravel(),
                minlength=len(ranks),
            )
            for ranks in self._ranks_LE
        ]
        return np.stack(drawn)

    def share(self, resident_LE: NDArray[np.bool_]) -> float:
        """Share of activations that resident experts get, to be expected."""
        chosen_LE = self._popularity.chosen_E[self._ranks_LE]
        return float((chosen_LE * resident_LE).sum()) / self._popularity.per_token / self._layers
