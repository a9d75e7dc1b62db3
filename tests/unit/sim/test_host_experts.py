"""Experts of the host beside `core.roofline` and `core.deferral`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core import deferral
from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import Machine, machine_named
from inlay.core.layer_times import decode_layers
from inlay.core.roofline import Step, parts_of, predict
from inlay.sim.capacity import capacity, tiers
from inlay.sim.operators import operators
from inlay.sim.roofline_time import step_time
from tests.unit.sim.designs import GPU, NODE, design_of, step_of

SLOW = replace(NODE, tflops={"fp32": 1, "bf16": 4})
ONE = Machine(name="one", nodes=(SLOW, SLOW), gpus=(GPU,))


def design(model="qwen3-30b-a3b", share=1.0, **changes):
    return design_of(model, **{"machine": ONE, "host_share": share, "chunk_tokens": 512} | changes)


def predicted(made, step):
    parts = parts_of(made.shape, made.formats)
    on_gpu = {part.name: 1.0 for part in parts} | {"routed experts": 1 - made.host_share}
    return parts, on_gpu, predict(made.shape, parts, made.machine, on_gpu, step)


def seconds(made, prompts=(), contexts=()):
    return float(step_time(made).seconds(step_of(made.shape, prompts, contexts))[0])


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("share", [0.3, 1.0])
@given(requests=st.integers(1, 64), context=st.integers(1, 50_000))
def test_decodes_are_those_of_the_roofline(model, share, requests, context):
    made = design(model, share)
    step = Step(new_tokens=1, cached_tokens=context - 1, requests=requests)
    found = seconds(made, contexts=[context] * requests)
    _, _, expected = predicted(made, step)
    if not any(time.limit == "link" for time in expected.times if time.name == "routed experts"):
        assert found == pytest.approx(expected.seconds, rel=1e-9)


@pytest.mark.parametrize(("chunk", "limit"), [(16, "bandwidth"), (8192, "link")])
def test_experts_are_brought_for_long_chunks(chunk, limit):
    made = design(chunk_tokens=chunk)
    _, _, expected = predicted(made, Step(new_tokens=chunk))
    times = [time for time in expected.times if time.name == "routed experts" and not time.hidden]
    assert [time.limit for time in times if time.seconds] == [limit]
    # All experts are brought, and nearly all are chosen.
    assert seconds(made, prompts=[(chunk, 0)]) == pytest.approx(expected.seconds, rel=0.01)


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("deferred", [1, 3, 6])
def test_deferral_takes_what_its_layers_take(requests, deferred):
    made = design("deepseek-v3", deferred_experts=deferred)
    step = Step(new_tokens=1, cached_tokens=4095, requests=requests)
    parts, on_gpu, whole = predicted(made, step)
    layers, after_s = decode_layers(made.shape, parts, made.machine, on_gpu, step)
    expected = deferral.step_time(layers, deferred, after_s=after_s).seconds
    found = seconds(made, contexts=[4096] * requests)
    assert found < whole.seconds
    assert found == pytest.approx(expected, rel=0.05)


def test_deferral_of_nothing_changes_nothing():
    made = design(deferred_experts=0)
    assert step_time(made) == step_time(design())


@pytest.mark.parametrize("prompts", [[], [(8192, 0)]])
def test_several_gpus_beside_a_host_divide_all_but_its_experts(prompts):
    """Sums cost nothing here; each link brings a quarter, which the memory keeps up with."""
    four = replace(ONE, gpus=(replace(GPU, peer_gbs=1e9),) * 4)
    contexts = [] if prompts else [50_000] * 64
    made = design(chunk_tokens=8192, tensor=4, machine=four)
    whole = design(share=0.0, machine=four, tensor=4)
    rest_s = seconds(whole, prompts, contexts) - experts_s(whole, prompts, contexts)
    crossing = 2 * 48 * 2048 * 4 / 50e9 * len(contexts)
    if prompts:
        beside_s = 48 * 128 * made.shape.expert_parameters * 2 / 200e9
    else:
        step = step_of(made.shape, contexts=contexts)
        beside_s = 48 * step[0, 7] * made.shape.expert_parameters * 2 / 400e9
    found = seconds(made, prompts, contexts)
    assert found == pytest.approx(rest_s + crossing + beside_s, rel=1e-4)


def experts_s(made, prompts, contexts):
    """Of routed experts on GPUs."""
    step = step_of(made.shape, prompts, contexts)[0]
    return max(float(row_F @ step) for row_F in operators(made)["routed experts"])


def test_memory_of_experts_on_the_host():
    machine = machine_named("xeon-spr-2s+h20")
    made = design("deepseek-v3", machine=machine)
    experts = 58 * 256 * 3 * 7168 * 2048 * (1 + 4 / 128)
    whole = capacity(design_of("deepseek-v3")).weights_bytes
    assert capacity(made).weights_bytes == pytest.approx(whole - experts)
    assert tiers(made)[0].tokens == int((1024e9 - 2e9 - experts) // 70_272)
    with pytest.raises(ResourceError, match=r"67\d\.\d GB of experts on the host, which has 510"):
        capacity(replace(made, machine=machine_named("xeon-spr+h20")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 1.5}, "must be in 0..1"),
        ({"model": "qwen3-8b"}, ": 0 experts are"),
        ({"pipeline": 2}, "and nothing else"),
        ({"tensor": 4, "whole_experts": True}, "and nothing else"),
        ({"tensor": 4}, "for 4 hosts, not for one"),
        ({"share": 0.0, "deferred_experts": 2}, "only those on the host"),
    ],
)
def test_designs_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        design(**changes)
