"""Shares of time in which a GPU does nothing."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.experts.gpu_idle import Idle, NothingSeenError, covered, measure  # noqa: E402
from inlay.models.model import load_model  # noqa: E402
from tests.integration.engine.engines import DEMO  # noqa: E402
from tests.support.model_driver import ModelDriver  # noqa: E402


def test_covered_time_counts_once():
    assert covered([]) == 0
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5), (2, 2.5)]) == 4
    assert covered([(0, 10), (1, 2), (3, 4)]) == 10


def test_bounds():
    idle = Idle(span_s=10, busy_s=6, host_s=3)
    assert (idle.most_of_launches, idle.least_of_launches) == (0.4, 0.1)
    assert Idle(span_s=10, busy_s=6, host_s=7).least_of_launches == 0


def test_launches_of_all_names_count():
    idle = Idle(span_s=2, busy_s=1, seconds_of={"product": (0.5, 3), "copy": (0.5, 1)})
    assert idle.launches == 4


def test_without_a_gpu_there_is_a_trace_and_nothing_else(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    trace = tmp_path / "trace.json"
    with warnings.catch_warnings(), pytest.raises(NothingSeenError, match="no kernel of a GPU"):
        warnings.simplefilter("ignore")  # the profiler says that there is no CUDA
        measure(lambda: torch.ones(3).sum(), steps=2, trace=str(trace))
    assert "aten::sum" in trace.read_text()


@pytest.mark.gpu
def test_a_replayed_step_waits_less_for_launches():
    share = {}
    for graph in (False, True):
        model = load_model(DEMO, device="cuda", weight_format="bfloat16", graph=graph)
        driver = ModelDriver(model)
        request = driver.add([1] * 40)
        driver.step([(request, 8)])

        def step(driver=driver, request=request):
            driver.step([(request, 1)])

        for _ in range(3):
            step()
        share[graph] = measure(step, steps=20).most_of_launches
    assert np.isfinite(list(share.values())).all()
    assert share[True] < share[False]
