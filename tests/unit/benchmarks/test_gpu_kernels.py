"""kernels/gpu: its points, and how times and limits are taken; kernels themselves need a GPU."""

import time

import pytest
import torch

from benchmarks.case import Run, load_case
from benchmarks.kernels.gpu import points
from benchmarks.kernels.gpu_limits import GpuLimits, measure_limits
from benchmarks.kernels.gpu_time import Timed, rate, take_turns

CPU = torch.device("cpu")


@pytest.mark.parametrize("quick", [False, True])
def test_every_point_is_declared_once(quick: bool) -> None:
    case = load_case("kernels/gpu")
    found = points(Run(case=case, quick=quick))
    for name, point in found:
        declared = [one for one in case.measurements if one.name == name and one.covers(point)]
        assert len(declared) == 1, f"{name} {point} is declared {len(declared)} times"
    kernels = {point.get("kernel") for _, point in found}
    assert {"linear", "experts", "attention", "latent_attention", "route", "rope"} <= kernels


def test_the_roof_is_the_longer_of_bytes_and_operations() -> None:
    limits = GpuLimits(copy_gbs=4000, products_tflops=800, link_gbs=50)
    assert limits.roof_us(4e9, 0) == pytest.approx(1000)
    assert limits.roof_us(0, 8e11) == pytest.approx(1000)
    assert limits.roof_us(4e9, 4e11) == limits.roof_us(2e9, 8e11) == pytest.approx(1000)


def test_sides_take_turns() -> None:
    order: list[str] = []
    sides = {
        name: Timed([lambda name=name: order.append(name)] * 2, CPU) for name in ("ours", "peer")
    }
    found = take_turns(sides, 3)
    assert order == ["ours", "ours", "peer", "peer"] * 3
    assert {name: len(times) for name, times in found.items()} == {"ours": 3, "peer": 3}


def test_a_time_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert Timed([lambda: None] * 5, CPU).microseconds() == pytest.approx(0.1e6)


def test_a_rate_is_the_median_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 14.0, 20.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert rate(lambda: None, 6.0, CPU) == 3.0


def test_limits_are_taken_of_what_is_there() -> None:
    limits = measure_limits(CPU)
    assert min(limits.copy_gbs, limits.products_tflops, limits.link_gbs) > 0
