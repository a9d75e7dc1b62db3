"""Paged attention against a softmax in double precision, request by request."""

import pytest
import torch

from inlay.models.gpu.attention import attention
from tests.unit.models.gpu.pages import expected_rows, problem


def check(
    requests,
    device,
    *,
    heads=4,
    kv_heads=2,
    head_dim=32,
    value_dim=0,
    window=0,
    softcap=0.0,
    sinks=False,
    pieces=None,
    page_tokens=16,
    dtype=torch.float32,
):
    paged, q_THD = problem(
        requests, heads, kv_heads, head_dim, value_dim, device, page_tokens=page_tokens, dtype=dtype
    )
    sinks_H = torch.linspace(-1, 3, heads, device=device) if sinks else None
    out_THV = torch.full((len(q_THD), heads, value_dim or head_dim), torch.nan, device=device)
    scale = head_dim**-0.5
    attention(
        q_THD, paged, out_THV, scale=scale, window=window, softcap=softcap, sinks_H=sinks_H,
        value_dim=value_dim, pieces=pieces,
    )  # fmt: skip
    expected = expected_rows(q_THD, paged, scale, window, sinks_H, value_dim, softcap)
    rounded = device.type == "cuda" and dtype != torch.float32
    torch.testing.assert_close(out_THV, expected, rtol=0, atol=2e-2 if rounded else 2e-5)


MIXED = [(1, 40), (5, 5), (19, 70), (1, 1), (3, 129)]
SINGLE = [(1, 40), (1, 1), (1, 200)]


@pytest.mark.parametrize("requests", [MIXED, SINGLE, [(70, 70)], [(2, 65)]])
@pytest.mark.parametrize(("heads", "kv_heads"), [(7, 1), (3, 3)])
def test_prefill_and_decode(requests, heads, kv_heads, device):
    check(requests, device, heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize(
    ("requests", "pieces", "sinks"), [(MIXED, 2, False), (SINGLE, 3, True), (SINGLE, 7, False)]
)
def test_contexts_in_pieces(requests, pieces, sinks, device):
    check(requests, device, pieces=pieces, sinks=sinks)


@pytest.mark.parametrize(("window", "pieces"), [(1, 1), (17, 3), (64, 1), (500, 2)])
def test_windows_and_sinks(window, pieces, device):
    check(MIXED, device, window=window, pieces=pieces, sinks=True)


@pytest.mark.parametrize(("softcap", "pieces"), [(0.3, 1), (2.0, 3), (50.0, 2)])
def test_bounded_scores(softcap, pieces, device):
    """As Gemma 2 has them; the least bound changes nearly all of them."""
    check(MIXED, device, softcap=softcap, pieces=pieces, window=17)
    check(SINGLE, device, softcap=softcap, pieces=pieces)


@pytest.mark.parametrize(("requests", "pieces"), [(MIXED, 1), (SINGLE, 1), (SINGLE, 4)])
def test_latents(requests, pieces, device):
    """One key for all heads, whose leading elements are the value; widths that are no powers."""
    check(requests, device, heads=20, kv_heads=1, head_dim=56, value_dim=48, pieces=pieces)


@pytest.mark.parametrize("requests", [[(3, 40)], [(1, 40), (1, 7)]])
def test_latents_as_wide_as_deepseek_has_them(requests, device):
    check(requests, device, heads=40, kv_heads=1, head_dim=576, value_dim=512)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [80, 128])
def test_dtypes_and_widths(dtype, head_dim, device):
    check([(9, 30), (1, 50)], device, head_dim=head_dim, dtype=dtype, page_tokens=8)


def test_rows_of_padding_are_zeros(device):
    """A graph's spare requests have no context."""
    paged, q_THD = problem(
        [(1, 20), (1, 20)], 4, 2, 32, 0, device, page_tokens=16, dtype=torch.float32
    )
    paged.context_lens_B[1] = 0
    for pieces in (1, 2):
        out_THV = torch.full_like(q_THD, torch.nan)
        attention(q_THD, paged, out_THV, scale=1.0, pieces=pieces)
        assert out_THV[0].isfinite().all() and not out_THV[1].any()
