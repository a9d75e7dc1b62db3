"""Products of bfloat16 as instructions for it give them, where a processor has none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inlay.tune import products
from inlay.tune.products import add_linear, linear, matmul

ROWS, INNER, OUT = 7, 40, 50
HALF_STEP = 2**-8  # of bfloat16


@pytest.fixture(autouse=True)
def widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without such instructions, a few rows of a matrix at a time."""
    monkeypatch.setattr(products, "_cpu_multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(products, "_PIECE_BYTES", 4 * INNER * 12)


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16().requires_grad_()


def check(product: Callable[..., Tensor], exact: Callable[..., Tensor], *given: Tensor) -> None:
    """Value and gradients are the exact ones, rounded: sums in float32 may be off in a last bit."""
    wide = [one.detach().double().requires_grad_() for one in given]
    found, wanted = product(*given), exact(*wide)
    gradient = drawn(*found.shape).detach()
    pairs = [(found, wanted)]
    pairs += zip(
        torch.autograd.grad(found, given, gradient),
        torch.autograd.grad(wanted, wide, gradient.double()),
        strict=True,
    )
    for one, other in pairs:
        assert one.dtype == torch.bfloat16 and one.shape == other.shape
        difference = (one.double() - other).abs()
        assert (difference <= 1.01 * HALF_STEP * other.abs() + 1e-4).all()


def test_linear() -> None:
    bias = drawn(OUT).detach()
    check(
        lambda x, w: linear(x, w, bias),
        lambda x, w: x @ w.t() + bias.double(),
        drawn(ROWS, INNER),
        drawn(OUT, INNER),
    )
    check(linear, lambda x, w: x @ w.t(), drawn(ROWS, INNER), drawn(OUT, INNER))


def test_add_linear() -> None:
    check(
        lambda y, x, w: add_linear(y, x, w, 0.25),
        lambda y, x, w: y + 0.25 * x @ w.t(),
        drawn(ROWS, OUT),
        drawn(ROWS, INNER),
        drawn(OUT, INNER),
    )


def test_frozen_weights_get_no_gradient() -> None:
    x, weight = drawn(ROWS, INNER), drawn(OUT, INNER).detach()
    linear(x, weight).sum().backward()
    assert x.grad is not None and weight.grad is None
    frozen = x.detach()
    assert not linear(frozen, weight).requires_grad


@pytest.mark.parametrize("shape", [(ROWS, OUT), (3, ROWS, OUT)])
def test_matmul(shape: tuple[int, ...]) -> None:
    left, right = drawn(*shape).detach(), drawn(*shape[:-2], OUT, INNER).detach()
    product = matmul(left, right)
    exact = left.double() @ right.double()
    assert product.dtype == torch.bfloat16
    assert ((product.double() - exact).abs() <= 1.01 * HALF_STEP * exact.abs() + 1e-4).all()


def test_float32_is_pytorchs() -> None:
    x, weight = drawn(ROWS, INNER).float(), drawn(OUT, INNER).float()
    assert torch.equal(linear(x, weight), x @ weight.t())
