"""Causal attention within one segment on a CPU, a block of queries at a time, and its gradients.

Scores of a block become probabilities at once and are computed again in the backward pass, so
memory grows with the segment, not with its square. Scores are float32 whatever the operands are.

Shapes: T tokens, B queries of a block, S keys that they see, H heads, G heads of keys and values,
Q heads of queries for each of these, D elements of a query, E of a value.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from inlay.tune.products import matmul

# Of a block's scores: they are written and read several times, so they stay in a core's cache.
_BLOCK_BYTES = 1 << 20
_LEAST_QUERIES = 16


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_THD: Tensor, k_TGD: Tensor, v_TGE: Tensor, scale: float, window: int
    ) -> Tensor:
        ctx.save_for_backward(q_THD, k_TGD, v_TGE)
        ctx.scale, ctx.window = scale, window
        segment = _Segment(q_THD, k_TGD, v_TGE, scale, window)
        out_GQTE = q_THD.new_empty((*segment.q_GQTD.shape[:3], v_TGE.shape[-1]))
        for queries, keys in segment.blocks():
            p_GRS = segment.probabilities(queries, keys).to(v_TGE.dtype)
            out = out_GQTE[:, :, queries]
            out.copy_(matmul(p_GRS, segment.v_GTE[:, keys]).view(out.shape))
        return out_GQTE.permute(2, 0, 1, 3).reshape(len(q_THD), -1, v_TGE.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient_THE: Tensor) -> Any:
        q_THD, k_TGD, v_TGE = ctx.saved_tensors
        segment = _Segment(q_THD, k_TGD, v_TGE, ctx.scale, ctx.window)
        k_GTD, v_GTE, dtype = k_TGD.transpose(0, 1), segment.v_GTE, q_THD.dtype
        gradient_GQTE = _by_group(gradient_THE, len(k_GTD))
        of_q_GQTD = torch.empty_like(segment.q_GQTD)
        of_k_GTD = k_GTD.new_zeros(k_GTD.shape, dtype=torch.float32)
        of_v_GTE = v_GTE.new_zeros(v_GTE.shape, dtype=torch.float32)
        for queries, keys in segment.blocks():
            p_GRS = segment.probabilities(queries, keys)
            g_GRE = gradient_GQTE[:, :, queries].flatten(1, 2)
            of_v_GTE[:, keys] += matmul(p_GRS.to(dtype).transpose(1, 2), g_GRE)
            of_p_GRS = matmul(g_GRE, v_GTE[:, keys].transpose(1, 2)).float()
            of_scores_GRS = torch._softmax_backward_data(of_p_GRS, p_GRS, -1, torch.float32)
            of_scores_GRS = of_scores_GRS.to(dtype)
            of_q = of_q_GQTD[:, :, queries]
            of_q.copy_(matmul(of_scores_GRS, k_GTD[:, keys]).view(of_q.shape))
            q_GRD = segment.q_GQTD[:, :, queries].flatten(1, 2).to(dtype)
            of_k_GTD[:, keys] += matmul(of_scores_GRS.transpose(1, 2), q_GRD)
        of_q_THD = of_q_GQTD.mul_(ctx.scale).permute(2, 0, 1, 3).reshape(q_THD.shape)
        of_k_TGD, of_v_TGE = (x.transpose(0, 1).to(dtype) for x in (of_k_GTD, of_v_GTE))
        return of_q_THD.to(dtype), of_k_TGD, of_v_TGE, None, None


class _Segment:
    """Operands by groups: heads of queries that share keys are rows of one product."""

    def __init__(
        self, q_THD: Tensor, k_TGD: Tensor, v_TGE: Tensor, scale: float, window: int
    ) -> None:
        self._window = window
        self.q_GQTD = _by_group(q_THD, k_TGD.shape[1]).float() * scale
        self._k_GDT = k_TGD.permute(1, 2, 0).float()
        self.v_GTE = v_TGE.transpose(0, 1)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Queries, and the keys that some of them see."""
        tokens, heads = self.q_GQTD.shape[2], self.q_GQTD.shape[:2].numel()
        seen = min(tokens, self._window or tokens)
        step = max(_LEAST_QUERIES, _BLOCK_BYTES // (4 * heads * seen))
        for start in range(0, tokens, step):
            end = min(start + step, tokens)
            first = max(0, start - self._window + 1) if self._window else 0
            yield slice(start, end), slice(first, end)

    def probabilities(self, queries: slice, keys: slice) -> Tensor:
        """`[G, Q * B, S]`, float32."""
        q_GQBD = self.q_GQTD[:, :, queries]
        scores_GRS = torch.bmm(q_GQBD.flatten(1, 2), self._k_GDT[:, :, keys])
        scores_GQBS = scores_GRS.view(*q_GQBD.shape[:3], -1)
        rows, before = q_GQBD.shape[2], queries.start - keys.start
        every = torch.ones(rows, rows, dtype=torch.bool, device=scores_GRS.device)
        scores_GQBS[..., before:].masked_fill_(every.triu(1), -torch.inf)
        if keys.start or before + rows > self._window > 0:
            every = every.new_ones(rows, scores_GQBS.shape[-1])
            scores_GQBS.masked_fill_(every.tril(before - self._window), -torch.inf)
        return scores_GRS.softmax(-1)


def _by_group(x_THD: Tensor, groups: int) -> Tensor:
    """`[G, Q, T, D]`."""
    tokens, _, dim = x_THD.shape
    return x_THD.view(tokens, groups, -1, dim).permute(1, 2, 0, 3)


def attend_blocks(
    q_THD: Tensor, k_TGD: Tensor, v_TGE: Tensor, *, scale: float, window: int
) -> Tensor:
    """What each token of a segment takes from those before it and itself, `[T, H, E]`.

    Args:
        q_THD, k_TGD, v_TGE: of one dtype, float32 or bfloat16.
        window: tokens that a query sees, itself included; 0: all before it.

    Cost: beside the operands, some float32 copies of them and `_BLOCK_BYTES` a few times, or that
        of 16 queries where these have more scores.
    Source: attention by blocks that are computed again as in FlashAttention (arXiv 2205.14135),
        over whole rows of scores, as rows of a block fit into a CPU's cache.
    """
    out_THE: Tensor = _Blocked.apply(q_THD, k_TGD, v_TGE, scale, window)  # type: ignore[no-untyped-call]
    return out_THE
