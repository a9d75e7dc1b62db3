from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ResourceError
from inlay.core.hardware import Device, Machine, machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.offload import (
    Offload,
    activation_bytes,
    longest_context,
    most_that_fit,
    operator_sizes,
    place,
)
from inlay.core.roofline import Formats, parts_of

INT4 = Formats(experts="int4:g32", mlp="int4:g32", attention="int8", head="int8")
BF16 = Formats(experts="bfloat16", mlp="bfloat16", attention="bfloat16", head="bfloat16")
NODE = Device(title="node", memory_gb=1000, bandwidth_gbs=100, tflops={"fp32": 1})


def known(name: str) -> ModelShape:
    config = known_config(name)
    assert config is not None
    return shape_of(config)


def machine(host_gb: float, *gpus_gb: float) -> Machine:
    node = replace(NODE, memory_gb=host_gb)
    gpus = tuple(replace(NODE, memory_gb=size, link_gbs=50) for size in gpus_gb)
    return Machine(name="made up", nodes=(node,), gpus=gpus)


def test_operators_of_a_model_of_671_billion() -> None:
    """The talk: attention about 5 B with 128k of context, linears about 17 B, experts 654 B."""
    shape = known("deepseek-v3")
    sizes = operator_sizes(shape, parts_of(shape, INT4), 128 * 1024)
    assert [size.operator for size in sizes] == ["attention", "linears", "experts"]
    attention, linears, experts = (size.elements / 1e9 for size in sizes)
    assert attention == pytest.approx(4.605, abs=0.001)
    assert linears == pytest.approx(17.12, abs=0.01)
    assert experts == pytest.approx(653.9, abs=0.1)


def test_one_gpu_and_main_memory_hold_the_largest() -> None:
    """With int4 experts and a 24 GB GPU that has everything else: all experts in DRAM."""
    shape = known("deepseek-v3")
    placement = place(shape, parts_of(shape, INT4), machine(512, 24), kv_tokens=8192)
    host, gpu = placement.uses
    assert (placement.gpu_layers, gpu.kv_bytes) == (61, 8192 * 61 * 576 * 2)
    assert 0 <= placement.gpu_experts <= 8
    assert host.weights_bytes == pytest.approx(369.7e9, rel=1e-3)  # copies of those on the GPU
    assert gpu.total_bytes <= 24e9


def test_without_a_gpu_everything_lies_with_the_host() -> None:
    shape = known("qwen3-30b-a3b")
    parts = parts_of(shape, INT4)
    placement = place(shape, parts, machine(64), kv_tokens=4096)
    (host,) = placement.uses
    assert not any(placement.gpu_share.values())
    weights = sum(part.stored_bytes for part in parts if part.operator != "attention")
    assert host.weights_bytes == pytest.approx(weights)
    assert host.kv_bytes == 4096 * 48 * 2 * 4 * 128 * 2


def test_a_small_gpu_takes_whole_layers() -> None:
    shape = known("llama-3.1-8b")
    placement = place(shape, parts_of(shape, BF16), machine(64, 8), kv_tokens=8192)
    assert 0 < placement.gpu_layers < 32
    assert set(placement.gpu_share.values()) == {0.0, placement.gpu_layers / 32}
    host, gpu = placement.uses
    assert gpu.kv_bytes + host.kv_bytes == pytest.approx(8192 * 131072)


def test_several_gpus_hold_more() -> None:
    shape, formats = known("gpt-oss-120b"), replace(BF16, experts="mxfp4")
    parts = parts_of(shape, formats)
    one, four = (
        place(shape, parts, machine(512, *gpus), kv_tokens=8192) for gpus in ((24,), (24,) * 4)
    )
    assert 0 < one.gpu_experts < four.gpu_experts == 128


def test_the_host_has_all_experts_of_a_layer_unless_the_gpu_has() -> None:
    shape = known("qwen3-30b-a3b")
    parts = parts_of(shape, INT4)
    (experts,) = [part.stored_bytes for part in parts if part.name == "routed experts"]

    def host_bytes(most: int | None) -> float:
        placed = place(shape, parts, machine(64, 40), kv_tokens=8192, most_experts=most)
        assert placed.gpu_experts == (128 if most is None else most)
        return placed.uses[0].weights_bytes

    assert host_bytes(0) == host_bytes(127) == pytest.approx(host_bytes(128) + experts)
    assert host_bytes(128) == host_bytes(None)


def test_activations_of_a_step_take_room_on_the_gpu() -> None:
    """Four rows of the residual, two of queries against latents, two of experts, in float32."""
    shape = known("deepseek-v3")
    assert activation_bytes(shape, 10) == 40 * (4 * 7168 + 2 * 128 * 576 + 2 * 9 * 2048)
    parts = parts_of(shape, INT4)
    few, many = (
        place(shape, parts, machine(512, 40), kv_tokens=8192, step_tokens=tokens)
        for tokens in (1024, 8192)
    )
    for placement, tokens in ((few, 1024), (many, 8192)):
        for use, reserve in zip(placement.uses, (2e9, 1e9), strict=True):
            other = use.working_bytes + use.reserve_bytes
            assert other == pytest.approx(activation_bytes(shape, tokens) + reserve)
    assert few.gpu_experts > many.gpu_experts


def test_a_gpu_smaller_than_its_own_needs_is_left_alone() -> None:
    shape = known("qwen3-8b")
    placement = place(shape, parts_of(shape, BF16), machine(64, 1), kv_tokens=8192)
    assert not any(placement.gpu_share.values())


def test_what_does_not_fit_says_how_much_is_lacking() -> None:
    shape = known("deepseek-v3")
    with pytest.raises(
        ResourceError, match=r"made up has 256.0 GB .* 3\d\d.\d GB are needed beside"
    ):
        place(shape, parts_of(shape, INT4), machine(256, 24), kv_tokens=8192)


def test_the_most_that_fit_is_asked_for_in_few_steps() -> None:
    for most, last in ((0, 0), (1, 0), (1, 1), (7, 3), (1024, 1), (1024, 1023), (1024, 1024)):
        asked: list[int] = []

        def fits(number: int, last: int = last, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= last

        assert most_that_fit(most, fits) == last
        assert len(asked) <= most.bit_length() and all(1 <= number <= most for number in asked)


def test_the_longest_context_is_the_last_that_fits() -> None:
    shape = known("qwen3-8b")
    parts = parts_of(shape, BF16)

    def in_host(gigabytes: float) -> Callable[[int], Offload]:
        return lambda tokens: place(shape, parts, machine(gigabytes), kv_tokens=tokens)

    longest = longest_context(in_host(20), 40960)
    assert 0 < longest < 40960
    in_host(20)(longest)
    with pytest.raises(ResourceError):
        in_host(20)(longest + 1)
    assert longest_context(in_host(10), 40960) == 0
    assert longest_context(in_host(64), 40960) == 40960


@given(
    name=st.sampled_from(["deepseek-v2-lite", "qwen3-30b-a3b", "qwen3-8b", "gpt-oss-20b"]),
    gpus=st.lists(st.floats(0.5, 100), max_size=3),
    kv_tokens=st.integers(1, 30_000),
)
def test_nothing_is_lost_or_beyond_a_memory(name: str, gpus: list[float], kv_tokens: int) -> None:
    shape = known(name)
    parts = parts_of(shape, INT4)
    placement = place(shape, parts, machine(100, *gpus), kv_tokens=kv_tokens)
    for use in placement.uses:
        assert use.device == "gpu" or use.total_bytes <= use.capacity_bytes
        if use.device == "gpu" and use.weights_bytes:
            assert use.total_bytes <= use.capacity_bytes * (1 + 1e-9)
    weights = sum(part.stored_bytes for part in parts if part.operator != "attention")
    share = placement.gpu_share.get("routed experts", 0)
    copied = share % 1 * sum(part.stored_bytes for part in parts if part.name == "routed experts")
    assert sum(use.weights_bytes for use in placement.uses) == pytest.approx(weights + copied)
    (core,) = [part for part in parts if part.operator == "attention"]
    held = sum(use.kv_bytes for use in placement.uses)
    assert held == pytest.approx(core.stored_bytes * kv_tokens)


def test_named_machines_of_the_talk_hold_its_models() -> None:
    for name, where in (("deepseek-v3", "xeon-spr+4090"), ("deepseek-v2", "xeon-spr+4090")):
        shape = known(name)
        host, _ = place(shape, parts_of(shape, INT4), machine_named(where), kv_tokens=8192).uses
        assert host.total_bytes < host.capacity_bytes
