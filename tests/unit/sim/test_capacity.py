"""Room for tokens beside weights, by degree."""

from dataclasses import replace

import numpy as np
import pytest

from inlay.core.errors import ResourceError
from inlay.core.hardware import machine_named
from inlay.core.offload import GPU_RESERVE_BYTES, activation_bytes
from inlay.sim.capacity import capacity, tiers, token_bytes
from inlay.sim.design import Costs
from inlay.sim.hardware import instance_of, price_usd
from inlay.sim.roofline_time import step_time
from inlay.sim.world import World, names_of
from tests.unit.sim.designs import design_of, known, step_of


def test_weights_and_tokens_of_one_gpu():
    design = design_of("llama-3.1-8b")
    found = capacity(design)
    assert found.weights_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert found.gpu_token_bytes == 2 * 32 * 8 * 128 * 2
    working = activation_bytes(design.shape, 8192) + GPU_RESERVE_BYTES
    assert found.tokens == int((2000e9 - found.weights_bytes - working) // found.gpu_token_bytes)


def test_degrees_divide_weights_and_heads_but_copy_what_cannot_be():
    model = "llama-3.1-70b"
    one, eight, sixteen = (capacity(design_of(model, tensor=n)) for n in (1, 8, 16))
    assert eight.weights_bytes == pytest.approx(one.weights_bytes / 8, rel=0.001)
    assert sixteen.gpu_token_bytes == eight.gpu_token_bytes == one.gpu_token_bytes / 8
    # Latents are on each GPU.
    assert (
        capacity(design_of("deepseek-v3", tensor=8)).gpu_token_bytes
        == capacity(design_of("deepseek-v3")).gpu_token_bytes
        == 61 * 576 * 2
    )
    staged = capacity(design_of(model, pipeline=4))
    assert staged.gpu_token_bytes == one.gpu_token_bytes / 4
    ends = known(model).vocab * 8192 * 2
    assert staged.weights_bytes == pytest.approx((one.weights_bytes - 2 * ends) / 4 + ends)


def test_groups_have_tokens_of_their_own_and_spread_experts():
    alone = capacity(design_of("deepseek-v3"))
    spread = capacity(design_of("deepseek-v3", data=8, whole_experts=True))
    experts = 58 * 256 * 3 * 7168 * 2048 * (1 + 4 / 128)
    assert alone.weights_bytes - spread.weights_bytes == pytest.approx(experts * 7 / 8)
    assert spread.tokens == 8 * int(spread.kv_bytes // spread.gpu_token_bytes)
    copies = capacity(design_of("deepseek-v3", data=8, whole_experts=True, redundant_experts=8))
    assert copies.weights_bytes - spread.weights_bytes == pytest.approx(experts * 8 / 256 / 8)


def test_a_model_that_does_not_fit():
    design = design_of("llama-3.1-70b", machine=machine_named("xeon-spr+2x4090"), tensor=2)
    with pytest.raises(ResourceError, match=r"2 x NVIDIA.*4090.*70\.6 GB of weights.*more GPUs"):
        capacity(design)


def test_memory_and_disks_of_the_hosts():
    machine = machine_named("xeon-spr-2s+8xh800")
    design = design_of("llama-3.1-70b", tensor=4, machine=machine)
    (tier,) = tiers(design)
    assert (tier.name, tier.tokens) == ("host", int((1024e9 - 2e9) / 2 // 327_680))
    # Half of 440 GB/s of the memory; 8 links of 64 would be more.
    assert tier.read_bytes_per_s == pytest.approx(220e9)
    (half,) = tiers(design, 0.5)
    assert half.tokens == pytest.approx(tier.tokens / 2, abs=1)
    stored = replace(design, machine=replace(machine, disk_gb=30_000, disk_gbs=20))
    assert tiers(stored)[0] == tier
    disk = tiers(stored)[1]
    assert (disk.name, disk.tokens) == ("disk", int(15e12 // 327_680))
    assert disk.read_bytes_per_s == pytest.approx(10e9)


def test_an_instance_of_a_design():
    machine = machine_named("xeon-spr-2s+8xh800")
    design = design_of(
        "deepseek-v3", data=16, whole_experts=True, machine=machine, chunk_tokens=4096
    )
    config = instance_of(design, page_tokens=512, max_running=1024)
    assert config.num_pages == capacity(design).tokens // 512
    assert (config.experts, config.experts_per_token, config.layers) == (256, 8, 61)
    assert config.token_bytes == token_bytes(design) == 70_272
    assert config.out_bytes_per_s == pytest.approx(16 * 50e9)
    assert (config.prefill_chunk, config.max_batch_tokens) == (4096, 16 * 4096 + 1024)
    assert price_usd(design) == pytest.approx(2 * (2 * 11_982 + 8 * 30_000))
    poor = replace(machine.gpus[0], price_usd=None)
    assert price_usd(replace(design, machine=replace(machine, gpus=(poor,) * 8))) is None


def test_the_world_computes_what_a_design_says():
    pytest.importorskip("inlay._native")
    machine = machine_named("xeon-spr-2s+8xh800")
    design = design_of(
        "deepseek-v3", data=16, whole_experts=True, machine=machine, costs=Costs(two_batches=True)
    )
    world = World()
    world.add(instance_of(design))
    world.submit(
        0,
        arrival_s=0,
        prompt_tokens=5000,
        output_tokens=3,
        blocks=names_of(np.arange(9, dtype=np.uint64)),
        prefill=0,
        decode=0,
    )
    world.advance(float("inf"))
    (outcome,) = world.outcomes()
    steps = [step_of(design.shape, [(5000, 0)])]
    steps += [step_of(design.shape, contexts=[5000 + n]) for n in (1, 2)]
    first_s, *decode_s = step_time(design).seconds(np.concatenate(steps)).tolist()
    assert outcome["first_s"] == pytest.approx(first_s, rel=1e-9)
    assert outcome["end_s"] == pytest.approx(first_s + sum(decode_s), rel=1e-9)
