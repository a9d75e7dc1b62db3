"""Routed experts: choosing them, and running the chosen ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from inlay.core.errors import ArgumentError
from inlay.kernels import _backend
from inlay.kernels._adapters import ExpertAdapter
from inlay.kernels._arrays import Array
from inlay.kernels._pending import Pending

if TYPE_CHECKING:
    from inlay._native import kernels

    ExpertWeights = kernels.ExpertWeights
else:
    ExpertWeights = _backend.ops.ExpertWeights


@dataclass(frozen=True, slots=True)
class Activation:
    """What lies between an expert's gate/up and down products.

    With `g = min(gate, limit)` and `u = clip(up, -limit, limit)` it is
    `g * sigmoid(alpha * g) * (u + up_offset)`. The defaults are SiLU times up; gpt-oss has
    `Activation(alpha=1.702, limit=7, up_offset=1)`.
    """

    alpha: float = 1.0
    limit: float = inf
    up_offset: float = 0.0


SILU = Activation()
"""`silu(gate) * up`."""


def pack_experts(
    gate_EFM: Array, up_EFM: Array, down_EMF: Array, format: str | None = None
) -> ExpertWeights:
    """Copy all experts of one layer into the layout that `moe` reads.

    Args:
        gate_EFM, up_EFM: float32, or bfloat16 (torch, or its bits as NumPy uint16).
        down_EMF: the same dtype.
        format: one of `FORMATS`; by default the dtype that is given.

    Raises:
        NotFiniteError: a row holds a NaN or an infinity, or a value that becomes one in the format.
        ArgumentError: the shapes do not fit together. Both messages name the argument.

    A loader that does not want all experts in memory twice creates
    `ExpertWeights(num_experts, hidden, intermediate, format, bias)` and calls
    `set(expert, gate_FM, up_FM, down_MF)` for one expert at a time, with `gate_bias_F`, `up_bias_F`
    and `down_bias_M` where it has biases, or `set_quantized`, with `gate_q_FM`, `gate_scales_FG`
    and so on as `quantize` gives them or a file holds them. `dequantize(expert)` gives the weights
    that kernels use, `panels(expert)` the bytes that hold them, of gate/up and of down, as one NUMA
    node has them; `copy_panels(expert, gate_up, down)` writes these to memory of the caller's.
    `copy(expert, source, source_expert)` takes one of other experts as it is packed there, without
    any rounding; threads may copy different ones at once.
    """
    if len(gate_EFM.shape) != 3:
        raise ArgumentError(f"gate_EFM: must have 3 dimensions, has {len(gate_EFM.shape)}")
    num_experts, intermediate, hidden = gate_EFM.shape
    for name, array in (("up_EFM", up_EFM), ("down_EMF", down_EMF)):
        if len(array.shape) != 3 or array.shape[0] != num_experts:
            raise ArgumentError(
                f"{name}: has shape {tuple(array.shape)}, but gate_EFM has {num_experts} experts"
            )
    if format is None:
        format = "float32" if str(gate_EFM.dtype).endswith("float32") else "bfloat16"  # type: ignore[attr-defined]
    experts = ExpertWeights(num_experts, hidden, intermediate, format)
    for e in range(num_experts):
        experts.set(e, gate_EFM[e], up_EFM[e], down_EMF[e])  # type: ignore[index]
    return experts


def moe(
    x_TM: Array,
    experts: ExpertWeights,
    expert_ids_TK: Array,
    routing_TK: Array,
    out_TM: Array,
    *,
    accumulate: bool = False,
    expert_mask_E: Array | None = None,
    activation: Activation = SILU,
    shared: ExpertWeights | None = None,
    adapters: Sequence[tuple[ExpertAdapter | None, ExpertAdapter | None, int, int]] = (),
) -> None:
    """Write the weighted sum of each token's experts, `down(activation(gate x, up x))`, to `out`.

    Args:
        x_TM: float32, any row stride, contiguous columns. T may be 0.
        experts: weights of one layer.
        expert_ids_TK: int32, contiguous, in any order; a negative id is skipped (the expert lives
            elsewhere).
        routing_TK: float32, contiguous; the weight of each chosen expert.
        out_TM: float32, writable, apart from the other arrays.
        accumulate: add to what `out` holds.
        expert_mask_E: bool or uint8; experts with 0 run elsewhere and are skipped, their routing
            weights are not looked at.
        activation: of routed and shared experts.
        shared: experts that every token takes with weight 1, of the same hidden size and any
            format.
        adapters: of the experts and of the shared ones, each pair with its rows, first to end, in
            their order and apart (see `add_adapters`). They add to gate and up before the
            activation.

    Raises:
        ArgumentError: a shape, dtype or stride is wrong, an id is not below the number of experts,
            or a routing weight is not finite; the message names the argument.

    Tolerance: as `linear`, three products in a row, the activated values being rounded again to
        the format's operand; exp is good to 2e-7. A token's shared experts are added first, then
        its routed ones in ascending id order. Adapters meet activations that are not rounded.
    Cost: reads each chosen expert once; scratch of T * K * F floats for up to 1,024 tokens. Without
        adapters nothing for them, with some nothing for rows of no adapter.
    """
    _backend.ops.moe(
        x_TM,
        experts,
        expert_ids_TK,
        routing_TK,
        out_TM,
        accumulate,
        expert_mask_E,
        activation.alpha,
        activation.limit,
        activation.up_offset,
        shared,
        adapters,
    )


def submit_moe(
    x_TM: Array,
    experts: ExpertWeights,
    expert_ids_TK: Array,
    routing_TK: Array,
    out_TM: Array,
    *,
    accumulate: bool = False,
    expert_mask_E: Array | None = None,
    activation: Activation = SILU,
    shared: ExpertWeights | None = None,
) -> Pending:
    """As `moe`, but beside the caller: start the work and return at once.

    Arguments are checked here. Ids, routing weights and the mask are copied; x and `out` are kept,
    leave them alone until `Pending.wait` returns. Submitted calls run one after the other, in the
    order of submission.

    Raises:
        ArgumentError: as `moe`, here and not at the wait.
        ResourceError: the system refuses the thread.

    Cost: one more thread, which sleeps between calls and computes with the pool during them.
    """
    pending: Pending = _backend.ops.submit_moe(
        x_TM,
        experts,
        expert_ids_TK,
        routing_TK,
        out_TM,
        accumulate,
        expert_mask_E,
        activation.alpha,
        activation.limit,
        activation.up_offset,
        shared,
    )
    return pending


def router_topk(
    logits_TE: Array,
    top_k: int,
    normalize: bool,
    out_ids_TK: Array,
    out_weights_TK: Array,
    *,
    score: Literal["softmax", "sigmoid"] = "softmax",
    correction_E: Array | None = None,
    groups: int = 1,
    groups_per_token: int = 1,
    group_score: Literal["best", "best_two"] = "best",
    scale: float = 1.0,
) -> None:
    """Choose the `top_k` experts with the largest scores, in descending order, and weigh them.

    Args:
        logits_TE: float32, any row stride, contiguous columns. -infinity shuts an expert out of a
            softmax: its weight is 0.
        top_k: experts per token, 1 to those of `groups_per_token` groups.
        normalize: divide the chosen scores by their sum; of sigmoids, 1e-20 is added to it.
        out_ids_TK: int32, contiguous; of equal scores the lower id comes first.
        out_weights_TK: float32, contiguous.
        score: softmax over all experts, as in Qwen3-MoE, or the sigmoid of each, as in DeepSeek-V3.
        correction_E: float32, added to scores for the choice alone.
        groups, groups_per_token: experts are chosen from so many of so many groups of neighbours,
            those that count most (of equal ones the lower). Source: DeepSeek-V2 (arXiv 2405.04434).
        group_score: what a group counts: its best expert, or the sum of its best two.
        scale: factor of the weights, at the end.

    Raises:
        ArgumentError: a shape, dtype or number is wrong, or a row has no scores (a NaN; for a
            softmax +infinity, or nothing but -infinity); the message names the argument.

    Tolerance: 1e-6 relative on the weights.
    """
    _backend.ops.router_topk(
        logits_TE,
        top_k,
        normalize,
        out_ids_TK,
        out_weights_TK,
        score == "sigmoid",
        correction_E,
        groups,
        groups_per_token,
        group_score == "best_two",
        scale,
    )
