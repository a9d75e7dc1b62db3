"""A plugin of pytest that writes down how far numbers were from what tests compare them with.

    pytest -p benchmarks.gpu_day.error_sizes

The file that `GPU_DAY_ERRORS` names gets a line for each test that compared something: its largest
error, and where the comparison has a tolerance the largest share of it.
"""

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

VARIABLE = "GPU_DAY_ERRORS"
NORMS = "assert_near"
"""Of tests that compare the norms of all values together."""
RELATIVE = "relative_error"
"""Returns it."""

_seen: dict[str, float] = {}


def pytest_configure() -> None:
    """Comparisons of whole tensors, by name wherever they are called."""
    torch.testing.assert_close = _noting_close(torch.testing.assert_close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Comparisons that test modules have by a name of their own."""
    for module in {getattr(item, "module", None) for item in items} - {None}:
        for name, noting in ((NORMS, _noting_norms), (RELATIVE, _noting_result)):
            if hasattr(module, name):
                setattr(module, name, noting(getattr(module, name)))


def pytest_runtest_setup() -> None:
    """A test begins with none."""
    _seen.clear()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Write down what it saw."""
    file = os.environ.get(VARIABLE)
    if file and _seen:
        # Processes of pytest-xdist append to one file: a line is written at once.
        with Path(file).open("a") as to:
            to.write(json.dumps({"test": item.nodeid, **_seen}) + "\n")


def _note(name: str, value: float) -> None:
    _seen[name] = float(f"{max(value, _seen.get(name, 0.0)):.4g}")


def _noting_close(compare: Callable[..., None]) -> Callable[..., None]:
    @wraps(compare)
    def noting(actual: Any, expected: Any, *args: Any, **options: Any) -> None:
        if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor):
            if actual.shape == expected.shape and actual.numel():
                error = (actual.double() - expected.double()).abs()
                _note("absolute", float(error.max()))
                if "atol" in options:
                    allowed = options["atol"] + options.get("rtol", 0) * expected.double().abs()
                    _note("of_tolerance", float((error / allowed.clamp(min=1e-300)).max()))
        compare(actual, expected, *args, **options)

    return noting


def _noting_norms(compare: Callable[..., None]) -> Callable[..., None]:
    @wraps(compare)
    def noting(found: torch.Tensor, expected: torch.Tensor, *args: Any) -> None:
        error = (found.double() - expected.double()).norm() / expected.double().norm()
        _note("of_norm", float(error))
        compare(found, expected, *args)

    return noting


def _noting_result(compare: Callable[..., float]) -> Callable[..., float]:
    @wraps(compare)
    def noting(*args: Any) -> float:
        error = compare(*args)
        _note("relative", error)
        return error

    return noting
