"""Steps by hand and by formula, and what must hold for all layers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.deferral import (
    NEAR_BEST,
    LayerTime,
    choose_deferred,
    gain,
    most_deferred,
    step_time,
)


def layer(
    before_s: float,
    expert_s: float = 1.0,
    *,
    fixed_s: float = 0.0,
    experts: float = 8,
    **other: float,
) -> LayerTime:
    return LayerTime(
        before_s=before_s,
        host_experts=experts,
        host_s=lambda count: fixed_s + expert_s * count,
        **other,
    )


def alike(layers: int, before_s: float, expert_s: float, experts: int, deferred: int) -> float:
    """Seconds of layers that are alike, with nothing beside the host and no time to hand over."""
    beside = max(before_s, deferred * expert_s)
    immediate = (experts - deferred) * expert_s
    return before_s + immediate + (layers - 2) * (beside + immediate) + beside + experts * expert_s


def test_two_layers_by_hand() -> None:
    layers = [
        layer(3, 1, experts=4, beside_s=2, ask_s=0.5, answer_s=0.25),
        layer(3, 1, experts=4, beside_s=6, ask_s=0.5, answer_s=0.25),
    ]
    # 3 | ask 3.5 | host to 7.5, device beside it to 5.5 | 7.75 | 10.75 | ask 11.25 | host to 15.25,
    # device beside it to 17.25 | 17.5, and 1 behind all layers
    plain = step_time(layers, 0, after_s=1)
    assert plain.seconds == pytest.approx(18.5)
    assert plain.device_s == pytest.approx(3 + 0.5 + 2 + 0.25 + 3 + 0.5 + 6 + 0.25 + 1)
    assert plain.host_s == 8
    assert plain.host_busy == pytest.approx(8 / 18.5)
    # 3 | 3.5 | answer at 5.5 for two | 5.75, host goes on to 7.5 | 8.75 | ask 9.25 | host to 13.25,
    # device beside it to 15.25 | 15.5
    deferring = step_time(layers, 2, after_s=1)
    assert deferring.seconds == pytest.approx(16.5)
    assert (deferring.device_s, deferring.host_s) == (plain.device_s, plain.host_s)
    assert gain(layers, 2, after_s=1) == pytest.approx(18.5 / 16.5)


def test_immediate_experts_wait_for_deferred_ones_of_the_layer_before() -> None:
    layers = [layer(1, 1), layer(1, 1)]
    # 1 | answer at 3 | host goes on to 9, asked at 4 | 17: what the host takes, all of it in a row
    assert step_time(layers, 6).seconds == pytest.approx(1 + 16)


def test_a_layer_whose_experts_are_all_resident_neither_asks_nor_ends_deferral() -> None:
    resident = LayerTime(before_s=1, beside_s=2, host_experts=0, host_s=lambda _: float("nan"))
    with_resident = step_time([layer(8), resident, layer(8)], 6)
    # 8 | answer at 10 | 13, host to 16 | 21 | 29
    assert with_resident.seconds == pytest.approx(29)
    # The layer in front of one that does not ask is the last that asks: it defers nothing.
    assert step_time([layer(8), resident], 6) == step_time([layer(8), resident], 0)
    alone = step_time([resident], 6)
    assert (alone.seconds, alone.host_s, alone.device_busy) == (3, 0, 1)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("deferred", range(7))
def test_layers_alike_by_formula(ratio: float, deferred: int) -> None:
    layers = [layer(8 * ratio)] * 58
    assert step_time(layers, deferred).seconds == pytest.approx(
        alike(58, 8 * ratio, 1, 8, deferred)
    )


def test_a_device_as_slow_as_the_host_gains_most() -> None:
    """A layer took 8 + 8; with six of eight deferred 8 + 2, in all layers but the last."""
    gains = {ratio: gain([layer(8 * ratio)] * 58, 6) for ratio in (0.5, 1.0, 2.0)}
    assert gains[1.0] == pytest.approx(1.6, rel=0.02)
    assert gains[0.5] == pytest.approx(12 / 8, rel=0.02)
    assert gains[2.0] == pytest.approx(24 / 18, rel=0.02)


def test_chosen_are_the_fewest_that_keep_the_host_busy() -> None:
    # Between two layers the device takes as long as the host for 3 experts.
    layers = [layer(3)] * 58
    assert choose_deferred(layers, most_deferred(8)) == 3
    assert step_time(layers, 3).host_busy > 0.99 > step_time(layers, 2).host_busy
    assert choose_deferred(layers, 2) == 2  # a user's limit


def test_nothing_is_deferred_where_it_gains_nothing() -> None:
    assert choose_deferred([], 6) == 0
    assert choose_deferred([layer(0)] * 58, 6) == 0  # the device takes no time
    assert choose_deferred([layer(3, beside_s=99)] * 58, 6) == 0  # it always waits for itself
    assert choose_deferred([layer(3)], 6) == 0  # the last mixture layer
    assert choose_deferred([layer(3, 0.01, fixed_s=5)] * 58, 6) == 0  # two calls cost more than one
    assert choose_deferred([layer(3)] * 58, most_deferred(2)) == 0
    assert gain([], 0) == 1


def test_two_experts_of_a_token_are_immediate() -> None:
    assert [most_deferred(experts) for experts in (0, 1, 2, 3, 8)] == [0, 0, 0, 1, 6]


times = st.floats(min_value=0, max_value=10)
layers_of_a_model = st.lists(
    st.builds(
        layer,
        before_s=times,
        expert_s=times,
        fixed_s=st.one_of(st.just(0.0), times),
        experts=st.one_of(st.just(0.0), st.floats(min_value=0, max_value=8)),
        beside_s=times,
        ask_s=times,
        answer_s=times,
    ),
    max_size=12,
)


@given(layers=layers_of_a_model, most=st.integers(0, 6), after_s=times)
def test_what_is_chosen_is_never_slower(
    layers: Sequence[LayerTime], most: int, after_s: float
) -> None:
    chosen = choose_deferred(layers, most, after_s=after_s)
    seconds = [step_time(layers, d, after_s=after_s).seconds for d in range(most + 1)]
    assert 0 <= chosen <= most
    assert seconds[chosen] <= seconds[0]
    assert seconds[chosen] <= NEAR_BEST * min(seconds)
    assert all(one > NEAR_BEST * min(seconds) for one in seconds[:chosen])
    assert gain(layers, chosen, after_s=after_s) >= 1


@given(layers=layers_of_a_model, deferred=st.integers(0, 6), after_s=times)
def test_a_step_is_no_shorter_than_the_work_of_either(
    layers: Sequence[LayerTime], deferred: int, after_s: float
) -> None:
    step = step_time(layers, deferred, after_s=after_s)
    assert max(step.device_s, step.host_s) <= step.seconds * (1 + 1e-9)
    assert step.seconds <= (step.device_s + step.host_s) * (1 + 1e-9)
    assert step.device_busy <= 1 + 1e-9
    assert step.host_busy <= 1 + 1e-9


@given(layers=layers_of_a_model, deferred=st.integers(0, 5))
def test_each_more_helps_or_changes_nothing_if_a_call_costs_nothing(
    layers: Sequence[LayerTime], deferred: int
) -> None:
    def without_fixed(one: LayerTime) -> LayerTime:
        each = one.host_s(2.0) - one.host_s(1.0)
        return replace(one, host_s=lambda count: each * count)

    linear = [without_fixed(one) for one in layers]
    fewer, more = (step_time(linear, count).seconds for count in (deferred, deferred + 1))
    assert more <= fewer * (1 + 1e-9)
