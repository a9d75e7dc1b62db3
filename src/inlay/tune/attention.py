"""Attention over packed rows: each token sees the tokens before it in its own segment.

Shapes: T tokens, H heads, G heads of keys and values, D elements of a query, C rotated pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.core.model_shape import ModelShape
from inlay.models.rope import rope_tables
from inlay.tune.blocked_attention import attend_blocks


@dataclass(frozen=True)
class Rows:
    """The tokens of one forward pass, all examples one behind the other.

    Attributes:
        token_ids_T: int64.
        starts: where each segment begins, and the number of tokens at the end.
        cos_T1C, sin_T1C: of each token's position.
    """

    token_ids_T: Tensor
    starts: Sequence[int]
    cos_T1C: Tensor
    sin_T1C: Tensor


def rows_of(
    shape: ModelShape,
    token_ids_T: Tensor,
    positions_T: Tensor,
    starts: Sequence[int],
    device: torch.device,
) -> Rows:
    """Bring the tokens of a pass to a device, with the rotation of their positions."""
    tables = rope_tables(shape.rope, int(positions_T.max()) + 1)
    cos_T1C, sin_T1C = (torch.from_numpy(table)[positions_T, None].to(device) for table in tables)
    return Rows(token_ids_T, starts, cos_T1C, sin_T1C)


def rotate(x_THC: Tensor, rows: Rows, *, interleaved: bool) -> Tensor:
    """Rotate all elements of each head, `[T, H, 2C]`; in float32, given in the dtype of `x`."""
    wide = x_THC.float()
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    turned = (
        first * rows.cos_T1C - second * rows.sin_T1C,
        second * rows.cos_T1C + first * rows.sin_T1C,
    )
    # Where a pair is among the others is the same for queries and keys, which is all that scores
    # depend on.
    return torch.cat(turned, dim=-1).to(x_THC.dtype)


def attend(
    q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, rows: Rows, *, scale: float, window: int
) -> Tensor:
    """What each token takes of its segment, `[T, H * D of v]`.

    Args:
        window: tokens that a query sees, itself included; 0: all before it.

    Cost: one call for each segment; on a device, memory that grows with the square of a segment
        only where it is longer than the window.
    """
    # PyTorch's own form for CPUs takes 1.4 to 1.8 times as long, and its gradients of bfloat16
    # are twice as far from exact ones.
    segment = attend_blocks if q_THD.device.type == "cpu" else _attend_on_device
    parts = [
        segment(q_THD[start:end], k_TGD[start:end], v_TGD[start:end], scale=scale, window=window)
        for start, end in zip(rows.starts, rows.starts[1:], strict=False)
    ]
    return torch.cat(parts).flatten(1)


def _attend_on_device(
    q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, *, scale: float, window: int
) -> Tensor:
    value_dim = v_TGD.shape[-1]
    if value_dim < q_THD.shape[-1]:  # one size of heads is what the fused forms take
        v_TGD = F.pad(v_TGD, (0, q_THD.shape[-1] - value_dim))
    length = len(q_THD)
    seen = None
    if 0 < window < length:
        numbers = torch.arange(length, device=q_THD.device)
        behind = numbers[:, None] - numbers
        seen = (behind >= 0) & (behind < window)
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TGD, v_TGD))
    out_HTD = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=seen,
        is_causal=seen is None,
        scale=scale,
        enable_gqa=q_THD.shape[1] != k_TGD.shape[1],
    )[0]
    return out_HTD.transpose(0, 1)[..., :value_dim]
