"""Choosing the experts of each token, and weighing them.

Shapes: T tokens, E experts, K of each token, N groups of neighbours.
"""

import triton
import triton.language as tl
from torch import Tensor

from inlay.core.model_shape import RouterShape
from inlay.models.gpu.launch import on_its_gpu


@on_its_gpu
def route(
    logits_TE: Tensor,
    router: RouterShape,
    correction_E: Tensor | None,
    out_ids_TK: Tensor,
    out_weights_TK: Tensor,
) -> None:
    """See `Ops.route`. Of equal scores the lower id comes first.

    Tolerance: 1e-6 relative on the weights.
    """
    tokens, experts = logits_TE.shape
    if not tokens:
        return
    _route[(tokens,)](
        logits_TE,
        correction_E,
        out_ids_TK,
        out_weights_TK,
        logits_TE.stride(0),
        router.scale,
        1e-20 if router.score == "sigmoid" else 0.0,
        EXPERTS=experts,
        EXPERTS_2=triton.next_power_of_2(experts),
        CHOICES=out_ids_TK.shape[1],
        CHOICES_2=triton.next_power_of_2(out_ids_TK.shape[1]),
        GROUPS=router.groups,
        GROUPS_2=triton.next_power_of_2(router.groups),
        OPEN_GROUPS=router.groups_per_token,
        BEST_TWO=router.group_score == "best_two",
        SIGMOID=router.score == "sigmoid",
        NORMALIZE=router.normalize,
        num_warps=2,
    )


@triton.jit
def _route(
    logits,
    correction,
    out_ids,
    out_weights,
    row,
    scale,
    least,
    EXPERTS: tl.constexpr,
    EXPERTS_2: tl.constexpr,
    CHOICES: tl.constexpr,
    CHOICES_2: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_2: tl.constexpr,
    OPEN_GROUPS: tl.constexpr,
    BEST_TWO: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, EXPERTS_2)
    inside = e < EXPERTS
    score = tl.load(logits + token * row + e, mask=inside, other=float("-inf"))
    if SIGMOID:
        score = tl.sigmoid(score)
    else:
        score = tl.exp(score - tl.max(score, 0))
        score = score / tl.sum(score, 0)
    wanted = score
    if correction is not None:
        wanted += tl.load(correction + e, mask=inside, other=0)
    wanted = tl.where(inside, wanted, float("-inf"))
    if OPEN_GROUPS < GROUPS:
        g = tl.arange(0, GROUPS_2)
        group = e // (EXPERTS // GROUPS)
        counts = tl.full((GROUPS_2,), float("-inf"), tl.float32)
        for i in tl.static_range(GROUPS):
            its = tl.where((group == i) & inside, wanted, float("-inf"))
            best = tl.max(its, 0)
            if BEST_TWO:
                best += tl.max(tl.where(e == tl.argmax(its, 0), float("-inf"), its), 0)
            counts = tl.where(g == i, best, counts)
        is_open = tl.zeros((EXPERTS_2,), tl.int1)
        for _ in tl.static_range(OPEN_GROUPS):
            chosen = tl.argmax(counts, 0)
            counts = tl.where(g == chosen, float("-inf"), counts)
            is_open = is_open | (group == chosen)
        wanted = tl.where(is_open, wanted, float("-inf"))
    k = tl.arange(0, CHOICES_2)
    ids = tl.zeros((CHOICES_2,), tl.int32)
    weights = tl.zeros((CHOICES_2,), tl.float32)
    for i in tl.static_range(CHOICES):
        chosen = tl.argmax(wanted, 0)
        wanted = tl.where(e == chosen, float("-inf"), wanted)
        ids = tl.where(k == i, chosen, ids)
        weights = tl.where(k == i, tl.sum(tl.where(e == chosen, score, 0.0), 0), weights)
    if NORMALIZE:
        weights = weights / (tl.sum(weights, 0) + least)
    at = token * CHOICES + k
    tl.store(out_ids + at, ids, mask=k < CHOICES)
    tl.store(out_weights + at, weights * scale, mask=k < CHOICES)
