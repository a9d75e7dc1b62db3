"""How long steps and transfers take, learned from what they took. Pure: no clock.

A step with prompt tokens takes `c0 + c1 * tokens + c2 * pairs`, one without `d0`, and both
`d1 * decodes + d2 * context` more. `c0` stands for the weights that each step reads, so it is in a
mixed step once. The six numbers of a kind of instance are one vector, `coefficients`.

Shapes: `S` steps, `F` = 6 features.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError
from inlay.core.instance_messages import StepSample
from inlay.core.messages import EngineInfo

NUM_FEATURES = 6
FEATURES = (
    "prefill_step",
    "prefill_token",
    "prefill_pair",
    "decode_step",
    "decode_row",
    "decode_context",
)
"""Names of the coefficients, each in seconds per one of it."""

Coefficients = NDArray[np.float64]

_FORMAT = "inlay timing 1"
_MEMORY_STEPS = 2000.0  # steps after which an observation counts 1/e
_OUTLIER = 2.5  # in standard deviations; what is beyond counts less
_PRIOR_STEPS = 0.05  # how many steps the prior is worth, for each coefficient
_SCALE_STEPS = 16  # first ones, which also set the scale of the prior


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """How a timing model learns.

    Attributes:
        memory_steps: after so many steps an observation counts 1/e of a new one.
        outlier: relative errors beyond so many standard deviations count less.
        prior_steps: how many observations the prior is worth.
    """

    memory_steps: float = _MEMORY_STEPS
    outlier: float = _OUTLIER
    prior_steps: float = _PRIOR_STEPS

    def __post_init__(self) -> None:
        for name in ("memory_steps", "outlier", "prior_steps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"timing.{name} must be above 0, got {getattr(self, name)}")


def prior_for(info: EngineInfo) -> Coefficients:
    """What to believe of an instance before its first step: right to a factor of ten, no better.

    The first steps that are seen set the scale; what this gives is mainly the proportions.
    """
    on_gpu = info.device.startswith("cuda")
    flops, bytes_per_s = (2e14, 1e12) if on_gpu else (3e11, 4e10)
    token_s = 2.0 * info.parameters / flops
    if info.experts:
        token_s *= max(info.experts_per_token / info.experts, 0.05)
    context_s = info.page_bytes / info.page_tokens / bytes_per_s
    step_s = max(2.0 * info.parameters / bytes_per_s * (0.2 if info.experts else 1.0), 1e-3)
    return np.array([step_s, token_s, context_s * 0.02, step_s, token_s, context_s])


def features(samples: Sequence[StepSample]) -> NDArray[np.float64]:
    """What the time of each step is a sum of, (S, F)."""
    raw = np.array(
        [(s.prefill_tokens, s.prefill_pairs, s.decodes, s.decode_context) for s in samples],
        dtype=np.float64,
    ).reshape(-1, 4)
    x_SF = np.zeros((len(raw), NUM_FEATURES))
    x_SF[:, 1:3] = raw[:, :2]
    x_SF[:, 4:6] = raw[:, 2:]
    x_SF[:, 0] = raw[:, 0] > 0
    x_SF[:, 3] = raw[:, 0] == 0
    return x_SF


def relative_fit(x_SF: NDArray[np.float64], seconds_S: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients, none below 0, with the least squares of relative errors.

    Args:
        seconds_S: above 0.
    """
    scaled_SF = x_SF / seconds_S[:, None]
    free = np.ones(x_SF.shape[1], bool)
    while True:
        fit_F = np.zeros(len(free))
        fit_F[free] = np.linalg.lstsq(scaled_SF[:, free], np.ones(len(x_SF)), rcond=None)[0]
        if (fit_F >= 0).all():
            return fit_F
        free &= fit_F > 0


class TimingModel:
    """Timing of one kind of instance: a model on some hardware.

    Least squares of *relative* errors, so that decode steps count as much as prefills, old steps
    counting less and less, none of the six numbers negative. The two sums that it needs are kept
    in units of the prior, where every coefficient is near 1.

    Attributes:
        coefficients: as in `FEATURES`; a new array whenever it changes.
        relative_std: standard deviation of a step's time, as a share of the prediction.
        num_steps: seen so far.
    """

    def __init__(self, prior: Coefficients, config: TimingConfig | None = None) -> None:
        if prior.shape != (NUM_FEATURES,) or not (np.isfinite(prior).all() and (prior > 0).all()):
            raise ConfigError(
                f"timing: {NUM_FEATURES} positive coefficients are needed, got {prior.tolist()}"
            )
        self._config = config or TimingConfig()
        self._prior = prior.astype(np.float64)
        self._squares_FF = np.zeros((NUM_FEATURES, NUM_FEATURES))
        self._products_F = np.zeros(NUM_FEATURES)
        self._errors = np.array([1.0, 0.25])  # weight and sum of squares: 50 % at first
        self.coefficients: Coefficients = self._prior.copy()
        self.num_steps = 0

    @property
    def relative_std(self) -> float:
        """Standard deviation of a step's time, as a share of the prediction."""
        return float(np.sqrt(self._errors[1] / self._errors[0]))

    def observe(self, samples: Sequence[StepSample]) -> None:
        """Learn from steps. Those that took no time, or none at all, are left out.

        Cost: about 50 us for a report's samples, whether one or 64.
        """
        timed = [s for s in samples if 0 < s.seconds < np.inf]
        if not timed:
            return
        x_SF = features(timed)
        seconds_S = np.array([s.seconds for s in timed])
        if self.num_steps < _SCALE_STEPS:
            self._rescale(x_SF, seconds_S)
        self.num_steps += len(timed)
        expected_S = x_SF @ self.coefficients
        error_S = np.abs(seconds_S / expected_S - 1.0)
        # A first look cannot tell an outlier from a wrong prior.
        limit = self._config.outlier * max(self.relative_std, 0.02)
        weight_S = np.minimum(1.0, limit / np.maximum(error_S, 1e-12))
        keep = np.exp(-len(timed) / self._config.memory_steps)
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
            self.coefficients = self._prior.copy()

    def _solve(self) -> None:
        """The best coefficients that are not negative: drop those that are, and solve again."""
        a_FF = self._squares_FF + self._config.prior_steps * np.eye(NUM_FEATURES)
        b_F = self._products_F + self._config.prior_steps
        free = np.ones(NUM_FEATURES, dtype=bool)
        solution_F = np.linalg.solve(a_FF, b_F)
        while (solution_F[free] < 0).any():
            free &= solution_F > 0
            solution_F = np.zeros(NUM_FEATURES)
            solution_F[free] = np.linalg.solve(a_FF[np.ix_(free, free)], b_F[free])
        self.coefficients = solution_F * self._prior

    def step_s(self, sample: StepSample) -> float:
        """Expected time of a step; its `seconds` are not looked at."""
        return float((features([sample]) @ self.coefficients)[0])

    def prefill_s(self, new_tokens: int, cached_tokens: int, chunk: int = 1 << 30) -> float:
        """Expected time to compute a prompt alone, in steps of `chunk` tokens."""
        c0, c1, c2 = self.coefficients[:3]
        pairs = new_tokens * (cached_tokens + (new_tokens + 1) / 2)
        return float(c0 * max(1, -(-new_tokens // chunk)) + c1 * new_tokens + c2 * pairs)

    def decode_s(self, rows: int, context_tokens: int) -> float:
        """Expected time of a step of `rows` decodes whose contexts are `context_tokens` in sum."""
        d0, d1, d2 = self.coefficients[3:]
        return float(d0 + d1 * rows + d2 * context_tokens)

    def save(self, path: Path) -> None:
        """Write what is known as JSON, for `load`."""
        document = {
            "format": _FORMAT,
            "seconds": dict(zip(FEATURES, self.coefficients.tolist(), strict=True)),
            "relative_std": self.relative_std,
            "steps": self.num_steps,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path, config: TimingConfig | None = None) -> "TimingModel":
        """What `save` wrote, to start from; later steps change it as if it had been seen here.

        Raises:
            ConfigError: the file is not such a file.
        """
        try:
            document: dict[str, Any] = json.loads(path.read_text())
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}, not {_FORMAT!r}")
            seconds = np.array([float(document["seconds"][name]) for name in FEATURES])
            steps, std = int(document["steps"]), float(document["relative_std"])
            if not (np.isfinite(seconds).all() and (seconds >= 0).all() and std >= 0):
                raise ValueError("a number is negative or not finite")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"timing file {path}: {error!r}; write a new one with inlay calibrate"
            ) from error
        # A coefficient that was found to be 0 may still grow.
        model = cls(np.maximum(seconds, max(seconds.max(), 1e-9) * 1e-9), config)
        model._squares_FF = np.eye(NUM_FEATURES) * min(steps, model._config.memory_steps) / 10
        model._products_F = model._squares_FF.sum(axis=1)
        model._errors = (
            np.array([1.0, 1.0]) * (steps, steps * std * std) if steps else model._errors
        )
        model.num_steps = max(steps, _SCALE_STEPS)
        return model


@dataclass(kw_only=True)
class TransferModel:
    """How long KV takes from one instance to another: `latency_s` and bytes over bandwidth.

    What the sender has still to send goes first. Bandwidth is learned, later transfers counting
    more, from those that were long enough to tell it from the latency.

    Attributes:
        latency_s: of an empty transfer.
        bandwidth: bytes per second.
        relative_std: of a transfer's time.
    """

    latency_s: float = 0.002
    bandwidth: float = 1e9
    relative_std: float = 0.5
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0], repr=False)

    def __post_init__(self) -> None:
        if self.latency_s < 0 or not self.bandwidth > 0:
            raise ConfigError(
                f"transfer: latency_s must be >= 0 and bandwidth above 0, got {self.latency_s} "
                f"and {self.bandwidth}"
            )

    def seconds(self, size_bytes: float, ahead_bytes: float = 0.0) -> float:
        """Expected time, with so many bytes to send before it."""
        return self.latency_s + (size_bytes + ahead_bytes) / self.bandwidth

    def observe(self, size_bytes: float, ahead_bytes: float, seconds: float) -> None:
        """A transfer took so long, with so many bytes of the sender before it."""
        moving_s = seconds - self.latency_s
        if seconds <= 0 or size_bytes <= 0:
            return
        if moving_s < self.latency_s:
            # Too short to say something of bandwidth; it bounds the latency.
            self.latency_s = 0.9 * self.latency_s + 0.1 * min(seconds, self.latency_s)
            return
        error = abs(seconds / self.seconds(size_bytes, ahead_bytes) - 1.0)
        variance = 0.9 * self.relative_std**2 + 0.1 * min(error, 1.0) ** 2
        self.relative_std = variance**0.5
        self._sums[0] = 0.9 * self._sums[0] + size_bytes + ahead_bytes
        self._sums[1] = 0.9 * self._sums[1] + moving_s
        self.bandwidth = self._sums[0] / self._sums[1]
