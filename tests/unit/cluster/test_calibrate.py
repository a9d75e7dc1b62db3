"""What a calibration makes of the steps that it has seen."""

import numpy as np
import pytest

from inlay.cluster.calibrate import _learned
from inlay.cluster.timing import features
from inlay.core.errors import EngineError
from inlay.core.instance_messages import InstanceInfo, StepSample
from tests.unit.cluster.instance_stand_in import ENGINE, NAMESPACE

# A small model on one thread: attention to a context of 2,000 tokens takes two thirds of a chunk.
SECONDS = np.array([7e-4, 6.5e-5, 5.7e-8, 8e-4, 6.5e-5, 3.3e-7])
CHUNK = 128
INFO = InstanceInfo(
    name="a",
    run_id="1",
    role="both",
    version="0",
    engine=ENGINE,
    namespace=NAMESPACE,
    key_check=b"",
    max_running=64,
    max_waiting=64,
    max_batch_tokens=1024,
    prefill_chunk=CHUNK,
)


def calibration_steps() -> list[StepSample]:
    """As the loads of a calibration give them, with 5 % of noise: long prompts in chunks, batches
    that decode, few steps of other kinds."""
    shapes = [(16, 136, 0, 0), (64, 2080, 0, 0)]
    for start in range(0, 2048, CHUNK):
        shapes.append((CHUNK, CHUNK * (2 * start + CHUNK + 1) // 2, 0, 0))
    for rows in (1, 2, 4, 8, 16, 32, 64):
        shapes += [(16 * rows, 136 * rows, 0, 0)]
        shapes += [(0, 0, rows, rows * (16 + step)) for step in range(15)]
    shapes += [(0, 0, 4, 4 * (1024 + step)) for step in range(15)]
    shapes *= 3
    rng = np.random.default_rng(0)
    x_SF = features([StepSample(*shape, seconds=0.0) for shape in shapes])
    seconds_S = x_SF @ SECONDS * rng.lognormal(0, 0.05, len(shapes))
    return [
        StepSample(*shape, seconds=float(seconds))
        for shape, seconds in zip(shapes, seconds_S, strict=True)
    ]


def test_all_steps_are_believed_however_wrong_the_first_guess_is() -> None:
    found = _learned(INFO, calibration_steps())
    assert found.model.coefficients == pytest.approx(SECONDS, rel=0.1)
    assert found.model.relative_std < 0.08 and found.median_error < 0.05


def test_an_instance_that_reports_no_step_cannot_be_calibrated() -> None:
    with pytest.raises(EngineError, match="a has reported no step"):
        _learned(INFO, [])
