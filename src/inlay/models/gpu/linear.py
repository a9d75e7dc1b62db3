"""Dense layers on packed weights: one product, cut along K where rows are few.

Shapes: T rows, N output columns, K input columns, H heads, S pieces of K.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.models.gpu.launch import on_its_gpu
from inlay.models.gpu.panels import BLOCK_K, PANEL, Panels
from inlay.models.gpu.product import operand_of, panel_product

_BLOCK_T = (1, 16, 32, 64, 128)
# Programs that a multiprocessor has at once, about; and blocks of K in the smallest piece.
_PROGRAMS = 4
_LEAST_BLOCKS = 4
_FEW_ROWS = 16


def block_rows(rows: int) -> int:
    """Rows that a program takes: one, or at least what a tensor-core product has."""
    return next((size for size in _BLOCK_T if size >= rows), _BLOCK_T[-1])


def launch_of(rows: int) -> dict[str, int]:
    """How a product of so many rows is compiled.

    One row alone wants more of memory on its way at once; what is loaded ahead for many fits the
    99 KiB of shared memory that smaller GPUs have, too.
    """
    if rows == 1:
        return {"BLOCK_K": 2 * BLOCK_K, "num_warps": 4, "num_stages": 1}
    if rows > 64:
        return {"BLOCK_K": BLOCK_K, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_K": BLOCK_K, "num_warps": 4, "num_stages": 3}


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter is one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def pieces_of(programs: int, columns: int, device: torch.device) -> int:
    """Into how many pieces K is cut, so that all multiprocessors have work."""
    blocks = -(-columns // BLOCK_K)
    wanted = -(-_PROGRAMS * processors(device) // programs)
    return max(1, min(wanted, blocks // _LEAST_BLOCKS))


def operand_rows(x: Tensor) -> Tensor:
    """Many rows are rounded once, rather than by each program that reads them."""
    return x.to(torch.bfloat16) if x.is_cuda and len(x) > _FEW_ROWS else x


def linear(
    x_TK: Tensor,
    weight: Panels,
    out_TN: Tensor,
    *,
    bias_N: Tensor | None = None,
    accumulate: bool = False,
    pieces: int | None = None,
) -> None:
    """Write `x W^T (+ bias)` to `out`, or add it to what `out` holds.

    Args:
        x_TK: float32, contiguous columns; T may be 0.
        weight: of one matrix.
        out_TN: float32, contiguous columns, apart from x.
        pieces: of K, summed apart and added in order; by default as many as occupy the GPU.

    Tolerance: x is rounded to bfloat16, and with more than one row weights of groups of 32 and 64
        are, `(code - zero) * scale`; others are exact. Products are summed in float32, in an order
        that depends on T. In the interpreter nothing is rounded but sums.
    """
    _products(x_TK[:, None], weight, out_TN[:, None], bias_N, accumulate, pieces)


def linear_heads(x_THK: Tensor, weight: Panels, out_THN: Tensor) -> None:
    """Write `x W^T` to `out`, with a matrix for each head. See `linear`."""
    _products(x_THK, weight, out_THN, None, False, None)


@on_its_gpu
def _products(
    x_THK: Tensor,
    weight: Panels,
    out_THN: Tensor,
    bias_N: Tensor | None,
    accumulate: bool,
    pieces: int | None,
) -> None:
    rows, heads, columns = out_THN.shape
    if not rows:
        return
    x_THK = operand_rows(x_THK)
    tiles = (-(-columns // PANEL), triton.cdiv(rows, block_rows(rows)))
    if pieces is None:
        pieces = pieces_of(tiles[0] * tiles[1] * heads, weight.columns, x_THK.device)
    parts = None
    if pieces > 1:
        parts = torch.empty((pieces, rows, heads, columns), device=x_THK.device)
    _product[(*tiles, heads * pieces)](
        x_THK,
        weight.words,
        weight.scales,
        bias_N,
        out_THN if parts is None else parts,
        rows,
        columns,
        weight.columns,
        weight.panel_words,
        weight.column_words,
        weight.data.stride(0) // 4,
        x_THK.stride(0),
        x_THK.stride(1),
        *((0, *out_THN.stride()[:2]) if parts is None else parts.stride()[:3]),
        pieces,
        CODES=weight.codes,
        OPERAND=operand_of(x_THK),
        BLOCK_T=block_rows(rows),
        ACCUMULATE=accumulate,
        WHOLE=parts is None,
        **launch_of(block_rows(rows)),
    )
    if parts is not None:
        _add_pieces[(rows * heads, triton.cdiv(columns, 1024))](
            parts, bias_N, out_THN, columns, heads, pieces, parts.stride(0),
            *out_THN.stride()[:2], ACCUMULATE=accumulate,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "pieces"])
def _product(
    x,
    words,
    scales,
    bias,
    out,
    rows,
    columns,
    size_k,
    panel_words,
    column_words,
    head_words,
    x_row,
    x_head,
    out_piece,
    out_row,
    out_head,
    pieces,
    CODES: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    panel = tl.program_id(0)
    head = tl.program_id(2) // pieces
    piece = tl.program_id(2) % pieces
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    start = head.to(tl.int64) * head_words + panel.to(tl.int64) * panel_words
    blocks = tl.cdiv(size_k, BLOCK_K)
    sums = panel_product(
        x + head * x_head + t.to(tl.int64) * x_row,
        t < rows,
        size_k,
        words + start,
        scales + start * CODES.word_scales,
        piece * blocks // pieces,
        (piece + 1) * blocks // pieces,
        column_words,
        CODES,
        OPERAND,
        BLOCK_T,
        BLOCK_K,
    )
    column = panel * 64 + tl.arange(0, 64)
    at = piece.to(tl.int64) * out_piece + head * out_head
    at = at + t.to(tl.int64)[:, None] * out_row + column[None, :]
    inside = (t < rows)[:, None] & (column < columns)[None, :]
    if WHOLE:
        if bias is not None:
            sums += tl.load(bias + column, mask=column < columns, other=0)[None, :]
        if ACCUMULATE:
            sums += tl.load(out + at, mask=inside, other=0)
    tl.store(out + at, sums, mask=inside)


@triton.jit(do_not_specialize=["pieces"])
def _add_pieces(
    parts,
    bias,
    out,
    columns,
    heads,
    pieces,
    piece_stride,
    out_row,
    out_head,
    ACCUMULATE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * 1024 + tl.arange(0, 1024)
    inside = column < columns
    at = out + (row // heads) * out_row + (row % heads) * out_head + column
    sums = tl.zeros((1024,), tl.float32)
    if ACCUMULATE:
        sums = tl.load(at, mask=inside, other=0)
    part = parts + row * columns + column
    for _ in range(pieces):
        sums += tl.load(part, mask=inside, other=0)
        part += piece_stride
    if bias is not None:
        sums += tl.load(bias + column, mask=inside, other=0)
    tl.store(at, sums, mask=inside)
