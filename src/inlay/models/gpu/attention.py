"""Causal attention of new tokens over the pages of a pool, without gathering them.

A program takes some queries of a request with all heads that share a key head, as rows of one
product; where programs are few, requests are cut along their context and the pieces' results put
together by their softmax sums (flash decoding).

Shapes: T new tokens, B requests, P pages of each, H query heads, G key heads, D head width, V width
of values, S pieces of a context.

Source: FlashAttention-2 (arXiv 2307.08691), Flash-Decoding (pytorch.org/blog/flash-decoding).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.models.gpu.launch import on_its_gpu
from inlay.models.gpu.linear import processors

_BLOCK_N = 64
_WIDE_BYTES = 512
_PROGRAMS = 3
_LEAST_TOKENS = 256
_LOG2_E = 1.4426950408889634
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True)
class Paged:
    """Where the keys and values of one layer lie, and who reads them; all on the device.

    Attributes:
        data: the pool, `[pages, layers, planes, page_tokens, G, D]`.
        layer: its number.
        page_table_BP, query_starts_B1, context_lens_B: int32, as in a `ForwardBatch`.
    """

    data: Tensor
    layer: int
    page_table_BP: Tensor
    query_starts_B1: Tensor
    context_lens_B: Tensor


@on_its_gpu
def attention(
    q_THD: Tensor,
    paged: Paged,
    out_THV: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks_H: Tensor | None = None,
    value_dim: int = 0,
    pieces: int | None = None,
) -> None:
    """Write the attention of the last tokens of each request over its context to `out`.

    Nothing waits for the GPU, and launches depend on shapes alone: with requests of one token
    each, a CUDA graph holds for all contexts that the page table has room for.

    Args:
        q_THD: float32, contiguous in D.
        out_THV: float32, contiguous in V, apart from q.
        scale: of the scores.
        window: tokens that a query sees, 0 for all.
        softcap: bounds the scores, `softcap * tanh(score / softcap)`; 0: they are not bounded.
        sinks_H: float32, a score for each head that takes part in the softmax alone.
        value_dim: in latent attention the leading elements of a key that are its value; 0: values
            are the second plane.
        pieces: of each context; by default as many as occupy the GPU.

    Tolerance: q and the softmax's weights are rounded to the pool's dtype; sums are float32. In the
        interpreter nothing is rounded.
    """
    tokens, heads, head_dim = q_THD.shape
    requests, pages = paged.page_table_BP.shape
    if not tokens:
        return
    page_tokens, kv_heads = paged.data.shape[3:5]
    shared_by = heads // kv_heads
    main_dim = value_dim or head_dim
    single = tokens == requests
    wide = main_dim * paged.data.element_size() >= _WIDE_BYTES
    rows = _rows(shared_by, single, wide)
    block_heads = min(shared_by, rows)
    block_queries = rows // block_heads
    tiles = requests if single else tokens // block_queries + requests
    groups = kv_heads * triton.cdiv(shared_by, block_heads)
    if pieces is None:
        wanted = -(-_PROGRAMS * processors(q_THD.device) // (tiles * groups))
        pieces = max(1, min(wanted, pages * page_tokens // _LEAST_TOKENS))
    value_width = out_THV.shape[2]
    parts = sums = None
    if pieces > 1:
        parts = torch.empty((pieces, tokens, heads, value_width), device=q_THD.device)
        sums = torch.empty((pieces, tokens, heads, 2), device=q_THD.device)
    _attend[(tiles, groups, pieces)](
        q_THD,
        paged.data,
        paged.page_table_BP,
        paged.query_starts_B1,
        paged.context_lens_B,
        sinks_H,
        out_THV,
        parts,
        sums,
        tokens,
        requests,
        heads,
        pages,
        paged.layer * paged.data.stride(1),
        paged.data.stride(0),
        paged.data.stride(2),
        paged.data.stride(3),
        paged.data.stride(4),
        *q_THD.stride()[:2],
        *out_THV.stride()[:2],
        scale * _LOG2_E * (2 / softcap if softcap else 1),
        softcap * _LOG2_E,
        window,
        page_tokens,
        pieces,
        SHARED_BY=shared_by,
        BLOCK_HEADS=block_heads,
        BLOCK_ROWS=rows,
        BLOCK_N=_BLOCK_N // 2 if wide else _BLOCK_N,
        REQUESTS=triton.next_power_of_2(requests),
        MAIN=main_dim,
        MAIN_2=triton.next_power_of_2(main_dim),
        REST=head_dim - main_dim,
        REST_2=max(16, triton.next_power_of_2(head_dim - main_dim)),
        LATENT=value_dim > 0,
        SINGLE=single,
        BOUNDED=softcap > 0,
        OPERAND=_DTYPES[paged.data.dtype] if q_THD.is_cuda else tl.float32,
        num_warps=8 if wide else 4,
        num_stages=2,
    )
    if parts is not None:
        _put_together[(tokens, heads)](
            parts, sums, sinks_H, out_THV, tokens, heads, pieces, *out_THV.stride()[:2],
            WIDTH=value_width, WIDTH_2=triton.next_power_of_2(value_width),
        )  # fmt: skip


def _rows(shared_by: int, single: bool, wide: bool) -> int:
    """Rows of a product: at least 16; no more than the heads of a token that is a request's only
    one, and fewer where keys are wide.
    """
    most = 32 if wide else 64
    wanted = int(triton.next_power_of_2(shared_by)) if single else most
    return min(most, max(16, wanted))


@triton.jit(do_not_specialize=["tokens", "requests", "pages", "pieces"])
def _attend(
    q,
    pool,
    page_table,
    query_starts,
    context_lens,
    sinks,
    out,
    parts,
    sums,
    tokens,
    requests,
    heads,
    pages,
    layer_start,
    page_stride,
    plane_stride,
    token_stride,
    head_stride,
    q_row,
    q_head,
    out_row,
    out_head,
    scale,
    bound,
    window,
    page_tokens,
    pieces,
    SHARED_BY: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    REQUESTS: tl.constexpr,
    MAIN: tl.constexpr,
    MAIN_2: tl.constexpr,
    REST: tl.constexpr,
    REST_2: tl.constexpr,
    LATENT: tl.constexpr,
    SINGLE: tl.constexpr,
    BOUNDED: tl.constexpr,
    OPERAND: tl.constexpr,
):
    BLOCK_QUERIES: tl.constexpr = BLOCK_ROWS // BLOCK_HEADS
    HEAD_BLOCKS: tl.constexpr = (SHARED_BY + BLOCK_HEADS - 1) // BLOCK_HEADS
    tile = tl.program_id(0)
    group = tl.program_id(1) // HEAD_BLOCKS
    if SINGLE:
        request = tile
        first = tile  # row of the tile's first query
        end = tile + 1
    else:
        # Requests begin at tiles that need no sums of those before: some tiles stay empty.
        b = tl.arange(0, REQUESTS)
        starts = tl.load(query_starts + b, mask=b < requests, other=0)
        begun = (starts // BLOCK_QUERIES + b <= tile) & (b < requests)
        request = tl.sum(begun.to(tl.int32), 0) - 1
        start = tl.load(query_starts + request)
        end = tl.load(query_starts + request + 1)
        first = start + (tile - start // BLOCK_QUERIES - request) * BLOCK_QUERIES
        if first >= end:
            return
    length = tl.load(context_lens + request)
    m = tl.arange(0, BLOCK_ROWS)
    row = first + m // BLOCK_HEADS
    shared = (tl.program_id(1) % HEAD_BLOCKS) * BLOCK_HEADS + m % BLOCK_HEADS
    head = group * SHARED_BY + shared
    valid = (m < BLOCK_QUERIES * BLOCK_HEADS) & (row < end) & (shared < SHARED_BY)
    position = length - end + row
    d = tl.arange(0, MAIN_2)
    r = tl.arange(0, REST_2)
    at = q + row.to(tl.int64)[:, None] * q_row + head[:, None] * q_head
    q_main = tl.load(at + d[None, :], mask=valid[:, None] & (d < MAIN)[None, :], other=0)
    q_main = q_main.to(OPERAND)
    if REST > 0:
        q_rest = tl.load(at + MAIN + r[None, :], mask=valid[:, None] & (r < REST)[None, :], other=0)
        q_rest = q_rest.to(OPERAND)
    # What any of the queries sees, and this piece's share of it in whole blocks.
    until = tl.minimum(length, length - end + first + BLOCK_QUERIES)
    since = 0
    if window > 0:
        since = tl.maximum(length - end + first - window + 1, 0) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(until - since, BLOCK_N), pieces) * BLOCK_N
    since += tl.program_id(2) * share
    until = tl.minimum(until, since + share)
    best = tl.full((BLOCK_ROWS,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    if sinks is not None and parts is None:
        # A sink takes its share, and gives nothing.
        best = tl.load(sinks + head, mask=valid, other=0) * 1.4426950408889634
        total += 1.0
    result = tl.zeros((BLOCK_ROWS, MAIN_2), tl.float32)
    for block in range(since, until, BLOCK_N):
        n = block + tl.arange(0, BLOCK_N)
        there = (n < until)[:, None]
        page = tl.load(page_table + request * pages + n // page_tokens, mask=n < until, other=0)
        place = page.to(tl.int64) * page_stride + (n % page_tokens) * token_stride
        keys = pool + (place + layer_start + group * head_stride)[:, None]
        k_main = tl.load(keys + d[None, :], mask=there & (d < MAIN)[None, :], other=0).to(OPERAND)
        scores = tl.dot(q_main, tl.trans(k_main), input_precision="ieee")
        if REST > 0:
            k_rest = tl.load(keys + MAIN + r[None, :], mask=there & (r < REST)[None, :], other=0)
            scores = tl.dot(q_rest, tl.trans(k_rest.to(OPERAND)), scores, input_precision="ieee")
        behind = position[:, None] - n[None, :]
        seen = (behind >= 0) & (n < until)[None, :]
        if window > 0:
            seen = seen & (behind < window)
        scores *= scale
        if BOUNDED:
            # tanh(x) is 1 - 2 / (exp(2 x) + 1); `scale` has the 2 and what makes it a power of 2.
            scores = bound * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        scores = tl.where(seen, scores, -1e30)
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - new_best[:, None]), 0.0)
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weights, 1)
        if LATENT:
            v = k_main
        else:
            v = tl.load(keys + plane_stride + d[None, :], mask=there & (d < MAIN)[None, :], other=0)
            v = v.to(OPERAND)
        result = tl.dot(weights.to(OPERAND), v, result * shrink[:, None], input_precision="ieee")
        best = new_best
    inside = valid[:, None] & (d < MAIN)[None, :]
    if parts is None:
        at = out + row.to(tl.int64)[:, None] * out_row + head[:, None] * out_head + d[None, :]
        tl.store(at, result / tl.maximum(total, 1e-30)[:, None], mask=inside)
    else:
        at = (tl.program_id(2).to(tl.int64) * tokens + row) * heads + head
        tl.store(parts + at[:, None] * MAIN + d[None, :], result, mask=inside)
        tl.store(sums + at * 2, best, mask=valid)
        tl.store(sums + at * 2 + 1, total, mask=valid)


@triton.jit(do_not_specialize=["tokens", "pieces"])
def _put_together(
    parts,
    sums,
    sinks,
    out,
    tokens,
    heads,
    pieces,
    out_row,
    out_head,
    WIDTH: tl.constexpr,
    WIDTH_2: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    v = tl.arange(0, WIDTH_2)
    best = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    if sinks is not None:
        best = tl.load(sinks + head) * 1.4426950408889634
        total += 1.0
    result = tl.zeros((WIDTH_2,), tl.float32)
    at = token * heads + head
    for _ in range(pieces):
        new_best = tl.maximum(best, tl.load(sums + at * 2))
        shrink = tl.exp2(best - new_best)
        grow = tl.exp2(tl.load(sums + at * 2) - new_best)
        total = total * shrink + tl.load(sums + at * 2 + 1) * grow
        part = tl.load(parts + at * WIDTH + v, mask=v < WIDTH, other=0)
        result = result * shrink + part * grow
        best = new_best
        at += tokens * heads
    at = out + token * out_row + head * out_head + v
    tl.store(at, result / tl.maximum(total, 1e-30), mask=v < WIDTH)
