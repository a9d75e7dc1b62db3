"""The NumPy references against PyTorch, so that kernels are not tested against themselves."""

import numpy as np
import pytest
import torch

from inlay.core.errors import ArgumentError
from inlay.kernels import reference


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def test_linear(rng: np.random.Generator) -> None:
    x, w, bias, out = floats(rng, 3, 5), floats(rng, 4, 5), floats(rng, 4), floats(rng, 3, 4)
    expected = tensor(out) + torch.nn.functional.linear(tensor(x), tensor(w), tensor(bias))
    reference.linear(x, reference.pack_linear(w), out, bias, True)
    assert torch.allclose(tensor(out), expected, atol=1e-5)
    bf16 = torch.from_numpy(w).bfloat16()
    for weight in (reference.pack_linear(w, "bfloat16"), reference.pack_linear(bf16)):
        reference.linear(x, weight, out)
        expected = tensor(x).bfloat16().float() @ bf16.float().T
        assert torch.allclose(tensor(out), expected, atol=1e-5)


def test_moe(rng: np.random.Generator) -> None:
    experts = reference.ExpertWeights(3, 6, 4)
    matrices = [(floats(rng, 4, 6), floats(rng, 4, 6), floats(rng, 6, 4)) for _ in range(3)]
    for e, (gate, up, down) in enumerate(matrices):
        experts.set(e, gate, up, down)
    x, out = floats(rng, 2, 6), np.empty((2, 6), np.float32)
    ids = np.array([[2, 0], [-1, 1]], np.int32)
    weights = np.array([[0.25, 0.75], [np.nan, 0.5]], np.float32)
    reference.moe(x, experts, ids, weights, out)
    for t in range(2):
        expected = torch.zeros(6)
        for e, weight in zip(ids[t], weights[t], strict=True):
            if e >= 0:
                gate, up, down = map(torch.from_numpy, matrices[e])
                token = torch.from_numpy(x[t])
                expected += weight * (
                    down @ (torch.nn.functional.silu(gate @ token) * (up @ token))
                )
        assert torch.allclose(tensor(out[t]), expected, atol=1e-5)


def test_router(rng: np.random.Generator) -> None:
    logits = floats(rng, 7, 16)
    ids, weights = np.empty((7, 4), np.int32), np.empty((7, 4), np.float32)
    expected, expected_ids = torch.softmax(tensor(logits), dim=1).topk(4, dim=1)
    reference.router_topk(logits, 4, False, ids, weights)
    assert np.array_equal(ids, expected_ids.numpy())
    assert np.allclose(weights, expected, atol=1e-6)
    reference.router_topk(logits, 4, True, ids, weights)
    assert np.allclose(weights, expected / expected.sum(dim=1, keepdim=True), atol=1e-6)


def test_rows(rng: np.random.Generator) -> None:
    x, weight, out = floats(rng, 5, 8), floats(rng, 8), np.empty((5, 8), np.float32)
    reference.rms_norm(x, weight, 1e-5, out)
    expected = torch.nn.functional.rms_norm(tensor(x), (8,), tensor(weight), 1e-5)
    assert torch.allclose(tensor(out), expected, atol=1e-6)
    half = np.empty((5, 4), np.float32)
    reference.silu_mul(x, half)
    gate, up = tensor(x).chunk(2, dim=1)
    assert torch.allclose(tensor(half), torch.nn.functional.silu(gate) * up, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("rotate_first", [False, True])
def test_attention_over_stored_tokens(
    rng: np.random.Generator, rotate_first: bool, window: int, dtype: str
) -> None:
    """Store a sequence through rope_and_store, attend to it, compare with torch's attention."""
    heads, kv_heads, d, tokens = 4, 2, 8, 11
    geometry = reference.KvGeometry(2, 4, kv_heads, d, dtype)
    pool = np.full((5, geometry.page_bytes), 0xFF, np.uint8)
    pages = np.array([3, 0, 4], np.int64)
    positions = np.arange(tokens, dtype=np.int32)
    slots = pages[positions // 4] * 4 + positions % 4
    angles = rng.random((tokens, 3)).astype(np.float32)  # rotary_dim 6 of 8
    cos, sin = np.cos(angles), np.sin(angles)
    q_norm, k_norm = floats(rng, d), floats(rng, d)
    qkv = floats(rng, tokens, (heads + 2 * kv_heads) * d)

    def rotated(x: torch.Tensor, norm: np.ndarray) -> torch.Tensor:
        if not rotate_first:
            x = torch.nn.functional.rms_norm(x, (d,), tensor(norm), 1e-6)
        a, b, rest = x[..., :3], x[..., 3:6], x[..., 6:]
        c, s = tensor(cos)[:, None], tensor(sin)[:, None]
        x = torch.cat([a * c - b * s, b * c + a * s, rest], dim=-1)
        return torch.nn.functional.rms_norm(x, (d,), tensor(norm), 1e-6) if rotate_first else x

    rows = tensor(qkv.copy()).view(tokens, -1, d)
    q = rotated(rows[:, :heads], q_norm)
    k, v = rotated(rows[:, heads:-kv_heads], k_norm), rows[:, -kv_heads:]
    if dtype == "bfloat16":
        k, v = k.bfloat16().float(), v.bfloat16().float()
    distance = positions[:, None] - positions[None]
    mask = torch.from_numpy((distance >= 0) & ((distance < window) if window else True))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0),
        v.transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0),
        attn_mask=mask,
    ).transpose(0, 1)

    reference.rope_and_store(
        qkv, positions, cos, sin, pool, geometry, 1, slots, q_norm, k_norm, 1e-6, rotate_first
    )
    out = np.empty((tokens, heads, d), np.float32)
    reference.paged_attention(
        qkv[:, : heads * d].reshape(tokens, heads, d),
        pool,
        geometry,
        1,
        pages[None].astype(np.int32),
        np.array([0, tokens], np.int32),
        np.array([tokens], np.int32),
        d**-0.5,
        out,
        window,
    )
    assert torch.allclose(tensor(out), expected, atol=1e-5 if dtype == "float32" else 2e-2)


def test_a_sink_is_a_token_without_value(rng: np.random.Generator) -> None:
    """One token fewer and its score as a sink give what the token gives with a zero value."""
    geometry = reference.KvGeometry(1, 4, 1, 8, "float32")
    pool = floats(rng, 1, 2 * 4 * 8)
    planes = geometry.planes(pool, 0, writable=True)
    planes[0, 1, 0] = 0
    q = floats(rng, 1, 2, 8)
    sinks = (q[0] @ planes[0, 0, 0, 0]).astype(np.float32)
    starts, out = np.array([0, 1], np.int32), np.empty((2, 1, 2, 8), np.float32)
    for result, length, window, given in ((out[0], 4, 0, None), (out[1], 4, 3, sinks)):
        reference.paged_attention(
            q, pool, geometry, 0, np.zeros((1, 1), np.int32), starts,
            np.array([length], np.int32), 1.0, result, window, given,
        )  # fmt: skip
    assert np.allclose(out[0], out[1], atol=1e-6)


def test_errors_are_argument_errors() -> None:
    with pytest.raises(ArgumentError, match="x_TK"):
        reference.linear(
            np.ones((2, 3), np.float32),
            reference.pack_linear(np.ones((4, 5), np.float32)),
            np.ones((2, 4), np.float32),
        )
