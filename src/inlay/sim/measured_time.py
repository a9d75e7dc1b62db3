"""How long steps take where somebody has measured: files of `inlay calibrate`, and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.timing import TimingModel, relative_fit
from inlay.core.errors import ArgumentError, ConfigError
from inlay.core.records import read_csv
from inlay.core.roofline import Step
from inlay.sim.step_time import FEATURES, NUM_FEATURES, StepTime

COLUMNS = ("new_tokens", "cached_tokens", "requests", "seconds")
"""Of a table; without `requests` there is one in each step."""

_MOST_FORMS = 3
_ROUNDS = 20
_LEAST_STEPS = 3  # for each form

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Step times that were found in measurements.

    Attributes:
        relative_std: of a step's time: of what was measured, or of what a table has and forms
            cannot follow.
        worst: the largest relative error of a table's rows; 0 of a calibration.
    """

    step_time: StepTime
    relative_std: float
    worst: float = 0.0


def read_calibration(file: Path) -> Fit:
    """What `inlay calibrate` wrote of one kind of instance.

    Raises:
        ConfigError: the file is not such a file.
    """
    model = TimingModel.load(file)
    return Fit(step_time=StepTime.fitted(model.coefficients), relative_std=model.relative_std)


def read_table(file: Path) -> Fit:
    """A table of measured steps: CSV with the `COLUMNS`, in any order; see `fit_table`.

    Raises:
        ConfigError: a line says nothing sensible, which the message names, or there are too few.
    """
    steps: list[Step] = []
    seconds: list[float] = []
    try:
        records = read_csv(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    for number, row in enumerate(records.rows):
        if any(name not in row for name in COLUMNS if name != "requests"):
            raise ConfigError(f"{file}: the first line must name {', '.join(COLUMNS)}")
        try:
            new, cached, requests = (int(row.get(name, 1)) for name in COLUMNS[:3])
            steps.append(Step(new_tokens=new, cached_tokens=cached, requests=requests))
            seconds.append(float(row["seconds"]))
        except (ValueError, ArgumentError) as error:
            raise ConfigError(f"{records.place(number)}: {error}") from None
    try:
        return fit_table(steps, seconds)
    except ArgumentError as error:
        raise ConfigError(f"{file}: {error}") from None


def fit_table(steps: Sequence[Step], seconds: Sequence[float]) -> Fit:
    """Step times from some that were measured: between them, and beyond.

    Steps of one new token are decodes, the others prompts. Of each kind the time is the longest of
    up to three linear forms of tokens, pairs of them and contexts: steps are dealt to forms by
    length, and then to whichever is the longest for them, until none moves. What grows ever slower
    is no maximum of lines; `worst` tells. Where no step has two requests, another row of a decode
    takes nothing but its context.

    Raises:
        ArgumentError: a time is not above 0, or there are fewer than 3 steps of a kind.

    Source: convex piecewise-linear fitting (Magnani, Boyd, Optimization and Engineering 2009).
    """
    seconds_S = np.array(seconds, np.float64)
    if len(steps) != len(seconds_S) or not ((seconds_S > 0) & np.isfinite(seconds_S)).all():
        raise ArgumentError("a table needs a time above 0 for each step")
    x_SF = np.array([_features(step) for step in steps]).reshape(-1, NUM_FEATURES)
    if all(step.requests == 1 for step in steps):
        x_SF[:, FEATURES.index("decode_row")] = 0  # what another row takes is not in the table
    is_decode_S = x_SF[:, FEATURES.index("decode_step")] > 0
    parts, error_S = [], np.zeros(len(steps))
    for kind, chosen_S in (("prompts", ~is_decode_S), ("decodes", is_decode_S)):
        if chosen_S.sum() < _LEAST_STEPS:
            raise ArgumentError(
                f"a table needs at least {_LEAST_STEPS} steps of {kind}, got {chosen_S.sum()} "
                "(decodes have new_tokens = 1)"
            )
        forms = _best_forms(x_SF[chosen_S], seconds_S[chosen_S])
        error_S[chosen_S] = _errors(forms, x_SF[chosen_S], seconds_S[chosen_S])
        parts.append(tuple(tuple(form_F.tolist()) for form_F in forms))
    return Fit(
        step_time=StepTime(tuple(parts)),
        relative_std=float(np.sqrt(np.mean(error_S**2))),
        worst=float(np.abs(error_S).max()),
    )


def _features(step: Step) -> list[float]:
    """As `step_time.FEATURES` has them."""
    new, cached, requests = step.new_tokens, step.cached_tokens, step.requests
    if new == 1:
        return [0, 0, 0, 1, requests, requests * (cached + 1), 0, 0]
    pairs = new * cached + new * (new + 1) // 2
    return [1, requests * new, requests * pairs, 0, 0, 0, 0, 0]


def _best_forms(x_SF: Floats, seconds_S: Floats) -> list[Floats]:
    """With the least squares of relative errors; fewer forms where more gain nothing."""
    best = [relative_fit(x_SF, seconds_S)]
    for count in range(2, min(_MOST_FORMS, len(x_SF) // _LEAST_STEPS) + 1):
        forms = _forms(x_SF, seconds_S, count)
        if _squares(forms, x_SF, seconds_S) < 0.9 * _squares(best, x_SF, seconds_S):
            best = forms
    return best


def _forms(x_SF: Floats, seconds_S: Floats, count: int) -> list[Floats]:
    """So many, or fewer, as long as each round of dealing makes them better."""
    dealt_S = np.argsort(np.argsort(seconds_S, kind="stable"), kind="stable")
    dealt_S = dealt_S * count // len(seconds_S)
    best: list[Floats] = []
    least = np.inf
    for _ in range(_ROUNDS):
        groups = [dealt_S == one for one in np.unique(dealt_S)]
        forms = [
            relative_fit(x_SF[group_S], seconds_S[group_S])
            for group_S in groups
            if group_S.sum() >= _LEAST_STEPS
        ]
        squares = _squares(forms, x_SF, seconds_S) if forms else np.inf
        if squares < least:
            best, least = forms, squares
        moved_S = np.argmax(x_SF @ np.array(forms).T, axis=1) if forms else dealt_S
        if (moved_S == dealt_S).all():
            break
        dealt_S = moved_S
    return best


def _errors(forms: list[Floats], x_SF: Floats, seconds_S: Floats) -> Floats:
    found_S: Floats = np.max(x_SF @ np.array(forms).T, axis=1)
    return found_S / seconds_S - 1


def _squares(forms: list[Floats], x_SF: Floats, seconds_S: Floats) -> float:
    return float(np.sum(_errors(forms, x_SF, seconds_S) ** 2))
