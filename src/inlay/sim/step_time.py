"""How long a step takes, of what it computes; the simulator's own instances tell it exactly.

A cluster learns it by `cluster.timing`, whose six numbers are one form of what is here.

Shapes: `S` steps, `F` = 8 features, `P` parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.cluster import timing
from inlay.cluster.timing import Coefficients, TimingModel, relative_fit
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import StepSample
from inlay.core.roofline import expected_experts

FEATURES = (*timing.FEATURES, "logit_row", "expert")
"""What a step's time is linear in; the first six are those of `cluster.timing`.

`logit_row`: tokens that get logits; `expert`: different experts of a layer that are chosen.
"""
NUM_FEATURES = len(FEATURES)

Form = tuple[float, ...]

_TOKENS = (0, 1, 16, 128, 512, 2048, 8192)
_CONTEXTS = (0, 512, 8192, 65536)
_ROWS = (0, 1, 8, 64)
_ROUNDS = 8  # after which no doubt of the start is left


@dataclass(frozen=True)
class StepTime:
    """A sum of parts, each the longest of some linear forms of what a step computes.

    An operator that is bound by bytes or by operations is a part with two forms, a model that was
    fitted is one part with one. Whether there are prompt tokens is a feature (`prefill_step`, and
    `decode_step` where there are none), so a constant is the same number for both.

    Attributes:
        parts: of each its forms; a form has a coefficient per feature, in seconds.
    """

    parts: tuple[tuple[Form, ...], ...]

    def __post_init__(self) -> None:
        if not self.parts or not all(self.parts):
            raise ConfigError("step time: at least one part is needed, and a form in each")
        for form in (form for forms in self.parts for form in forms):
            if len(form) != NUM_FEATURES or not all(0 <= value < np.inf for value in form):
                raise ConfigError(
                    f"step time: a form has {NUM_FEATURES} coefficients, finite and not negative, "
                    f"got {form}"
                )

    @classmethod
    def fitted(cls, coefficients: Coefficients | Sequence[float]) -> "StepTime":
        """That of a `TimingModel`, by its coefficients."""
        return cls(((tuple(float(value) for value in (*coefficients, 0.0, 0.0)),),))

    def seconds(self, x_SF: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of steps, (S,)."""
        seconds_S = np.zeros(len(x_SF))
        for forms in self.parts:
            seconds_S += np.max(x_SF @ np.array(forms).T, axis=1)
        return seconds_S


def step_features(
    prompts: Sequence[tuple[int, int]] = (),
    contexts: Sequence[int] = (),
    *,
    experts: int = 0,
    experts_per_token: int = 0,
) -> NDArray[np.float64]:
    """What one step computes, (1, F).

    Args:
        prompts: new and cached tokens of each chunk; the last token of each gets logits.
        contexts: tokens that each decode sees, itself among them.
        experts, experts_per_token: of a layer; tokens choose at random.
    """
    new = sum(tokens for tokens, _ in prompts)
    pairs = sum(tokens * (tokens + 1) // 2 + tokens * cached for tokens, cached in prompts)
    chosen = expected_experts(experts, experts_per_token, new + len(contexts))
    told = (bool(new), new, pairs, not new, len(contexts), sum(contexts))
    return np.array([[*told, len(prompts) + len(contexts), chosen]], np.float64)


def calibrated(step_time: StepTime, experts: int = 0, experts_per_token: int = 0) -> TimingModel:
    """A timing model that has seen such steps: what `inlay calibrate` would find.

    Args:
        experts, experts_per_token: of a layer; as many as tokens choose at random are read.
    """
    steps = [
        (tokens, tokens * context + tokens * (tokens + 1) // 2, rows, rows * context)
        for tokens in _TOKENS
        for rows in _ROWS
        for context in _CONTEXTS
        if tokens or rows
    ]
    samples = [StepSample(*step, seconds=0.0) for step in steps]
    x_SF = np.zeros((len(steps), NUM_FEATURES))
    x_SF[:, : timing.NUM_FEATURES] = timing.features(samples)
    x_SF[:, 6] = x_SF[:, 4] + (x_SF[:, 1] > 0)
    x_SF[:, 7] = [
        expected_experts(experts, experts_per_token, tokens + rows) for tokens, _, rows, _ in steps
    ]
    seconds_S = step_time.seconds(x_SF)
    timed = [
        StepSample(*step, seconds=took)
        for step, took in zip(steps, seconds_S.tolist(), strict=True)
        if took > 0
    ]
    kept = seconds_S > 0
    fit_F = relative_fit(x_SF[kept, : timing.NUM_FEATURES], seconds_S[kept])
    model = TimingModel(np.maximum(fit_F, max(fit_F.max(), 1e-9) * 1e-9))
    for _ in range(_ROUNDS):
        model.observe(timed)
    return model
