"""What lengths, times and choices are drawn from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError


@dataclass(frozen=True)
class LogNormal:
    """Positive numbers, many small and few large.

    Attributes:
        mean: of what is drawn, before `most` cuts it.
        spread: standard deviation of the logarithm; 0: always the mean.
        most: what is drawn above is taken to be this.
    """

    mean: float
    spread: float = 0.0
    most: float = np.inf

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= self.most:
            raise ConfigError(f"mean must be 0 to most ({self.most}), got {self.mean}")
        if not 0 <= self.spread < np.inf:
            raise ConfigError(f"spread must be 0 or more and finite, got {self.spread}")

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """So many, each by itself."""
        drawn = random.lognormal(-(self.spread**2) / 2, self.spread, count) * self.mean
        return np.minimum(drawn, self.most)

    def draw_tokens(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """The same as whole numbers of tokens, at least 1."""
        return np.maximum(1, np.rint(self.draw(random, count))).astype(np.int64)


def draw_zipf(
    random: np.random.Generator, choices: int, exponent: float, count: int
) -> NDArray[np.int64]:
    """Numbers below `choices`: k is as likely as `(k + 1) ** -exponent` says."""
    weights = np.arange(1.0, choices + 1) ** -exponent
    return random.choice(choices, count, p=weights / weights.sum())


def draw_geometric(random: np.random.Generator, mean: float, count: int) -> NDArray[np.int64]:
    """Numbers from 1 on: after each, it goes on with probability `1 - 1 / mean`."""
    return random.geometric(1 / mean, count)
