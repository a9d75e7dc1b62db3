"""Routed experts: choosing them, and running the chosen ones."""

from typing import TYPE_CHECKING

from inlay.core.errors import ArgumentError
from inlay.kernels import _backend
from inlay.kernels._arrays import Array

if TYPE_CHECKING:
    from inlay._native import kernels

    ExpertWeights = kernels.ExpertWeights
else:
    ExpertWeights = _backend.ops.ExpertWeights


def pack_experts(
    gate_EFM: Array, up_EFM: Array, down_EMF: Array, dtype: str | None = None
) -> ExpertWeights:
    """Copy all experts of one layer into the layout that `moe` reads.

    Args:
        gate_EFM, up_EFM: float32, or bfloat16 (torch, or its bits as NumPy uint16).
        down_EMF: the same dtype.
        dtype: `float32` or `bfloat16` to hold another dtype than given.

    Raises:
        ArgumentError: the shapes do not fit together; the message names the argument.

    A loader that does not want all experts in memory twice creates
    `ExpertWeights(num_experts, hidden, intermediate, dtype)` and calls
    `set(expert, gate_FM, up_FM, down_MF)` for one expert at a time.
    """
    if len(gate_EFM.shape) != 3:
        raise ArgumentError(f"gate_EFM: must have 3 dimensions, has {len(gate_EFM.shape)}")
    num_experts, intermediate, hidden = gate_EFM.shape
    for name, array in (("up_EFM", up_EFM), ("down_EMF", down_EMF)):
        if len(array.shape) != 3 or array.shape[0] != num_experts:
            raise ArgumentError(
                f"{name}: has shape {tuple(array.shape)}, but gate_EFM has {num_experts} experts"
            )
    if dtype is None:
        dtype = "float32" if str(gate_EFM.dtype).endswith("float32") else "bfloat16"  # type: ignore[attr-defined]
    experts = ExpertWeights(num_experts, hidden, intermediate, dtype)
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
) -> None:
    """Write the weighted sum of each token's experts, `down(silu(gate x) * up x)`, to `out`.

    Args:
        x_TM: float32, any row stride, contiguous columns. T may be 0.
        experts: weights of one layer.
        expert_ids_TK: int32, contiguous, in any order; a negative id is skipped (the expert lives
            elsewhere).
        routing_TK: float32, contiguous; the weight of each chosen expert.
        out_TM: float32, writable, apart from x.
        accumulate: add to what `out` holds.

    Raises:
        ArgumentError: a shape, dtype or stride is wrong, an id is not below the number of experts,
            or a routing weight is not finite; the message names the argument.

    Tolerance: as `linear`, three products in a row; exp is good to 2e-7. The experts of a token
        are added in ascending id order.
    Cost: reads each chosen expert once; scratch of T * K * F floats for up to 1,024 tokens.
    """
    _backend.ops.moe(x_TM, experts, expert_ids_TK, routing_TK, out_TM, accumulate)


def router_topk(
    logits_TE: Array,
    top_k: int,
    normalize: bool,
    out_ids_TK: Array,
    out_weights_TK: Array,
) -> None:
    """Softmax over all experts, then the `top_k` largest in descending order, as in Qwen3-MoE.

    Args:
        logits_TE: float32, any row stride, contiguous columns.
        top_k: experts per token, 1 to E.
        normalize: divide the chosen weights by their sum.
        out_ids_TK: int32, contiguous; of equal weights the lower id comes first.
        out_weights_TK: float32, contiguous.

    Raises:
        ArgumentError: a shape or dtype is wrong, or a logit is NaN; the message names the argument.

    Tolerance: 1e-6 relative on the weights.
    """
    _backend.ops.router_topk(logits_TE, top_k, normalize, out_ids_TK, out_weights_TK)
