"""What `sim/validity` makes of measurements, before anything is measured."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.cluster.workloads import PAGE_TOKENS, Arrival
from benchmarks.sim import predicted
from benchmarks.sim.measured import Front, Steps, between, mean, slower
from benchmarks.sim.predicted import Deployment, trace_of
from benchmarks.sim.validity import _allowed, _samples
from inlay.core.instance_messages import InstanceInfo
from inlay.sim.measured_time import Fit
from inlay.sim.step_time import StepTime
from inlay.sim.world import CHUNK
from tests.unit.cluster.instance_stand_in import ENGINE, NAMESPACE

pytest.importorskip("inlay._native")

FORM = (1e-3, 1e-4, 1e-9, 1e-3, 1e-4, 1e-8)
NOTHING = Front(delay_s=0.0, token_s=0.0, divided_s=0.0, core_s=0.0)


def steps(together: float = 1.0) -> Steps:
    alone = Fit(step_time=StepTime.fitted(FORM), relative_std=0.0)
    info = InstanceInfo(
        name="a",
        run_id="1",
        role="both",
        version="0",
        engine=msgspec.structs.replace(ENGINE, num_pages=2000),
        namespace=NAMESPACE,
        key_check=b"",
        max_running=64,
        max_waiting=64,
        max_batch_tokens=1024,
        prefill_chunk=512,
    )
    return Steps(info=info, alone=alone, together=slower(alone, together))


def arrivals(each_s: float = 0.1, count: int = 40) -> list[Arrival]:
    """Prompts of 330 tokens, of which pairs have the first 160 in common; 34 ms each."""
    return [Arrival(each_s * i, [500 + i // 2] * 160 + [600 + i] * 170, 12) for i in range(count)]


def test_prompts_that_begin_alike_have_the_names_in_common() -> None:
    trace = trace_of(arrivals(count=4))
    assert trace.block_tokens == PAGE_TOKENS and len(trace.chain(0)) == 21
    same = [np.sum(trace.chain(0) == trace.chain(i)) for i in range(4)]
    assert same == [21, 10, 0, 0]


def test_what_is_in_front_delays_first_tokens_and_nothing_else() -> None:
    one = Deployment(roles=("both",), policy="inlay", cores=2)
    bare = predicted.figures(one, steps(), NOTHING, arrivals())
    behind = predicted.figures(
        one, steps(), replace(NOTHING, delay_s=0.01, token_s=1e-4, core_s=0.001), arrivals()
    )
    assert behind["mean_ttft_s"] - bare["mean_ttft_s"] == pytest.approx(0.043)
    assert behind["busy_s"] == bare["busy_s"]
    assert bare["hit_ratio"] == pytest.approx(160 / 330 / 2)
    # The first of a pair has 330 tokens to compute, the second 170.
    assert bare["mean_ttft_s"] == pytest.approx(0.025 + 0.001, abs=0.003)


def test_who_shares_cores_is_slower_while_others_compute() -> None:
    pair = Deployment(roles=("prefill", "decode"), policy="round_robin", cores=2)
    busy = replace(NOTHING, core_s=0.015)  # half a core at 33 a second
    apart, beside, crowded = (
        predicted.figures(pair, each, front, arrivals(each_s=0.03))["busy_s"]
        for each, front in ((steps(), NOTHING), (steps(1.5), NOTHING), (steps(), busy))
    )
    assert apart < crowded < 1.35 * apart and apart < beside < 1.5 * apart
    far = {
        predicted.figures(pair, each, NOTHING, arrivals())["busy_s"] for each in (steps(), steps(2))
    }
    assert len(far) == 1  # one computes only after the other
    alone = Deployment(roles=("both",), policy="inlay", cores=2)
    same = {predicted.figures(alone, steps(), f, arrivals())["busy_s"] for f in (NOTHING, busy)}
    assert len(same) == 1


def test_time_together_is_that_in_which_both_compute() -> None:
    chunks = np.zeros(5, CHUNK)
    chunks["slot"] = [0, 0, 1, 1, 1]
    chunks["start_s"] = [0.0, 4.0, 1.0, 1.0, 5.0]  # two chunks of one step
    chunks["end_s"] = [2.0, 6.0, 3.0, 3.0, 5.5]
    assert predicted.together(chunks, 2).tolist() == [1.5 / 4, 1.5 / 2.5]
    assert predicted.together(chunks[:2], 1).tolist() == [0.0]


def test_steps_between_two_times_take_the_mean() -> None:
    found = between(steps(2.0), steps(4.0))
    assert found.together.step_time.parts[0][0][:6] == pytest.approx(3 * np.array(FORM))
    assert mean([found.alone, found.together], [0.5, 0.5]).step_time.parts[0][0][
        0
    ] == pytest.approx(2 * FORM[0])


def test_errors_are_of_the_means_of_all_runs() -> None:
    def run(ttft_s: float, hits: float) -> dict[str, float]:
        return {
            "mean_ttft_s": ttft_s, "p90_ttft_s": ttft_s, "throughput": 4.0, "hit_ratio": hits,
        }  # fmt: skip

    real, twin = [run(0.9, 0.4), run(1.1, 0.41)], [run(1.2, 0.42), run(1.2, 0.42)]
    found = {one.name: one for one in _samples({}, real, twin, 1, [3])}
    assert found["mean_ttft_error"].values == pytest.approx([0.2])
    assert found["mean_ttft_error"].limit is not None
    assert found["mean_ttft_error"].limit[1] == pytest.approx(0.3)
    assert found["hit_ratio_error"].values == pytest.approx([1.5])  # points
    assert found["mean_ttft_s"].peers == {"simulated": [1.2, 1.2]}
    assert _allowed([1.0, 1.01])[1] == 0.1
    assert all(not one.values for one in _samples({}, [], [], 10, [3]))
