"""Matrix products of training, and their gradients.

PyTorch multiplies bfloat16 by plain loops where the processor has no instructions for it, at a
twentieth of float32's rate. There, operands are widened to float32 and results rounded, which is
what such instructions compute: products of bfloat16 are exact in float32, where they are added.

Shapes: T rows, N and K columns.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import kernels

_PIECE_BYTES = 4 << 20  # of float32: what is widened of a matrix at a time stays in a cache
_BFLOAT16_FEATURES = {"avx512_bf16", "amx_bf16"}
_buffers = threading.local()


@cache
def _cpu_multiplies_bfloat16() -> bool:
    """By the processor's features, not a timing: a run that is resumed computes the same bits."""
    return bool(_BFLOAT16_FEATURES & set(kernels.cpu_features()))


def _is_widened(x: Tensor) -> bool:
    on_cpu = x.device.type == "cpu"
    return x.dtype == torch.bfloat16 and on_cpu and not _cpu_multiplies_bfloat16()


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`x W^T + bias`, `[T, N]`, in the dtype of the operands.

    Args:
        x_TK, weight_NK, bias_N: of one dtype, float32 or bfloat16. Gradients are for x and W.

    Cost: where bfloat16 is widened, memory of this thread for float32 of x and of the result, and
        `_PIECE_BYTES`, which it keeps.
    """
    if not _is_widened(x_TK):
        return F.linear(x_TK, weight_NK, bias_N)
    product: Tensor = _Linear.apply(x_TK, weight_NK, bias_N)  # type: ignore[no-untyped-call]
    return product


def add_linear(y_TN: Tensor, x_TK: Tensor, weight_NK: Tensor, scale: float) -> Tensor:
    """`y + scale * x W^T`, rounded once. Gradients are for all three.

    Args:
        y_TN, x_TK, weight_NK: as `linear` takes them.
    """
    if not _is_widened(x_TK):
        return torch.addmm(y_TN, x_TK, weight_NK.t(), alpha=scale)
    total: Tensor = _AddLinear.apply(y_TN, x_TK, weight_NK, scale)  # type: ignore[no-untyped-call]
    return total


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """`torch.matmul` without gradients, of matrices or of batches of them."""
    if not _is_widened(left):
        return torch.matmul(left, right)
    if right.ndim == 2:
        return _times(left, right).to(left.dtype)
    return torch.matmul(left.float(), right.float()).to(left.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_TK, weight_NK)
        wide_TK = _widened("rows", x_TK)
        out_TN = x_TK.new_empty(len(x_TK), len(weight_NK))
        for rows in _pieces(weight_NK):
            bias = None if bias_N is None else bias_N[rows].float()
            wide_NK = _widened("weight", weight_NK[rows])
            part_TN = _scratch("product", (len(x_TK), len(wide_NK)))
            torch.mm(wide_TK, wide_NK.t(), out=part_TN)
            out_TN[:, rows] = part_TN if bias is None else part_TN.add_(bias)
        return out_TN

    @staticmethod
    def backward(ctx: Any, gradient_TN: Tensor) -> Any:
        x_TK, weight_NK = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        return (
            _times(gradient_TN, weight_NK).to(x_TK.dtype) if of_x else None,
            _of_weight(gradient_TN, x_TK) if of_weight else None,
            None,
        )


class _AddLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_TN: Tensor, x_TK: Tensor, weight_NK: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x_TK, weight_NK)
        ctx.scale = scale
        wide_KN = _widened("weight", weight_NK).t()
        sum_TN = _widened("product", y_TN)
        return sum_TN.addmm_(_widened("rows", x_TK), wide_KN, alpha=scale).to(y_TN.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_TN: Tensor) -> Any:
        x_TK, weight_NK = ctx.saved_tensors
        scaled_TN = gradient_TN.float() * ctx.scale
        return (
            gradient_TN,
            _times(scaled_TN, weight_NK).to(x_TK.dtype),
            _of_weight(scaled_TN, x_TK),
            None,
        )


def _times(left_TN: Tensor, right_NK: Tensor) -> Tensor:
    """Their product, float32; its memory is this thread's next product's, too."""
    product_TK = _scratch("product", (len(left_TN), right_NK.shape[1])).zero_()
    for rows in _pieces(right_NK):
        wide_TN, wide_NK = _widened("rows", left_TN[:, rows]), _widened("weight", right_NK[rows])
        product_TK.addmm_(wide_TN, wide_NK)
    return product_TK


def _widened(role: str, values: Tensor) -> Tensor:
    """The values in float32, until this thread widens others of the same role."""
    return _scratch(role, values.shape).copy_(values)


def _scratch(role: str, size: Sequence[int]) -> Tensor:
    """Memory of this thread for float32 values, the same each time.

    Taken anew for each product, it would lie between the activations that autograd keeps, and what
    is left of it there would be lost to larger ones.
    """
    count = math.prod(size)
    buffer = getattr(_buffers, role, None)
    if buffer is None or buffer.numel() < count:
        buffer = torch.empty(count, dtype=torch.float32)
        setattr(_buffers, role, buffer)
    array: Tensor = buffer[:count].view(*size)
    return array


def _of_weight(gradient_TN: Tensor, x_TK: Tensor) -> Tensor:
    return (gradient_TN.float().t() @ x_TK.float()).to(x_TK.dtype)


def _pieces(matrix_NK: Tensor) -> Iterator[slice]:
    step = max(1, _PIECE_BYTES // (4 * matrix_NK.shape[1]))
    for start in range(0, len(matrix_NK), step):
        yield slice(start, start + step)
