"""Sizes of real models, compiled, and all of a layer's kernels in a CUDA graph."""

import pytest
import torch

from inlay import kernels
from inlay.core.model_shape import RouterShape
from inlay.models.gpu.attention import attention
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.linear import linear
from inlay.models.gpu.rope import rope_and_store
from inlay.models.gpu.route import route
from tests.unit.models.gpu.pages import expected_rows, problem
from tests.unit.models.gpu.products import (
    PACKED,
    choices,
    expected_sum,
    host_experts,
    packed,
    rows_of,
)

pytestmark = pytest.mark.gpu


def assert_near(found, expected):
    """Operands have 8 bits: of all values together the error is a few thousandths."""
    error = (found - expected).norm() / expected.norm()
    assert found.isfinite().all() and error < 1e-2, float(error)


@pytest.mark.parametrize("weight_format", PACKED)
@pytest.mark.parametrize("rows", [1, 16, 33, 300])
def test_dense_layers(weight_format, rows, device):
    panels, weight_NK = packed(1000, 7168, weight_format, device)
    x_TK = rows_of(rows, 7168, device)
    out_TN = torch.empty((rows, 1000), device=device)
    linear(x_TK, panels, out_TN)
    assert_near(out_TN, x_TK @ weight_NK.T)
    again_TN = torch.empty_like(out_TN)
    linear(x_TK, panels, again_TN)
    assert torch.equal(out_TN, again_TN)


@pytest.mark.parametrize("weight_format", PACKED)
@pytest.mark.parametrize("tokens", [1, 48, 3000])
def test_experts(weight_format, tokens, device):
    host = host_experts(32, 2048, 768, weight_format)
    experts = GpuExperts(32, 2048, 768, weight_format, device)
    for expert in range(32):
        experts.set_slot(expert, host, expert)
    ids_TK, routing_TK = choices(tokens, 8, 32, device)
    x_TM = rows_of(tokens, 2048, device)
    out_TM = torch.zeros_like(x_TM)
    expected = expected_sum(x_TM, host, ids_TK, routing_TK, out_TM, kernels.SILU)
    experts.moe(x_TM, ids_TK, routing_TK, out_TM)
    assert_near(out_TM, expected)
    again_TM = torch.zeros_like(x_TM)
    experts.moe(x_TM, ids_TK, routing_TK, again_TM)
    assert torch.equal(out_TM, again_TM)


@pytest.mark.parametrize("requests", [[(1, 5000), (1, 33)], [(1, 700), (300, 1500), (64, 64)]])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "value_dim"), [(32, 4, 128, 0), (128, 1, 576, 512)]
)
def test_attention(requests, heads, kv_heads, head_dim, value_dim, device):
    paged, q_THD = problem(
        requests, heads, kv_heads, head_dim, value_dim, device,
        page_tokens=32, dtype=torch.bfloat16,
    )  # fmt: skip
    out_THV = torch.empty((len(q_THD), heads, value_dim or head_dim), device=device)
    scale = head_dim**-0.5
    attention(q_THD, paged, out_THV, scale=scale, value_dim=value_dim)
    assert_near(out_THV, expected_rows(q_THD, paged, scale, 0, None, value_dim))


def test_a_graph_holds_a_layer(device):
    """Captured once, replayed on other tokens, choices and contexts."""
    heads, kv_heads, width, hidden = 8, 2, 64, 512
    paged, _ = problem(
        [(1, 900), (1, 5)], heads, kv_heads, width, 0, device, page_tokens=16, dtype=torch.bfloat16
    )
    panels, _ = packed((heads + 2 * kv_heads) * width, hidden, "int4:g32", device)
    gate, _ = packed(16, hidden, "bfloat16", device)
    host = host_experts(16, hidden, 128, "mxfp4")
    experts = GpuExperts(16, hidden, 128, "mxfp4", device)
    for expert in range(16):
        experts.set_slot(expert, host, expert)
    x_TM = rows_of(2, hidden, device)
    angles = rows_of(2, width // 2, device, seed=2)
    slots_T = torch.tensor([1, 40], device=device)

    def layer():
        qkv_TN = torch.empty((2, (heads + 2 * kv_heads) * width), device=device)
        linear(x_TM, panels, qkv_TN)
        rope_and_store(
            qkv_TN, angles.cos(), angles.sin(), paged.data, paged.layer, slots_T, heads=heads
        )
        out_TM = torch.empty((2, heads * width), device=device)
        q_THD = qkv_TN[:, : heads * width].view(2, heads, width)
        attention(q_THD, paged, out_TM.view(2, heads, width), scale=0.1)
        logits_TE = torch.empty((2, 16), device=device)
        linear(out_TM, gate, logits_TE)
        ids_TK = torch.empty((2, 4), dtype=torch.int32, device=device)
        routing_TK = torch.empty((2, 4), device=device)
        route(logits_TE, RouterShape(normalize=True), None, ids_TK, routing_TK)
        sum_TM = torch.zeros_like(out_TM)
        experts.moe(out_TM, ids_TK, routing_TK, sum_TM)
        return sum_TM

    layer()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_TM = layer()
    for seed, context in ((5, 900), (6, 70)):
        x_TM.copy_(rows_of(2, hidden, device, seed=seed))
        paged.context_lens_B[0] = context
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured_TM, layer())


@pytest.mark.multi_gpu
def test_launches_go_to_the_gpu_of_the_data():
    """The thread's current one is the first."""
    second = torch.device("cuda:1")
    panels, weight_NK = packed(100, 256, "int4:g32", second)
    x_TK = rows_of(3, 256, second)
    out_TN = torch.empty((3, 100), device=second)
    linear(x_TK, panels, out_TN)
    assert_near(out_TN, x_TK @ weight_NK.T)
    host = host_experts(4, 256, 128, "int8")
    experts = GpuExperts(4, 256, 128, "int8", second)
    for expert in range(4):
        experts.set_slot(expert, host, expert)
    ids_TK, routing_TK = choices(3, 2, 4, second)
    sum_TM = torch.zeros((3, 256), device=second)
    expected = expected_sum(x_TK, host, ids_TK, routing_TK, sum_TM, kernels.SILU)
    experts.moe(x_TK, ids_TK, routing_TK, sum_TM)
    assert_near(sum_TM, expected)
    paged, q_THD = problem([(1, 100)], 8, 2, 64, 0, second, page_tokens=16, dtype=torch.bfloat16)
    attended_THV = torch.empty_like(q_THD)
    attention(q_THD, paged, attended_THV, scale=0.1)
    assert_near(attended_THV, expected_rows(q_THD, paged, 0.1, 0, None, 0))
