"""Steps of designs beside what `core.roofline` says of the same ones, and beside published ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.core.hardware import Machine, machine_named
from inlay.core.roofline import Step, parts_of, predict
from inlay.sim.design import NO_COSTS, Costs
from inlay.sim.exchanges import routed
from inlay.sim.roofline_time import step_time
from tests.unit.sim.designs import GPU, HOST, NODE, design_of, known, step_of

CHUNK = 128  # of which latents of DeepSeek are met as they are


def seconds(design, prompts=(), contexts=()):
    return float(step_time(design).seconds(step_of(design.shape, prompts, contexts))[0])


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "glm-4.5-air"]
)
@given(
    new=st.sampled_from([1, CHUNK]),
    cached=st.integers(128, 200_000),  # the longest window of these
    requests=st.integers(1, 300),
)
def test_steps_of_one_gpu_are_those_of_the_roofline(model, new, cached, requests):
    design = design_of(model, chunk_tokens=CHUNK)
    step = Step(new_tokens=new, cached_tokens=cached, requests=requests)
    parts = parts_of(design.shape, design.formats)
    alone = Machine(name="alone", nodes=(NODE,), gpus=(GPU,))
    expected = predict(design.shape, parts, alone, {part.name: 1.0 for part in parts}, step).seconds
    if new == 1:
        found = seconds(design, contexts=[cached + 1] * requests)
    else:
        found = seconds(design, prompts=[(new, cached)] * requests)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_short_chunk_is_bound_by_computing():
    """The forms read less for it than there is to read: no matter from 50 tokens on, with 4 queries
    for each head of keys and values and 200 operations for each byte."""
    design = design_of("llama-3.1-8b", chunk_tokens=8192)
    parts = parts_of(design.shape, design.formats)
    alone = Machine(name="alone", nodes=(NODE,), gpus=(GPU,))
    for new in (64, 500, 3000):
        step = Step(new_tokens=new, cached_tokens=30_000)
        expected = predict(
            design.shape, parts, alone, {part.name: 1.0 for part in parts}, step
        ).seconds
        assert seconds(design, prompts=[(new, 30_000)]) == pytest.approx(expected, rel=1e-9)


def test_prompts_and_decodes_of_a_step_share_its_weights():
    design = design_of("llama-3.1-8b")
    prompt, decode = seconds(design, prompts=[(4000, 0)]), seconds(design, contexts=[9000] * 8)
    mixed = seconds(design, prompts=[(4000, 0)], contexts=[9000] * 8)
    reading = 8.03e9 * 2 / 2e12
    assert prompt < mixed < prompt + decode - 0.85 * reading


def test_latents_are_expanded_where_that_is_less():
    design = design_of(
        "deepseek-v3", chunk_tokens=8192, costs=replace(NO_COSTS, expands_latents=True)
    )
    prompt = [(8192, 24_576)]
    absorbed = seconds(replace(design, costs=NO_COSTS), prompts=prompt)
    pairs = 8192 * 24_576 + 8192 * 8193 / 2
    layers, heads = 61, 128
    # A pair takes 2 (2 x 512 + 64) operations of a head as it is, 2 (192 + 128) expanded; all
    # 32,768 latents are expanded, where only the new ones were.
    less = 2 * layers * heads * pairs * (1088 - 320)
    less -= 2 * layers * heads * 512 * 256 * 24_576
    assert absorbed - seconds(design, prompts=prompt) == pytest.approx(less / 400e12, rel=1e-6)
    assert seconds(design, contexts=[5000]) == seconds(
        replace(design, costs=NO_COSTS), contexts=[5000]
    )
    short = replace(design, chunk_tokens=128)
    assert step_time(short) == step_time(replace(short, costs=NO_COSTS))


def test_tensor_parallel_gpus_divide_but_copy_few_heads_and_latents():
    contexts = [100_000] * 64

    def core_s(model, tensor):
        """Of contexts alone, without what is exchanged."""
        design = design_of(model, tensor=tensor)
        return seconds(design, contexts=contexts) - seconds(design, contexts=[1] * 64)

    assert core_s("llama-3.1-70b", 8) == pytest.approx(core_s("llama-3.1-70b", 1) / 8)
    # 8 heads of keys and values: with 16 GPUs each has one, as with 8.
    assert core_s("llama-3.1-70b", 16) == pytest.approx(core_s("llama-3.1-70b", 8))
    # Latents are whole on each GPU; what is computed of them is divided, so reading counts.
    kv = 61 * 576 * 2
    assert core_s("deepseek-v3", 8) == pytest.approx(64 * 99_999 * kv / 2e12)


def test_sums_of_tensor_parallel_gpus():
    """Two in each layer: 7/8 of the rows there and back, from each GPU."""
    free = replace(GPU, peer_gbs=1e9)
    fast = design_of("llama-3.1-70b", tensor=8, machine=replace(HOST, gpus=(free,) * 8))
    slow = design_of("llama-3.1-70b", tensor=8)
    late = replace(slow, costs=replace(NO_COSTS, exchange_s=1e-5))
    step = [(8192, 0)]
    sums = 2 * 80 * 2 * 7 / 8 * 8192 * 8192 * 2 / 200e9
    assert seconds(slow, step) - seconds(fast, step) == pytest.approx(sums, rel=1e-5)
    assert seconds(late, step) - seconds(slow, step) == pytest.approx(160e-5)
    # Across machines each GPU has but its share of the network.
    two = design_of("llama-3.1-70b", tensor=16)
    sums = 2 * 80 * 2 * 15 / 16 * 8192 * 8192 * 2 / 25e9
    assert seconds(two, step) > sums


def test_a_pipeline_has_a_part_of_the_step_in_each_stage():
    """What is read is read for each part; the rest is divided."""
    alone = design_of("llama-3.1-8b")
    staged = design_of("llama-3.1-8b", pipeline=4)
    hops = 3 * 4096 * 2 / 200e9
    assert seconds(staged, [(2048, 0)] * 4) == pytest.approx(
        seconds(alone, [(2048, 0)]) + hops * 2048, rel=1e-9
    )
    decodes = [3000] * 32
    assert seconds(staged, contexts=decodes) == pytest.approx(
        seconds(alone, contexts=decodes[:8]) + hops * 8, rel=1e-9
    )


def test_groups_have_attention_apart_and_experts_together():
    """With as many tokens for each group, each GPU does what it would alone; experts are spread."""
    model, contexts = "qwen3-30b-a3b", [4000] * 32
    apart = design_of(model, data=8, whole_experts=True)
    exchange = float(
        np.max(np.array(routed(apart)) @ step_of(apart.shape, contexts=contexts * 8)[0])
    )
    found = seconds(apart, contexts=contexts * 8) - exchange
    shape = known(model)
    experts_s = {
        groups: shape.layers
        * shape.expert_parameters
        * 2
        / 2e12
        * step_of(shape, contexts=contexts * groups)[0, 7]
        for groups in (1, 8)
    }
    alone = seconds(design_of(model), contexts=contexts)
    assert found == pytest.approx(alone - experts_s[1] + experts_s[8] / 8)
    # Each row goes to 8 experts, of which 7 of 8 are elsewhere, and comes back, in bf16.
    sent = 48 * 32 * 8 * 7 / 8 * 2048 * 4 / 200e9
    assert exchange == pytest.approx(sent)


def test_rows_of_prompts_cross_the_network_once_per_machine():
    design = design_of("deepseek-v3", data=16, whole_experts=True)
    step = step_of(design.shape, prompts=[(4096, 0)] * 16)
    took = np.array(routed(design)) @ step[0]
    # Of two machines a token's 8 experts are on both but for 1 in 256 twice.
    hosts = 2 * (1 - 0.5**8) / 2
    assert max(took) == pytest.approx(58 * 4096 * hosts * 7168 * (1 + 4 / 128 + 2) / 25e9)
    skewed = design_of("deepseek-v3", data=16, whole_experts=True, imbalance=1.5)
    assert max(np.array(routed(skewed)) @ step[0]) == pytest.approx(1.5 * max(took))


def test_two_batches_hide_what_is_exchanged_and_read_twice():
    base = design_of(
        "deepseek-v3", data=16, whole_experts=True, costs=replace(NO_COSTS, exchange_s=1e-5)
    )
    both = replace(base, costs=replace(base.costs, two_batches=True))
    for prompts, contexts in (([(4096, 0)] * 16, []), ([], [4000] * 64), ([], [4000] * 4096)):
        step = step_of(base.shape, prompts, contexts)
        exchanged = float(max(np.array(routed(base)) @ step[0]))
        computed = seconds(base, prompts, contexts) - exchanged
        found = seconds(both, prompts, contexts)
        assert max(computed, exchanged) <= found * (1 + 1e-9)
        # Each half reads all weights, and begins its own exchanges.
        assert found <= max(2 * computed, exchanged + 2 * 58 * 1e-5) * (1 + 1e-9)
    # Many rows: what is read twice is nothing beside what is hidden.
    prompts = [(4096, 0)] * 16
    hidden = seconds(both, prompts)
    assert hidden < seconds(base, prompts)
    engine = replace(both, costs=replace(both.costs, step_s=0.5))
    assert seconds(engine, prompts) == pytest.approx(hidden + 0.5)
    # A tenth of what computes is away for as long as rows travel.
    less = replace(both, costs=replace(both.costs, exchange_processors=0.1))
    travels = replace(base, costs=replace(NO_COSTS, exchange_s=0))
    exchanged = float(max(np.array(routed(travels)) @ step_of(base.shape, prompts)[0]))
    assert seconds(less, prompts) == pytest.approx(hidden + 0.1 * exchanged)
    assert seconds(less, contexts=[4000] * 64) == seconds(both, contexts=[4000] * 64)


def test_launches_and_the_engine_take_their_time():
    base = design_of("qwen3-8b")
    costs = Costs(kernel_s=2e-6, layer_kernels=10, step_s=1e-3)
    late = replace(base, costs=costs)
    assert seconds(late, contexts=[9]) - seconds(base, contexts=[9]) == pytest.approx(
        36 * 20e-6 + 1e-3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": 2}, "set whole_experts"),
        ({"whole_experts": True}, "has no experts"),
        ({"tensor": 3}, "possible are 1, 2, 4"),
        ({"pipeline": 99}, "32 layers are not 99 stages"),
        ({"imbalance": 0.5}, "at least 1, got 0.5"),
        ({"redundant_experts": 8}, "copies are of whole experts"),
        ({"chunk_tokens": 0}, "chunk_tokens must be at least 1"),
        ({"machine": Machine(name="poor", nodes=(NODE,))}, "poor: a design needs GPUs"),
        (
            {"tensor": 16, "machine": replace(HOST, gpus=(replace(GPU, network_gbs=0),) * 8)},
            "have no network",
        ),
    ],
)
def test_designs_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        design_of("llama-3.1-8b", **changes)


def test_experts_that_do_not_divide():
    with pytest.raises(ConfigError, match="for 24 GPUs; 8 redundant ones would be"):
        design_of("deepseek-v3", data=24, whole_experts=True)
    assert design_of("deepseek-v3", data=24, whole_experts=True, redundant_experts=8)


def test_unknown_hardware_is_named_with_what_is_near():
    with pytest.raises(ConfigError, match="did you mean h800"):
        machine_named("xeon-spr-2s+8xh801")
