"""What a simulation comes to, against figures computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass
from inlay.sim.figures import attainment, figures
from inlay.sim.gaps import NUM_BINS
from inlay.sim.results import Results, ResultsFile
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.step_time import StepTime
from inlay.sim.world import InstanceConfig

INSTANCE = InstanceConfig(step_time=StepTime.fitted([1e-3] * 6), num_pages=100)
NAN = float("nan")


def counted(gaps: list[float]) -> NDArray[np.int64]:
    bins = np.array(gaps, np.float32).view(np.uint32) >> 16
    return np.bincount(bins, minlength=NUM_BINS)


@pytest.fixture
def results() -> Results:
    """Four requests: the second is refused, the last one has a single token."""
    return Results(
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0]),
        first_s=np.array([1.0, NAN, 5.0, 4.0]),
        end_s=np.array([3.0, NAN, 6.0, 4.0]),
        tbt_s=np.array([0.3, NAN, 0.1, 0.0]),
        longest_gap_s=np.array([0.4, NAN, 0.1, 0.0]),
        cached_tokens=np.array([0, -1, 50, 100]),
        host_tokens=np.array([0, -1, 20, 30]),
        disk_tokens=np.array([0, -1, 0, 10]),
        store_tokens=np.array([0, -1, 0, 50]),
        preemptions=np.array([1, -1, 0, 0]),
        prefill=np.array([0, -1, 1, 1]),
        decode=np.array([0, -1, 1, 1]),
        expected_ttft_s=np.array([1.0, NAN, 1.0, 1.0]),
        refusals={1: "full for 2.5 s"},
        input_tokens=np.array([100, 100, 100, 100], np.int32),
        output_tokens=np.array([11, 50, 6, 1], np.int32),
        group=np.array([0, 0, 1, 1], np.uint8),
        groups=("chat", "batch"),
        busy_s=np.array([3.0, 1.5]),
        steps=np.array([10, 4]),
        sent_bytes=np.array([0.0, 7.0]),
        copied_blocks=2,
        tier_bytes=np.array(
            [[[1.0, 2.0], [0.0, 0.0], [0.0, 5.0]], [[3.0, 4.0], [0.0, 0.0], [0.0, 5.0]]]
        ),
        lost_blocks=7,
        gap_counts=counted([0.2] * 9 + [0.4] + [0.1] * 5),
        role_changes=3,
    )


def scenario() -> Scenario:
    kind = Kind(instance=INSTANCE, name="all", count=2, gpus=8, price_usd=1000.0)
    return Scenario(
        kinds=(kind,),
        slo=SloClass(ttft_s=2.0),
        groups={"batch": SloClass(name="batch", ttft_s=10.0, itl_s=0.05)},
    )


def test_figures_by_hand(results: Results) -> None:
    found = figures(results, scenario(), years=1.0)
    assert (found["simulated"], found["requests"], found["finished"]) == (True, 4, 3)
    assert found["refused"] == {"full for * s": 1}
    assert found["duration_s"] == 6.0
    assert found["ttft_s"]["mean"] == pytest.approx((1 + 3 + 1) / 3)
    assert found["ttft_s"]["p50"] == 1.0
    # The one with a single token has no gap.
    assert found["tbt_s"]["mean"] == pytest.approx(0.2)
    assert found["itl_s"]["mean"] == pytest.approx(3 / 15)
    of_gaps = [found["itl_s"][name] for name in ("p50", "p90", "p99")]
    assert of_gaps == pytest.approx([0.2, 0.2, 0.4], rel=0.004)
    assert found["role_changes"] == 3
    assert found["tpot_s"]["mean"] == pytest.approx((2 / 10 + 1 / 5) / 2)
    assert found["end_to_end_s"]["mean"] == pytest.approx((3 + 4 + 1) / 3)
    assert found["hit_ratio"] == 0.5 and found["cached_tokens"] == 150
    assert found["tokens_per_s"] == (300 + 18) / 6
    # Refused: missed. `batch` misses one by its gap, and keeps the one without gaps.
    assert found["slo"]["default"] == {"requests": 2, "kept": 1, "share": 0.5}
    assert found["slo"]["batch"] == {"requests": 2, "kept": 1, "share": 0.5}
    assert found["goodput_per_s"] == pytest.approx(2 / 6)
    assert found["gpu_seconds"] == 2 * 8 * 6
    assert found["price_usd"] == 2000
    year_s = 365.25 * 86400
    assert found["usd_per_million_tokens"] == pytest.approx(2000 * 6 / year_s / 318 * 1e6)
    assert found["instances"]["all"]["busy_share"] == pytest.approx(2.25 / 6)
    assert found["instances"]["all"]["steps"] == 14
    tiers = found["tiers"]
    hits = {name: tier["hit_tokens"] for name, tier in tiers.items()}
    assert hits == {"device": 40, "host": 50, "disk": 10, "store": 50}
    assert tiers["host"]["hit_ratio"] == pytest.approx(50 / 300)
    assert (tiers["host"]["read_bytes"], tiers["host"]["written_bytes"]) == (4, 6)
    assert "read_bytes" not in tiers["device"] and found["lost_blocks"] == 7


def test_a_price_that_nobody_knows(results: Results) -> None:
    one = scenario()
    known = replace(one.kinds[0], count=1)
    unknown = replace(one, kinds=(known, Kind(instance=INSTANCE)))
    found = figures(results, unknown)
    assert found["price_usd"] is None and found["usd_per_million_tokens"] is None


def test_attainment_counts_refused_ones_as_missed(results: Results) -> None:
    assert attainment(results, "ttft_s", [0.5, 1.0, 2.9, 3.0]) == [0.0, 0.5, 0.5, 0.75]


def split(results: Results, at: int) -> list[Results]:
    """The first `at` requests, and the others; instances did all of it in the second part."""
    columns = ("arrival_s", "first_s", "end_s", "tbt_s", "longest_gap_s", "cached_tokens",
               "host_tokens", "disk_tokens", "store_tokens", "preemptions", "prefill", "decode",
               "expected_ttft_s", "input_tokens", "output_tokens", "group")  # fmt: skip
    parts = []
    for place, rows in enumerate((slice(at), slice(at, None))):
        kept = {name: getattr(results, name)[rows] for name in columns}
        refusals = {
            number - at * place: reason
            for number, reason in results.refusals.items()
            if (number >= at) == place
        }
        idle = {} if place else dict(busy_s=np.zeros(2), steps=np.zeros(2, int))
        nothing = {} if place else dict(sent_bytes=np.zeros(2), copied_blocks=0)
        unmoved = {} if place else dict(tier_bytes=np.zeros((2, 3, 2)), lost_blocks=0)
        silent = {} if place else dict(gap_counts=np.zeros(NUM_BINS, int), role_changes=0)
        parts.append(
            replace(results, **kept, refusals=refusals, **idle, **nothing, **unmoved, **silent)
        )
    return parts


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_figures_of_parts_in_a_file_are_those_of_the_whole(results: Results, at: int) -> None:
    whole = figures(results, scenario())
    filed = ResultsFile(iter(split(results, at)))
    in_parts = figures(filed, scenario())
    assert in_parts.keys() == whole.keys()
    for name, value in whole.items():
        if isinstance(value, dict) and "mean" in value:
            assert in_parts[name].pop("mean") == pytest.approx(value.pop("mean"))
        assert in_parts[name] == value, name
    for objective in ("ttft_s", "tbt_s"):
        seconds = [0.1, 0.3, 1.0, 3.0]
        assert attainment(filed, objective, seconds) == attainment(results, objective, seconds)


def test_parts_are_joined(results: Results) -> None:
    joined = Results.joined(split(results, 2))
    assert joined.refusals == results.refusals and joined.copied_blocks == 2
    np.testing.assert_array_equal(joined.end_s, results.end_s)
    np.testing.assert_array_equal(joined.busy_s, results.busy_s)


def test_a_file_of_results_is_gone_through_at_two_places_at_a_time(results: Results) -> None:
    filed = ResultsFile(split(results, 1))
    pairs = list(zip(filed.parts(), filed.parts(), strict=True))
    assert [len(one.arrival_s) for one, _ in pairs] == [1, 3]
    assert all((one.group == other.group).all() for one, other in pairs)
