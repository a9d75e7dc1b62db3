"""Times beside what is computed by hand, and what must hold for every model and machine."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError
from inlay.core.hardware import Device, Efficiency, Machine
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape, RopeShape
from inlay.core.offload import place
from inlay.core.roofline import (
    Formats,
    Part,
    Prediction,
    Step,
    bytes_per_weight,
    expected_experts,
    parts_of,
    predict,
    stream_threshold_tokens,
    work_of,
)

BF16 = Formats(
    experts="bfloat16", mlp="bfloat16", attention="bfloat16", router="bfloat16", head="bfloat16"
)
NODE = Device(
    title="node", memory_gb=1000, bandwidth_gbs=100, tflops={"fp32": 1, "bf16": 2, "int8": 4}
)
GPU = Device(
    title="gpu", memory_gb=80, bandwidth_gbs=2000, tflops={"fp32": 20, "bf16": 400}, link_gbs=50
)
HOST_ONLY = Machine(name="host", nodes=(NODE,))
BOTH = Machine(name="both", nodes=(NODE,), gpus=(GPU,))


def known(name: str) -> ModelShape:
    config = known_config(name)
    assert config is not None
    return shape_of(config)


def dense(**changes: object) -> ModelShape:
    """2 layers of 2 heads of 4, an MLP of 16, 10 words."""
    shape = ModelShape(
        architecture="llama",
        layers=2,
        hidden=8,
        heads=2,
        kv_heads=1,
        head_dim=4,
        vocab=10,
        intermediate=16,
        max_context_tokens=64,
        rope=RopeShape(rotary_dim=4),
    )
    return replace(shape, **changes)  # type: ignore[arg-type]


def sparse(**changes: object) -> ModelShape:
    """The same with 4 experts of 8 in its second layer, 2 per token, and a shared one."""
    experts = {
        "sparse_layers": (1,),
        "experts": 4,
        "experts_per_token": 2,
        "moe_intermediate": 8,
        "shared_intermediate": 8,
    }
    return dense(**experts | changes)


def part(shape: ModelShape, name: str, formats: Formats = BF16) -> Part:
    (found,) = [one for one in parts_of(shape, formats) if one.name == name]
    return found


def seconds(prediction: Prediction, name: str, device: str) -> float:
    (found,) = [t for t in prediction.times if (t.name, t.device) == (name, device)]
    return found.seconds


def test_parts_hold_every_weight_once() -> None:
    for name in ("deepseek-v3", "gpt-oss-20b", "llama-3.1-8b", "qwen3-30b-a3b"):
        shape = known(name)
        weights = sum(one.elements for one in parts_of(shape, BF16) if one.operator != "attention")
        assert weights == shape.parameters
    tied = dense(tie_embeddings=True)
    weights = sum(one.elements for one in parts_of(tied, BF16) if one.operator != "attention")
    assert weights == tied.parameters


def test_work_of_matrices() -> None:
    shape = sparse()
    mlp = 3 * 8 * 16
    assert work_of(shape, part(shape, "dense MLPs"), Step(new_tokens=5)).flops == 2 * 5 * mlp
    assert work_of(shape, part(shape, "dense MLPs"), Step(new_tokens=5)).read_bytes == 2 * mlp
    prompt = Step(new_tokens=5, requests=3)
    assert work_of(shape, part(shape, "output matrix"), prompt).flops == 2 * 3 * 80
    looked_up = work_of(shape, part(shape, "embedding"), prompt)
    assert (looked_up.flops, looked_up.read_bytes) == (0, 15 * 8 * 2)


def test_work_of_routed_experts() -> None:
    shape = sparse()
    expert = 3 * 8 * 8
    one = work_of(shape, part(shape, "routed experts"), Step(new_tokens=1))
    assert (one.flops, one.read_bytes) == (2 * 2 * expert, pytest.approx(2 * 2 * expert))
    # Of 4 experts a token leaves each out with 1/2: two tokens choose 4 x (1 - 1/4) = 3.
    two = work_of(shape, part(shape, "routed experts"), Step(new_tokens=1, requests=2))
    assert (two.flops, two.read_bytes) == (2 * 2 * 2 * expert, pytest.approx(3 * 2 * expert))


def test_work_of_attention() -> None:
    shape = dense()  # 4 operations for each of 2 x 4 numbers and each pair; 8 cached per token
    core = part(shape, "attention core")
    decode = work_of(shape, core, Step(new_tokens=1, cached_tokens=9, requests=3))
    assert decode.flops == 3 * 2 * 10 * 4 * 2 * 4
    assert decode.read_bytes == 3 * 2 * 10 * 8 * 2
    prompt = work_of(shape, core, Step(new_tokens=4))
    assert prompt.flops == 2 * (1 + 2 + 3 + 4) * 4 * 2 * 4


@pytest.mark.parametrize(("new", "cached"), [(1, 0), (4, 0), (1, 2), (3, 1), (5, 7), (2, 3)])
def test_attention_within_a_window(new: int, cached: int) -> None:
    shape = dense(sliding_windows=(3, 0))
    work = work_of(shape, part(shape, "attention core"), Step(new_tokens=new, cached_tokens=cached))
    seen = [position + 1 for position in range(cached, cached + new)]
    pairs = sum(seen) + sum(min(3, one) for one in seen)
    assert work.flops == pairs * 4 * 2 * 4
    read = {key for position in range(cached, cached + new) for key in range(position + 1)}
    near = {key for key in read if key > cached - 3}  # what the first of the new tokens sees
    assert work.read_bytes == (len(read) + len(near)) * 8 * 2


def test_latent_attention_reads_one_latent_for_all_heads() -> None:
    shape = known("deepseek-v3")
    work = work_of(shape, part(shape, "attention core"), Step(new_tokens=1, cached_tokens=999))
    assert work.flops == 61 * 1000 * 128 * 2 * (512 + 64 + 512)
    assert work.read_bytes == 61 * 1000 * 576 * 2
    assert work.intensity == pytest.approx(241.8, abs=0.1)


def test_a_step_on_processors_is_the_sum_of_its_parts() -> None:
    """10^9 weights of bf16: 20 ms at 100 GB/s; for 1024 tokens 1.024 s at 2 TFLOPS."""
    shape = dense(layers=1, intermediate=10**9 // 24)
    parts = [part(shape, "dense MLPs")]
    decode = predict(shape, parts, HOST_ONLY, {}, Step(new_tokens=1))
    assert decode.seconds == pytest.approx(0.02, rel=1e-6)
    assert (decode.bound.limit, decode.tokens_per_s) == ("bandwidth", pytest.approx(50, rel=1e-6))
    prefill = predict(shape, parts, HOST_ONLY, {}, Step(new_tokens=1024))
    assert prefill.seconds == pytest.approx(1.024, rel=1e-6)
    assert prefill.bound.limit == "compute"


def test_kernels_reach_a_share_of_each_rate() -> None:
    shape = dense(layers=1, intermediate=10**9 // 24)
    parts = [part(shape, "dense MLPs")]
    share = Efficiency(read={"bfloat16": 0.5}, compute={"bf16": 0.25, "int4:g32": 0.1})
    slow = Machine(name="slow", nodes=(replace(NODE, efficiency=share),))
    assert predict(shape, parts, slow, {}, Step(new_tokens=1)).seconds == pytest.approx(0.04)
    many = Step(new_tokens=1024)
    assert predict(shape, parts, slow, {}, many).seconds == pytest.approx(4.096)
    # A figure of the format comes before that of what it is multiplied as: 4 TOPS x 0.1.
    four = [part(shape, "dense MLPs", replace(BF16, mlp="int4:g32"))]
    assert predict(shape, four, slow, {}, many).seconds == pytest.approx(2.048 / 0.4, rel=1e-6)


def test_a_device_without_an_operand_computes_in_a_wider_one() -> None:
    shape = dense(layers=1, intermediate=10**9 // 24)
    old = Machine(name="old", nodes=(replace(NODE, tflops={"fp32": 1}),))
    for held in ("bfloat16", "int8", "fp8:g128", "mxfp4"):
        parts = [part(shape, "dense MLPs", replace(BF16, mlp=held))]
        assert predict(shape, parts, old, {}, Step(new_tokens=1024)).seconds == pytest.approx(2.048)
    none = Machine(name="none", nodes=(replace(NODE, tflops={"int8": 1}),))
    with pytest.raises(ArgumentError, match="tflops has none"):
        predict(shape, [part(shape, "dense MLPs")], none, {}, Step(new_tokens=1))


def test_experts_on_processors_run_beside_those_on_the_gpu() -> None:
    shape = sparse(moe_intermediate=10**6, shared_intermediate=10**6)
    parts = [part(shape, "routed experts"), part(shape, "shared experts")]
    share = {"routed experts": 0.5, "shared experts": 1.0}
    both = predict(shape, parts, BOTH, share, Step(new_tokens=1))
    expert_bytes = 3 * 8 * 10**6 * 2
    assert seconds(both, "routed experts", "cpu") == pytest.approx(expert_bytes / 100e9)
    assert seconds(both, "routed experts", "gpu") == pytest.approx(expert_bytes / 2000e9)
    assert seconds(both, "shared experts", "gpu") == pytest.approx(expert_bytes / 2000e9)
    assert both.seconds == pytest.approx(expert_bytes / 100e9)  # the GPU's are done before
    assert [time.hidden for time in both.times] == [False, True, True]


def test_with_many_tokens_experts_come_to_the_gpu() -> None:
    shape = sparse(moe_intermediate=10**6)
    parts = [part(shape, "routed experts")]
    few = predict(shape, parts, BOTH, {}, Step(new_tokens=1))
    assert few.bound.device == "cpu"
    many = predict(shape, parts, BOTH, {}, Step(new_tokens=1000))
    assert (many.bound.device, many.bound.limit) == ("gpu", "link")
    assert many.seconds == pytest.approx(4 * 3 * 8 * 10**6 * 2 / 50e9)
    more = predict(shape, parts, BOTH, {}, Step(new_tokens=100_000))
    assert (more.bound.device, more.bound.limit) == ("gpu", "compute")
    assert more.seconds == pytest.approx(2 * 2 * 10**5 * 3 * 8 * 10**6 / 400e12)


def test_from_how_many_tokens_experts_come_to_the_gpu() -> None:
    """All experts are chosen then, 1.92 ms over the link; the processors take 96 us a token."""
    shape = sparse(moe_intermediate=10**6, experts=4, experts_per_token=2)
    parts = [part(shape, "routed experts")]
    expert = 3 * 8 * 10**6
    over_link, each = 4 * expert * 2 / 50e9, 2 * 2 * expert / 2e12
    found = stream_threshold_tokens(shape, parts, BOTH, {})
    assert found == math.floor(over_link / each) + 1 == 81
    assert predict(shape, parts, BOTH, {}, Step(new_tokens=80)).bound.device == "cpu"
    assert predict(shape, parts, BOTH, {}, Step(new_tokens=81)).bound.device == "gpu"
    assert stream_threshold_tokens(shape, parts, BOTH, {}, most_tokens=81) == 81
    assert stream_threshold_tokens(shape, parts, BOTH, {}, most_tokens=80) is None


def test_experts_never_come_to_the_gpu() -> None:
    shape = sparse()
    parts = parts_of(shape, BF16)
    assert stream_threshold_tokens(shape, parts, HOST_ONLY, {}) is None
    assert stream_threshold_tokens(shape, parts, BOTH, {"routed experts": 1.0}) is None
    assert stream_threshold_tokens(dense(), parts_of(dense(), BF16), BOTH, {}) is None
    unlinked = replace(BOTH, gpus=(replace(GPU, link_gbs=0),))
    assert stream_threshold_tokens(shape, parts, unlinked, {}) is None


def test_processors_widen_what_is_cached() -> None:
    shape = dense(heads=2**20)
    parts = [part(shape, "attention core")]
    step = Step(new_tokens=512)
    flops = work_of(shape, parts[0], step).flops
    assert predict(shape, parts, HOST_ONLY, {}, step).seconds == pytest.approx(flops / 1e12)
    on_gpu = predict(shape, parts, BOTH, {"attention core": 1.0}, step)
    assert on_gpu.seconds == pytest.approx(flops / 400e12)


def test_activations_cross_the_link_once_each_way_per_sparse_layer() -> None:
    shape = sparse()
    found = predict(
        shape, parts_of(shape, BF16), BOTH, {"attention projections": 1}, Step(new_tokens=3)
    )
    assert seconds(found, "activations", "gpu") == pytest.approx(2 * 1 * 3 * 8 * 4 / 50e9)


@pytest.mark.parametrize("share", [{"routed experts": 1.5}, {"routed experts": -0.1}])
def test_shares_that_cannot_be(share: dict[str, float]) -> None:
    shape = sparse()
    with pytest.raises(ArgumentError, match="cannot be on GPUs"):
        predict(shape, parts_of(shape, BF16), BOTH, share, Step(new_tokens=1))
    with pytest.raises(ArgumentError, match="GPUs of host"):
        predict(shape, parts_of(shape, BF16), HOST_ONLY, {"norms": 1.0}, Step(new_tokens=1))


def test_bytes_of_formats() -> None:
    assert bytes_per_weight("int4:g32") == 0.5625
    assert bytes_per_weight("mxfp4") == 0.53125
    assert bytes_per_weight("fp8:g128") == 1.03125
    with pytest.raises(ArgumentError, match="got 'int3'"):
        bytes_per_weight("int3")


def test_distinct_experts() -> None:
    assert expected_experts(256, 8, 1) == pytest.approx(8)
    assert expected_experts(256, 8, 10_000) == pytest.approx(256)
    assert expected_experts(8, 8, 3) == 8
    assert expected_experts(0, 0, 3) == 0


MODELS = {name: known(name) for name in ("deepseek-v3", "gpt-oss-20b", "qwen3-8b", "glm-4.5-air")}
INT4 = Formats(experts="int4:g32", mlp="int4:g32", attention="int8", router="bfloat16", head="int8")
rates = st.floats(min_value=0.1, max_value=10)
steps = st.builds(
    Step,
    new_tokens=st.integers(1, 4096),
    cached_tokens=st.integers(0, 100_000),
    requests=st.integers(1, 8),
)


def scaled(device: Device, read: float, compute: float, link: float) -> Device:
    return replace(
        device,
        bandwidth_gbs=device.bandwidth_gbs * read,
        tflops={name: rate * compute for name, rate in device.tflops.items()},
        link_gbs=device.link_gbs * link,
    )


@given(
    model=st.sampled_from(sorted(MODELS)),
    formats=st.sampled_from([BF16, INT4]),
    step=steps,
    slow=st.tuples(rates, rates, rates),
    faster=st.tuples(*[st.floats(min_value=1, max_value=5)] * 6),
)
def test_faster_hardware_is_never_slower(
    model: str,
    formats: Formats,
    step: Step,
    slow: tuple[float, float, float],
    faster: tuple[float, ...],
) -> None:
    shape = MODELS[model]
    parts = parts_of(shape, formats)
    node = replace(scaled(NODE, *slow), memory_gb=2000)
    before = Machine(name="before", nodes=(node,), gpus=(GPU,))
    share = place(shape, parts, before, kv_tokens=1000).gpu_share
    after = Machine(
        name="after", nodes=(scaled(node, *faster[:3]),), gpus=(scaled(GPU, *faster[3:]),)
    )
    one = predict(shape, parts, before, share, step).seconds
    assert predict(shape, parts, after, share, step).seconds <= one * (1 + 1e-9)


@given(
    model=st.sampled_from(sorted(MODELS)),
    step=steps,
    more=st.tuples(st.integers(0, 500), st.integers(0, 5000), st.integers(0, 4)),
    share=st.floats(0, 1),
)
def test_more_work_is_never_faster(
    model: str, step: Step, more: tuple[int, int, int], share: float
) -> None:
    """More tokens, more context, more requests; and every device does it in some time above 0."""
    shape = MODELS[model]
    parts = parts_of(shape, INT4)
    shares = {one.name: 1.0 for one in parts} | {"routed experts": share}
    longer = Step(
        new_tokens=step.new_tokens + more[0],
        cached_tokens=step.cached_tokens + more[1],
        requests=step.requests + more[2],
    )
    one = predict(shape, parts, BOTH, shares, step)
    two = predict(shape, parts, BOTH, shares, longer)
    assert 0 < one.seconds <= two.seconds * (1 + 1e-9)
    assert one.seconds == pytest.approx(sum(t.seconds for t in one.times if not t.hidden))


@given(
    model=st.sampled_from(["deepseek-v3", "gpt-oss-20b", "glm-4.5-air"]),
    formats=st.sampled_from([BF16, INT4]),
    slow=st.tuples(rates, rates, rates),
    gpu=st.tuples(rates, st.floats(min_value=1, max_value=10), rates),
    share=st.floats(0, 0.9),
)
def test_longer_steps_than_the_threshold_bring_experts_shorter_ones_do_not(
    model: str,
    formats: Formats,
    slow: tuple[float, float, float],
    gpu: tuple[float, float, float],
    share: float,
) -> None:
    shape, most = MODELS[model], 1 << 15
    parts = parts_of(shape, formats)
    machine = Machine(name="any", nodes=(scaled(NODE, *slow),), gpus=(scaled(GPU, *gpu),))
    shares = {one.name: 1.0 for one in parts} | {"routed experts": share}
    found = stream_threshold_tokens(shape, parts, machine, shares, most_tokens=most)
    for tokens in (1, 10, 100, 1000, 10_000, most, (found or most + 1) - 1, found or 1):
        if tokens:
            step = predict(shape, parts, machine, shares, Step(new_tokens=tokens))
            on_host = any(t.name == "routed experts" and t.device == "cpu" for t in step.times)
            assert on_host is (found is None or tokens < found)


def test_where_host_experts_are_computed_can_be_given() -> None:
    """By the processors, over the link, or whichever ends first."""
    shape = known("qwen3-30b-a3b")
    parts = parts_of(shape, BF16)
    share = {part.name: float(part.name != "routed experts") for part in parts}
    for tokens, quicker in ((1, "host"), (8192, "device")):
        step = Step(new_tokens=tokens)
        seconds = {
            at: predict(shape, parts, BOTH, share, step, at).seconds
            for at in ("host", "device", "auto")
        }
        assert seconds["auto"] == seconds[quicker] == min(seconds.values()) < max(seconds.values())
    brought = predict(shape, parts, BOTH, share, Step(new_tokens=1), "device")
    (experts,) = [time for time in brought.times if time.name == "routed experts"]
    assert (experts.device, experts.limit) == ("gpu", "link")
    # Without a GPU there is one place.
    alone = dict.fromkeys(share, 0.0)
    assert predict(shape, parts, HOST_ONLY, alone, Step(new_tokens=1), "device") == predict(
        shape, parts, HOST_ONLY, alone, Step(new_tokens=1)
    )
