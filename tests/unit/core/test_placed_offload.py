"""What a given placement takes, beside what `place` would choose."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError, ConfigError, ResourceError
from inlay.core.offload import STEP_TOKENS, activation_bytes, place
from inlay.core.placed_offload import offload_of
from inlay.core.placement import LayerPlacement, Placement
from inlay.core.roofline import parts_of
from tests.unit.core.test_offload import BF16, INT4, known, machine

V3 = known("deepseek-v3")
V3_PARTS = parts_of(V3, INT4)


def test_all_on_the_cpu_is_what_place_gives_without_a_gpu() -> None:
    shape = known("qwen3-30b-a3b")
    parts = parts_of(shape, INT4)
    chosen = place(shape, parts, machine(64), kv_tokens=4096)
    placed = offload_of(shape, parts, machine(64), Placement.on("cpu", 48), kv_tokens=4096)
    assert placed.gpu_share == chosen.gpu_share
    assert (placed.gpu_layers, placed.gpu_experts, placed.prefill) == (0, 0, "auto")
    assert [replace(use, name="") for use in placed.uses] == list(chosen.uses)


def test_one_gpu_is_what_place_gives_with_as_many_experts() -> None:
    chosen = place(V3, V3_PARTS, machine(512, 40), kv_tokens=8192)
    placement = Placement.on("cuda:0", 61, resident=0)
    layers = [
        replace(layer, resident=chosen.gpu_experts if number >= 3 else 0)
        for number, layer in enumerate(placement.layers)
    ]
    placed = offload_of(
        V3, V3_PARTS, machine(512, 40), Placement(layers=tuple(layers)), kv_tokens=8192
    )
    assert placed.gpu_share == pytest.approx(chosen.gpu_share)
    assert placed.gpu_experts == chosen.gpu_experts > 0
    for mine, theirs in zip(placed.uses, chosen.uses, strict=True):
        assert mine.total_bytes == pytest.approx(theirs.total_bytes)


def test_two_gpus_have_their_layers() -> None:
    first = LayerPlacement(device="cuda:0", prefill="device")
    second = LayerPlacement(device="cuda:1", prefill="device")
    placement = Placement(layers=(first,) * 30 + (second,) * 31)
    placed = offload_of(V3, V3_PARTS, machine(512, 24, 24), placement, kv_tokens=8192)
    assert [use.name for use in placed.uses] == ["cpu", "cuda:0", "cuda:1"]
    _, one, two = placed.uses
    assert one.kv_bytes == pytest.approx(8192 * 30 * 576 * 2)
    assert two.kv_bytes == pytest.approx(8192 * 31 * 576 * 2)
    # Each layer alike, but three dense ones on the first and the output matrix on the second.
    sizes = {part.name: part.stored_bytes for part in V3_PARTS}
    per_layer = sum(
        sizes[name] for name in ("attention projections", "latent projections", "norms")
    )
    per_sparse = sizes["routers"] + sizes["shared experts"]
    assert one.weights_bytes == pytest.approx(
        30 * per_layer / 61 + 27 * per_sparse / 58 + sizes["dense MLPs"]
    )
    assert two.weights_bytes == pytest.approx(
        31 * per_layer / 61 + 31 * per_sparse / 58 + sizes["output matrix"]
    )
    assert one.working_bytes == two.working_bytes == activation_bytes(V3, STEP_TOKENS) + 1e9
    assert placed.gpu_share["routed experts"] == 0 and placed.gpu_share["embedding"] == 0
    assert (placed.gpu_layers, placed.prefill) == (61, "device")


def test_a_gpu_that_is_too_small_says_for_what() -> None:
    placement = Placement.on("cuda:0", 61)
    everything = replace(
        placement,
        layers=tuple(
            replace(layer, resident=256) if number >= 3 else layer
            for number, layer in enumerate(placement.layers)
        ),
    )
    with pytest.raises(
        ResourceError,
        match=r"cuda:0 has 24.0 GB, and 386.2 GB are needed for the 61 layers on it: routed "
        r"experts 367.8, other weights 15.9, keys and values 0.6, the rest 1.9; leave routed "
        "experts to the CPU, or put fewer layers there",
    ):
        offload_of(V3, V3_PARTS, machine(512, 24), everything, kv_tokens=8192)
    with pytest.raises(ResourceError, match="experts 0.0, .*; put fewer layers there, or hold"):
        offload_of(V3, V3_PARTS, machine(512, 12), placement, kv_tokens=8192)
    with pytest.raises(ResourceError, match="has 256.0 GB of main memory, and .* beside 1.* GB on"):
        offload_of(V3, V3_PARTS, machine(256, 24), placement, kv_tokens=8192)


def test_a_placement_that_is_not_of_this_model_or_machine() -> None:
    with pytest.raises(ArgumentError, match="has 60 layers, the model 61"):
        offload_of(V3, V3_PARTS, machine(512), Placement.on("cpu", 60), kv_tokens=1)
    with pytest.raises(ConfigError, match="uses cuda:1, and made up has cpu, cuda:0"):
        offload_of(V3, V3_PARTS, machine(512, 24), Placement.on("cuda:1", 61), kv_tokens=1)


@given(
    name=st.sampled_from(["deepseek-v2-lite", "qwen3-30b-a3b", "qwen3-8b", "gpt-oss-20b"]),
    seed=st.randoms(use_true_random=False),
)
def test_nothing_is_lost(name: str, seed: random.Random) -> None:
    shape = known(name)
    parts = parts_of(shape, BF16)
    layers = []
    for number in range(shape.layers):
        device = seed.choice(["cpu", "cuda:0", "cuda:1"])
        sparse = number in shape.sparse_layers and device != "cpu"
        resident = seed.randint(0, shape.experts) if sparse else 0
        layers.append(LayerPlacement(device=device, resident=resident))
    placement = Placement(layers=tuple(layers))
    placed = offload_of(shape, parts, machine(1000, 500, 500), placement, kv_tokens=100)
    weights = sum(part.stored_bytes for part in parts if part.operator != "attention")
    experts = sum(part.stored_bytes for part in parts if part.name == "routed experts")
    copies = [layer.resident for layer in layers if layer.resident < shape.experts]
    copied = experts * sum(copies) / max(1, shape.experts * len(shape.sparse_layers))
    assert sum(use.weights_bytes for use in placed.uses) == pytest.approx(weights + copied)
    (core,) = [part for part in parts if part.operator == "attention"]
    assert sum(use.kv_bytes for use in placed.uses) == pytest.approx(100 * core.stored_bytes)
    assert all(0 <= share <= 1 for share in placed.gpu_share.values())
    if shape.experts:
        resident = sum(layer.resident for layer in layers)
        all_experts = shape.experts * len(shape.sparse_layers)
        assert placed.gpu_share["routed experts"] == pytest.approx(resident / all_experts)
