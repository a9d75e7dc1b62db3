"""How long steps take, learned from what they took. Pure: no clock.

A step with prompt tokens takes `c0 + c1 * tokens + c2 * pairs`, one without `d0`, and both
`d1 * decodes + d2 * context` more. `c0` stands for the weights that each step reads, so it is in a
mixed step once. The six numbers of a kind of instance are one vector, `coefficients`.

Shapes: `S` steps, `F` = 6 features.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inlay.cluster import _backend
from inlay.cluster._reference_timing import features_of
from inlay.cluster.transfer_model import TransferModel as TransferModel
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import StepSample
from inlay.core.messages import EngineInfo
from inlay.core.text_files import read_json_object

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
_REMEDY = "write a new one with inlay calibrate"
_MEMORY_STEPS = 2000.0  # steps after which an observation counts 1/e
_OUTLIER = 2.5  # in standard deviations; what is beyond counts less
_PRIOR_STEPS = 0.05  # how many steps the prior is worth, for each coefficient


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
    steps_S4 = np.array(
        [(s.prefill_tokens, s.prefill_pairs, s.decodes, s.decode_context) for s in samples],
        dtype=np.float64,
    ).reshape(-1, 4)
    return features_of(steps_S4)


def rows_of(samples: Sequence[StepSample]) -> list[tuple[int, int, int, int, float]]:
    """Samples as the cores take them."""
    return [
        (s.prefill_tokens, s.prefill_pairs, s.decodes, s.decode_context, s.seconds) for s in samples
    ]


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
    counting less and less, none of the six numbers negative.

    Attributes:
        core: learns; for the core of the cluster state, which gives it what instances report.
    """

    def __init__(self, prior: Coefficients, config: TimingConfig | None = None) -> None:
        if prior.shape != (NUM_FEATURES,) or not (np.isfinite(prior).all() and (prior > 0).all()):
            raise ConfigError(
                f"timing: {NUM_FEATURES} positive coefficients are needed, got {prior.tolist()}"
            )
        config = config or TimingConfig()
        self.core = _backend.Timing(
            prior.tolist(), config.memory_steps, config.outlier, config.prior_steps
        )

    @property
    def coefficients(self) -> Coefficients:
        """As in `FEATURES`; a new array."""
        return np.array(self.core.coefficients)

    @property
    def relative_std(self) -> float:
        """Standard deviation of a step's time, as a share of the prediction."""
        return self.core.relative_std

    @property
    def num_steps(self) -> int:
        """Seen so far."""
        return self.core.num_steps

    def observe(self, samples: Sequence[StepSample]) -> None:
        """Learn from steps. Those that took no time, or none at all, are left out.

        Cost: 0.5 us, and 0.1 us for each step.
        """
        self.core.observe(rows_of(samples))

    def step_s(self, sample: StepSample) -> float:
        """Expected time of a step; its `seconds` are not looked at."""
        return float((features([sample]) @ self.coefficients)[0])

    def prefill_s(self, new_tokens: int, cached_tokens: int, chunk: int = 1 << 30) -> float:
        """Expected time to compute a prompt alone, in steps of `chunk` tokens."""
        c0, c1, c2 = self.core.coefficients[:3]
        pairs = new_tokens * (cached_tokens + (new_tokens + 1) / 2)
        return float(c0 * max(1, -(-new_tokens // chunk)) + c1 * new_tokens + c2 * pairs)

    def decode_s(self, rows: int, context_tokens: int) -> float:
        """Expected time of a step of `rows` decodes whose contexts are `context_tokens` in sum."""
        d0, d1, d2 = self.core.coefficients[3:]
        return float(d0 + d1 * rows + d2 * context_tokens)

    def save(self, path: Path) -> None:
        """Write what is known as JSON, for `load`."""
        document = {
            "format": _FORMAT,
            "seconds": dict(zip(FEATURES, self.core.coefficients, strict=True)),
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
            document = read_json_object(path, remedy=_REMEDY, error=ConfigError)
        except OSError as error:
            raise ConfigError(f"timing file {path}: {error.strerror}: {_REMEDY}") from error
        try:
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}, not {_FORMAT!r}")
            seconds = np.array([float(document["seconds"][name]) for name in FEATURES])
            steps, std = int(document["steps"]), float(document["relative_std"])
            if not (np.isfinite(seconds).all() and (seconds >= 0).all() and std >= 0):
                raise ValueError("a number is negative or not finite")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"timing file {path}: {error!r}: {_REMEDY}") from error
        # A coefficient that was found to be 0 may still grow.
        model = cls(np.maximum(seconds, max(seconds.max(), 1e-9) * 1e-9), config)
        model.core.believe(steps, std)
        return model
