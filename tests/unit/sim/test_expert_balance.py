"""Experts of GPUs that have them whole."""

import pytest

from inlay.core.errors import ArgumentError
from inlay.sim.expert_balance import imbalance


def test_even_experts_are_even():
    for balanced in (False, True):
        assert imbalance(64, 8, exponent=0.0, balanced=balanced) == pytest.approx(1.0)


def test_one_expert_on_each_gpu_is_as_uneven_as_they_are():
    # Loads 1, 1/2, 1/3, 1/4: the first is 12/25 of all.
    for balanced in (False, True):
        assert imbalance(4, 4, exponent=1, balanced=balanced) == pytest.approx(4 * 12 / 25)


def test_packing_and_copies_make_it_even():
    # 12, 6, 4, 3 of 25 on two GPUs: 12 and 3 against 6 and 4.
    assert imbalance(4, 2, exponent=1, balanced=True) == pytest.approx(15 / 12.5)
    # The first one twice, 6 and 6, then 4, 3 and half of the second: 13, 12.
    assert imbalance(4, 2, exponent=1, redundant=2, balanced=True) == pytest.approx(13 / 12.5)


def test_what_copies_are_for():
    found = [
        imbalance(256, 32, exponent=0.8, balanced=False),
        imbalance(256, 32, exponent=0.8, balanced=True),
        imbalance(256, 32, exponent=0.8, redundant=32, balanced=True),
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.5 and found[2] < 1.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 3}, "not alike for 3 GPUs"),
        ({"redundant": 4}, "copies are for"),
        ({"exponent": -1}, "exponent must be at least 0"),
    ],
)
def test_bad_input(changes, message):
    arguments = {"experts": 8, "gpus": 4, "exponent": 1.0, "balanced": False} | changes
    with pytest.raises(ArgumentError, match=message):
        imbalance(arguments.pop("experts"), arguments.pop("gpus"), **arguments)
