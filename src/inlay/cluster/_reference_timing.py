"""How a timing model learns, in NumPy: serves where there is no extension, and is the tests' model.

`inlay._native.cluster.Timing` has the same methods; its sums may differ in the last bits.

Shapes: `S` steps, `F` features.
"""

import numpy as np
from numpy.typing import NDArray

_NUM_FEATURES = 6

_SCALE_STEPS = 16  # first ones, which also set the scale of the prior


def features_of(steps_S4: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the time of each step is a sum of, (S, F); see `timing.features`."""
    x_SF = np.zeros((len(steps_S4), _NUM_FEATURES))
    x_SF[:, 1:3] = steps_S4[:, :2]
    x_SF[:, 4:6] = steps_S4[:, 2:]
    x_SF[:, 0] = steps_S4[:, 0] > 0
    x_SF[:, 3] = steps_S4[:, 0] == 0
    return x_SF


class Timing:
    """Least squares of relative errors; see `timing.TimingModel`.

    The two sums that it needs are kept in units of the prior, where every coefficient is near 1.
    """

    def __init__(
        self, prior: list[float], memory_steps: float, outlier: float, prior_steps: float
    ) -> None:
        self.coefficients = list(prior)
        self.num_steps = 0
        self._memory_steps, self._outlier = memory_steps, outlier
        self._prior_steps = prior_steps
        self._prior = np.array(prior)
        self._squares_FF = np.zeros((_NUM_FEATURES, _NUM_FEATURES))
        self._products_F = np.zeros(_NUM_FEATURES)
        self._errors = np.array([1.0, 0.25])  # weight and sum of squares: 50 % at first

    @property
    def relative_std(self) -> float:
        """Standard deviation of a step's time, as a share of the prediction."""
        return float(np.sqrt(self._errors[1] / self._errors[0]))

    def believe(self, steps: int, relative_std: float) -> None:
        """What is known from before is worth so many steps."""
        self._squares_FF = np.eye(_NUM_FEATURES) * min(steps, self._memory_steps) / 10
        self._products_F = self._squares_FF.sum(axis=1)
        if steps:
            self._errors = np.array([1.0, 1.0]) * (steps, steps * relative_std * relative_std)
        self.num_steps = max(steps, _SCALE_STEPS)

    def observe(self, samples: list[tuple[int, int, int, int, float]]) -> None:
        """Learn from steps: prompt tokens and pairs, decodes and their context, and seconds."""
        timed = [sample for sample in samples if 0 < sample[4] < np.inf]
        if not timed:
            return
        rows = np.array(timed, np.float64)
        x_SF, seconds_S = features_of(rows[:, :4]), rows[:, 4]
        if self.num_steps < _SCALE_STEPS:
            self._rescale(x_SF, seconds_S)
        self.num_steps += len(timed)
        expected_S = x_SF @ np.array(self.coefficients)
        error_S = np.abs(seconds_S / expected_S - 1.0)
        # A first look cannot tell an outlier from a wrong prior.
        limit = self._outlier * max(self.relative_std, 0.02)
        weight_S = np.minimum(1.0, limit / np.maximum(error_S, 1e-12))
        keep = np.exp(-len(timed) / self._memory_steps)
        self._errors *= keep
        self._errors += (len(timed), float(np.sum(np.minimum(error_S, 2 * limit) ** 2)))
        # Relative to what is expected, whose error is not that of the step; where that is far too
        # little, to the step itself, or a bad start would weigh more than all that follows.
        unit_S = np.maximum(expected_S, seconds_S / 2)
        scaled_SF = x_SF * self._prior / unit_S[:, None]
        target_S = seconds_S / unit_S
        self._squares_FF *= keep
        self._squares_FF += scaled_SF.T @ (scaled_SF * weight_S[:, None])
        self._products_F *= keep
        self._products_F += (weight_S * target_S) @ scaled_SF
        self._solve()

    def _rescale(self, x_SF: NDArray[np.float64], seconds_S: NDArray[np.float64]) -> None:
        """Bring the prior to the scale of the first steps; its proportions stay."""
        factor = float(np.median(seconds_S / (x_SF @ self._prior)))
        if self.num_steps:
            factor = factor ** (len(x_SF) / (len(x_SF) + self.num_steps))
        self._prior = self._prior * factor
        self._squares_FF *= factor * factor
        self._products_F *= factor
        if not self.num_steps:
            self.coefficients = self._prior.tolist()

    def _solve(self) -> None:
        """The best coefficients that are not negative: drop those that are, and solve again."""
        a_FF = self._squares_FF + self._prior_steps * np.eye(_NUM_FEATURES)
        b_F = self._products_F + self._prior_steps
        free = np.ones(_NUM_FEATURES, dtype=bool)
        solution_F = np.linalg.solve(a_FF, b_F)
        while (solution_F[free] < 0).any():
            free &= solution_F > 0
            solution_F = np.zeros(_NUM_FEATURES)
            solution_F[free] = np.linalg.solve(a_FF[np.ix_(free, free)], b_F[free])
        self.coefficients = (solution_F * self._prior).tolist()
