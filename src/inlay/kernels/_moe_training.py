"""Routed experts in training: frozen weights in any format, LoRA on every expert."""

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inlay.kernels import _backend
from inlay.kernels._arrays import Array
from inlay.kernels._moe import SILU, Activation, ExpertWeights

if TYPE_CHECKING:
    from inlay._native import kernels

    SavedMoe = kernels.SavedMoe
else:
    SavedMoe = _backend.ops.SavedMoe

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLora:
    """Low-rank additions to the matrices of every expert: `W x + scale B (A x)`, rank R.

    Attributes:
        gate_a_ERM, up_a_ERM, down_a_ERF: float32, contiguous: A of PEFT's `lora_A.weight`.
        gate_b_EFR, up_b_EFR, down_b_EMR: float32, contiguous: B of PEFT's `lora_B.weight`.
        scale: alpha / R, or alpha / sqrt(R).
    """

    gate_a_ERM: Array
    gate_b_EFR: Array
    up_a_ERM: Array
    up_b_EFR: Array
    down_a_ERF: Array
    down_b_EMR: Array
    scale: float

    @property
    def matrices(self) -> tuple[Array, ...]:
        """The six matrices in the order above."""
        return tuple(getattr(self, field.name) for field in fields(self)[:6])


@dataclass(frozen=True, slots=True)
class MoeGradients:
    """Gradients of one `moe_saving`, float32.

    Attributes:
        x_TM: of the input.
        routing_TK: of the routing weights; 0 where the id is negative.
        lora: of the six matrices in the order of `ExpertLora.matrices`, zeros of experts without
            tokens; None without a LoRA.
    """

    x_TM: F32
    routing_TK: F32
    lora: tuple[F32, ...] | None


def moe_saving(
    x_TM: Array,
    experts: ExpertWeights,
    expert_ids_TK: Array,
    routing_TK: Array,
    out_TM: Array,
    *,
    lora: ExpertLora | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    activation: Activation = SILU,
    recompute: bool = False,
) -> SavedMoe:
    """Write what `moe` writes, with LoRA, to `out`, and keep what `moe_backward` needs.

    Args:
        x_TM: float32, any row stride, contiguous columns. T may be 0. Copied.
        experts: frozen weights of one layer in any format, the very ones that `moe` reads; kept by
            reference.
        expert_ids_TK: int32, contiguous; a negative id is skipped. Distinct within a token.
        routing_TK: float32, contiguous.
        out_TM: float32, writable, apart from the other arrays.
        lora: kept by reference: leave it alone until `moe_backward` returns.
        dropout: share of the inputs of A matrices that are dropped, the others being divided by
            `1 - dropout`. A draw is a hash of the seed, the token's row and the feature: one for
            gate and up of all of a token's experts, one per expert for down. Activations of the
            frozen weights are never dropped.
        seed: of the draws, below 2^64; another one for every layer and step.
        activation: as in `moe`.
        recompute: keep x alone; `moe_backward` runs gate and up again.

    Returns:
        What is kept, for one `moe_backward`; `nbytes` says how much it is.

    Raises:
        ArgumentError: a shape, dtype or stride is wrong, an id is not below the number of experts,
            or a routing weight is not finite; the message names the argument.

    Shared experts are a second call, with every token's weight 1.
    Tolerance: float32 weights are multiplied in fp32. All other formats are taken apart to bf16, a
        piece at a time in the caches, and meet activations rounded to bf16 (`moe` rounds them to
        int8 beside integers); sums and the LoRA's matrices are fp32. Relative error in L2 below
        1e-5 with float32 weights, else below 1 %, against float64 on the weights that kernels use.
        A token has the same bits whatever else is in the call and with any number of threads; its
        experts are added in ascending id order.
    Cost: keeps M + 2 K F values per token, of 2 bytes (4 beside float32 weights), and 3 R K floats;
        with `recompute` not the 2 K F. Each chosen expert is read once.
    """
    given = (None, 1.0) if lora is None else (lora.matrices, lora.scale)
    saved: SavedMoe = _backend.ops.moe_saving(
        x_TM,
        experts,
        expert_ids_TK,
        routing_TK,
        out_TM,
        *given,
        dropout,
        seed,
        activation.alpha,
        activation.limit,
        activation.up_offset,
        recompute,
    )
    return saved


def moe_backward(saved: SavedMoe, grad_out_TM: Array) -> MoeGradients:
    """The gradients of one `moe_saving`.

    Args:
        saved: used up by this call.
        grad_out_TM: float32, any row stride, contiguous columns: the gradient of `out_TM`.

    Raises:
        ArgumentError: the shape or dtype is wrong, or `saved` was used before.

    Tolerance: as `moe_saving`; gradients of gate and up are rounded to bf16 once more.
    Cost: as many products as the forward pass, and again those of gate and up after `recompute`. No
        second copy of the weights: pieces of the panels are transposed in the caches, once for all
        rows of an expert. The formulas are in `docs/kernels.md`, "Training".
    """
    gradients = MoeGradients(
        np.empty(saved.x_shape, np.float32),
        np.empty(saved.routing_shape, np.float32),
        _empty_lora(saved),
    )
    _backend.ops.moe_backward(
        saved, grad_out_TM, gradients.x_TM, gradients.routing_TK, gradients.lora
    )
    return gradients


def _empty_lora(saved: SavedMoe) -> tuple[F32, ...] | None:
    rank, experts = saved.lora_rank, saved.experts
    if rank == 0:
        return None
    e, f, m = experts.num_experts, experts.intermediate, experts.hidden
    wide, narrow, down = (e, rank, m), (e, f, rank), (e, rank, f)
    shapes = (wide, narrow, wide, narrow, down, (e, m, rank))
    # Of one piece of memory: large enough for huge pages, it costs few page faults.
    sizes = [math.prod(shape) for shape in shapes]
    parts = np.split(np.empty(sum(sizes), np.float32), np.cumsum(sizes)[:-1])
    return tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
