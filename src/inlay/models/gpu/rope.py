"""Normalising and rotating new queries and keys, and writing keys and values to their pages.

Shapes: T new tokens, H query heads, G key heads, D head width, C rotated pairs.
"""

import triton
import triton.language as tl
from torch import Tensor

from inlay.models.gpu.launch import on_its_gpu


@on_its_gpu
def rope_and_store(
    qkv_TX: Tensor,
    cos_TC: Tensor,
    sin_TC: Tensor,
    data: Tensor,
    layer: int,
    slots_T: Tensor,
    *,
    heads: int,
    first: int = 0,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 1e-6,
    rotate_first: bool = False,
) -> None:
    """Change q and k in place, and write k, and v where the pool has a plane for it.

    Args:
        qkv_TX: float32 rows of H query heads, G key heads, and G value heads where there are some.
        cos_TC, sin_TC: float32, of the tokens' positions; rows contiguous.
        data: the pool, `[pages, layers, planes, page_tokens, G, D]`.
        layer: its number.
        slots_T: int64, `page_id * page_tokens + offset` of each token; one of a negative slot is
            not stored.
        heads: H.
        first: element of a head from which on 2 C are rotated, each with the one C behind it.
        q_norm_D, k_norm_D: float32, weights of RMS norms.
        eps: of those.
        rotate_first: they come after the rotation.

    Tolerance: fp32 rounding, and the pool's dtype.
    """
    tokens = len(qkv_TX)
    _, _, planes, page_tokens, kv_heads, head_dim = data.shape
    if not tokens:
        return
    _rotate[(tokens, heads + planes * kv_heads)](
        qkv_TX,
        cos_TC,
        sin_TC,
        data,
        slots_T,
        q_norm_D,
        k_norm_D,
        qkv_TX.stride(0),
        cos_TC.stride(0),
        layer * data.stride(1),
        data.stride(0),
        data.stride(2),
        data.stride(3),
        page_tokens,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        WIDTH=head_dim,
        WIDTH_2=triton.next_power_of_2(head_dim),
        FIRST=first,
        PAIRS=cos_TC.shape[-1],
        ROTATE_FIRST=rotate_first,
        num_warps=1,
    )


@triton.jit
def _rotate(
    qkv,
    cos,
    sin,
    pool,
    slots,
    q_norm,
    k_norm,
    row_stride,
    cos_row,
    layer_start,
    page_stride,
    plane_stride,
    token_stride,
    page_tokens,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_2: tl.constexpr,
    FIRST: tl.constexpr,
    PAIRS: tl.constexpr,
    ROTATE_FIRST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, WIDTH_2)
    inside = d < WIDTH
    at = qkv + token * row_stride + head * WIDTH
    x = tl.load(at + d, mask=inside, other=0)
    if head < HEADS + KV_HEADS:
        pair = d - FIRST
        rotated = (pair >= 0) & (pair < 2 * PAIRS)
        low = pair < PAIRS
        other = tl.where(rotated, tl.where(low, d + PAIRS, d - PAIRS), d)
        y = tl.load(at + other, mask=inside, other=0)
        if q_norm is not None and not ROTATE_FIRST:
            norm = q_norm if head < HEADS else k_norm
            root = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
            x = x * root * tl.load(norm + d, mask=inside, other=0)
            y = y * root * tl.load(norm + other, mask=inside, other=0)
        c = token * cos_row + tl.where(low, pair, pair - PAIRS)
        cosine = tl.load(cos + c, mask=rotated, other=1)
        sine = tl.load(sin + c, mask=rotated, other=0)
        x = x * cosine + tl.where(low, -y, y) * sine
        if q_norm is not None and ROTATE_FIRST:
            norm = q_norm if head < HEADS else k_norm
            root = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
            x = x * root * tl.load(norm + d, mask=inside, other=0)
        tl.debug_barrier()  # all have read before one writes
        tl.store(at + d, x, mask=inside)
    if head >= HEADS:
        slot = tl.load(slots + token)
        plane = (head - HEADS) // KV_HEADS
        place = (slot // page_tokens) * page_stride + (slot % page_tokens) * token_stride
        place += layer_start + plane * plane_stride + ((head - HEADS) % KV_HEADS) * WIDTH
        tl.store(pool + place + d, x.to(pool.dtype.element_ty), mask=inside & (slot >= 0))
