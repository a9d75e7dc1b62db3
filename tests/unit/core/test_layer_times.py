"""The roofline's times, cut into layers."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.deferral import LayerTime, choose_deferred, gain, most_deferred, step_time
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.layer_times import decode_layers
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Formats, Part, Step, parts_of, predict

INT4 = Formats(experts="int4:g32", mlp="int8", attention="int8", head="int8")
MACHINE = machine_named("xeon-spr-2s+4090")


def known(name: str) -> ModelShape:
    config = known_config(name)
    assert config is not None
    return shape_of(config)


MODELS = {name: known(name) for name in ("deepseek-v3", "qwen3-30b-a3b", "gpt-oss-20b")}


def on_gpu(parts: Sequence[Part], experts: float) -> dict[str, float]:
    return {part.name: 1.0 for part in parts} | {"routed experts": experts, "embedding": 0.0}


def layers_of(
    name: str, experts: float = 0.0, *, requests: int = 1, cached: int = 0
) -> tuple[list[LayerTime], float]:
    shape, step = MODELS[name], Step(new_tokens=1, cached_tokens=cached, requests=requests)
    parts = parts_of(shape, INT4)
    return decode_layers(shape, parts, MACHINE, on_gpu(parts, experts), step)


@given(
    name=st.sampled_from(sorted(MODELS)),
    experts=st.floats(0, 0.95),
    cached=st.integers(0, 30_000),
    requests=st.integers(1, 16),
)
def test_without_deferral_a_step_takes_what_is_predicted(
    name: str, experts: float, cached: int, requests: int
) -> None:
    shape, step = MODELS[name], Step(new_tokens=1, cached_tokens=cached, requests=requests)
    parts = parts_of(shape, INT4)
    share = on_gpu(parts, experts)
    layers, after_s = decode_layers(shape, parts, MACHINE, share, step)
    predicted = predict(shape, parts, MACHINE, share, step)
    brought = not any(t.name == "routed experts" and t.device == "cpu" for t in predicted.times)
    assert len(layers) == (0 if brought else len(shape.sparse_layers))
    if not brought:
        assert step_time(layers, 0, after_s=after_s).seconds == pytest.approx(predicted.seconds)


def test_dense_layers_pass_before_the_first_mixture_layer() -> None:
    (first, second, *_), after_s = layers_of("deepseek-v3")
    dense_mlp = 3 * 7168 * 18432 / 1008e9  # of one byte a weight
    assert first.before_s - 4 * second.before_s == pytest.approx(3 * dense_mlp, rel=0.03)
    assert after_s > 0
    assert first.host_experts == 8
    assert layers_of("deepseek-v3", 0.5)[0][0].host_experts == 4


def test_host_time_of_one_token_goes_by_experts_of_many_by_distinct_ones() -> None:
    one = layers_of("deepseek-v3")[0][0]
    assert one.host_s(6) == pytest.approx(6 * one.host_s(1))
    many = layers_of("deepseek-v3", requests=64)[0][0]
    assert many.host_s(6) < 5 * many.host_s(1)


def test_deferral_of_a_large_model_on_a_small_gpu() -> None:
    layers, after_s = layers_of("deepseek-v3", cached=8191)
    chosen = choose_deferred(layers, most_deferred(8), after_s=after_s)
    assert 1 <= chosen <= 6
    assert gain(layers, chosen, after_s=after_s) > 1.2
    assert step_time(layers, chosen, after_s=after_s).host_busy > 0.9


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        ("xeon-spr-2s", {}),
        ("xeon-spr-2s+4090", {}),
        ("xeon-spr-2s+4090", {"attention projections": 0.5}),
        ("xeon-spr-2s+4090", {"routed experts": 1.0}),
    ],
)
def test_no_layers_where_nothing_is_shared(machine: str, share: Mapping[str, float]) -> None:
    shape = MODELS["qwen3-30b-a3b"]
    parts = parts_of(shape, INT4)
    given_share = {**on_gpu(parts, 0.0), **share} if share else {}
    found = decode_layers(shape, parts, machine_named(machine), given_share, Step(new_tokens=1))
    assert found == ([], 0.0)
