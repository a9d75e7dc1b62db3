"""Attention by blocks beside PyTorch's own, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.tune import blocked_attention
from inlay.tune.blocked_attention import attend_blocks

TOKENS, HEADS = 150, 4


def expected(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    numbers = torch.arange(len(q))
    behind = numbers[:, None] - numbers
    seen = (behind >= 0) & (behind < (window or len(q)))
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    return out.transpose(0, 1)


@pytest.mark.parametrize("window", [0, 1, 20, 100, 150, 300])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 6e-3)])
def test_it_is_attention(
    groups: int, window: int, dtype: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_attention, "_BLOCK_BYTES", 40 * 4 * HEADS * TOKENS)
    generator = torch.Generator().manual_seed(groups)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))

    q, k = drawn(TOKENS, HEADS, 24), drawn(TOKENS, groups, 24)
    v, gradient = drawn(TOKENS, groups, 16), drawn(TOKENS, HEADS, 16)
    given = [x.requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in given]
    out = attend_blocks(*given, scale=0.3, window=window)
    wanted = expected(*exact, 0.3, window)
    found = (out, *torch.autograd.grad(out, given, gradient))
    right = (wanted, *torch.autograd.grad(wanted, exact, gradient.double()))
    for one, other in zip(found, right, strict=True):
        assert one.dtype == getattr(torch, dtype)
        # With a window of 1 a query sees itself, and scores have no gradient.
        assert (one.double() - other).norm() <= bound * max(other.norm(), right[0].norm())


def test_one_token_sees_itself() -> None:
    q, v = torch.ones(1, 2, 4), torch.arange(6.0).view(1, 2, 3)
    assert torch.equal(attend_blocks(q, q, v, scale=1.0, window=0), v)
