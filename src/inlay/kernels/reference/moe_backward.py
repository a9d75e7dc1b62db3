"""Training routed experts: a forward pass that keeps what the backward pass needs, and that pass.

Plain formulas on the dequantised weights, in the precision of x: float64 inputs give the numbers
that kernels are measured against.
"""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError
from inlay.kernels._checks import array_of, check, check_apart, check_size
from inlay.kernels.reference.dropout import kept_scales

LORA_NAMES = ("gate_a_ERM", "gate_b_EFR", "up_a_ERM", "up_b_EFR", "down_a_ERF", "down_b_EMR")
_FLOATS = (np.float32, np.float64)

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class _Lora:
    """The matrices of all experts in the order of `LORA_NAMES`."""

    matrices: tuple[Floats, ...]
    scale: float
    dropout: float
    seed: int

    @property
    def rank(self) -> int:
        """Of all matrices."""
        return int(self.matrices[0].shape[1])

    def low_rank(self, x_TK: Floats, pair: int, expert: int) -> Floats:
        """`scale (x A)` of the pair's matrices: 0 gate, 1 up, 2 down."""
        product: Floats = self.scale * (x_TK @ self.matrices[2 * pair][expert].T)
        return product

    def masks(
        self, expert: int, tokens: npt.NDArray[np.int64], sizes: tuple[int, int]
    ) -> tuple[Floats | float, Floats | float]:
        """Factors of the inputs of gate and up, and of down."""
        if self.dropout == 0:
            return 1.0, 1.0
        x_size, h_size = sizes
        return (
            kept_scales(self.seed, 0, tokens, x_size, self.dropout),
            kept_scales(self.seed, 1 + expert, tokens, h_size, self.dropout),
        )


class SavedMoe:
    """What the backward pass of one call needs; for one use."""

    def __init__(
        self,
        x_TM: Floats,
        experts: Any,
        ids_TK: npt.NDArray[np.int32],
        routing_TK: Floats,
        lora: _Lora | None,
        activation: tuple[float, float, float],
        recompute: bool,
    ) -> None:
        self.x, self.experts, self.ids, self.routing = x_TM, experts, ids_TK, routing_TK
        self.lora, self.activation = lora, activation
        self.gate_up: dict[int, Floats] | None = None if recompute else {}
        self.used = False

    @property
    def nbytes(self) -> int:
        """Bytes held until the backward pass."""
        kept = (self.gate_up or {}).values()
        return int(self.x.nbytes + sum(values.nbytes for values in kept))

    @property
    def x_shape(self) -> tuple[int, int]:
        """Tokens and hidden size."""
        return (len(self.x), self.experts.hidden)

    @property
    def routing_shape(self) -> tuple[int, int]:
        """Tokens and experts per token."""
        return (len(self.ids), self.ids.shape[1])

    @property
    def lora_rank(self) -> int:
        """Rank of the LoRA; 0 without one."""
        return 0 if self.lora is None else self.lora.rank

    def chosen(self) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Each expert that has tokens, with its tokens and their places among the choices."""
        experts = np.unique(self.ids[self.ids >= 0])
        found = []
        for expert in experts:
            tokens, places = np.nonzero(self.ids == expert)
            found.append((int(expert), tokens, places))
        return found


@dataclass(frozen=True)
class _Expert:
    """One expert's weights and biases in the precision of the call."""

    gate_up: Floats
    down: Floats
    gate_up_bias: Floats
    down_bias: Floats

    @classmethod
    def of(cls, experts: Any, expert: int, dtype: Any) -> "_Expert":
        gate, up, down = (matrix.astype(dtype) for matrix in experts.dequantize(expert))
        biases = experts.biases()
        all_of_it = (
            np.zeros(2 * experts.intermediate + experts.hidden, dtype)
            if biases is None
            else biases[expert].astype(dtype)
        )
        split = 2 * experts.intermediate
        return cls(np.concatenate([gate, up]), down, all_of_it[:split], all_of_it[split:])

    def gate_up_of(self, x_TM: Floats, lora: _Lora | None, expert: int, mask: Any) -> Floats:
        """Gate and up values side by side, before the activation."""
        values: Floats = x_TM @ self.gate_up.T + self.gate_up_bias
        if lora is not None:
            half = values.shape[1] // 2
            for pair in range(2):
                b_FR = lora.matrices[2 * pair + 1][expert]
                low = lora.low_rank(mask * x_TM, pair, expert)
                values[:, pair * half : (pair + 1) * half] += low @ b_FR.T
        return values


def _activated(
    gate_up: Floats, activation: tuple[float, float, float]
) -> tuple[Floats, Floats, Floats]:
    """The activated values and their derivatives by gate and by up; a limit itself passes them."""
    alpha, limit, up_offset = activation
    gate, up = np.split(gate_up, 2, axis=1)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit) + up_offset
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-alpha * g))
    by_gate = sigmoid * (1 + alpha * g * (1 - sigmoid)) * u * (gate <= limit)
    return g * sigmoid * u, by_gate, g * sigmoid * (np.abs(up) <= limit)


def _checked_lora(lora: Any, experts: Any, scale: float, dropout: float, seed: int) -> _Lora | None:
    check(isfinite(scale), f"lora.scale: must be finite, got {scale}")
    check(0 <= dropout < 1, f"dropout: must be at least 0 and below 1, got {dropout}")
    check(0 <= seed < 1 << 64, f"seed: must be at least 0 and below 2^64, got {seed}")
    if lora is None:
        return None
    return _Lora(_lora_matrices(lora, experts, None), scale, dropout, seed)


def _lora_matrices(lora: Any, experts: Any, gradients_of: _Lora | None) -> tuple[Floats, ...]:
    """Six matrices, to be written if they are the gradients of others."""
    writable = gradients_of is not None
    prefix = "grad_lora." if writable else "lora."
    check(len(lora) == 6, f"{prefix[:-1]}: has {len(lora)} matrices, must have 6")
    f, m = experts.intermediate, experts.hidden
    arrays = [
        array_of(value, prefix + name, 3, _FLOATS, writable)
        for value, name in zip(lora, LORA_NAMES, strict=True)
    ]
    rank = arrays[0].shape[1]
    check(rank >= 1, f"{prefix}{LORA_NAMES[0]}: its rank must be at least 1, is {rank}")
    if gradients_of is not None:
        check_size(arrays[0], prefix + LORA_NAMES[0], 1, gradients_of.rank, "lora's rank")
    shapes = ((rank, m), (f, rank), (rank, m), (f, rank), (rank, f), (m, rank))
    for array, name, shape in zip(arrays, LORA_NAMES, shapes, strict=True):
        check_size(array, prefix + name, 0, experts.num_experts, "one matrix per expert")
        for dim in range(2):
            check_size(array, prefix + name, dim + 1, shape[dim], "the experts' size or the rank")
        check(array.flags.c_contiguous, f"{prefix}{name}: must be contiguous")
    return tuple(arrays)


def moe_saving(
    x_TM: Any,
    experts: Any,
    expert_ids_TK: Any,
    routing_TK: Any,
    out_TM: Any,
    lora: Any = None,
    lora_scale: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
    alpha: float = 1.0,
    limit: float = inf,
    up_offset: float = 0.0,
    recompute: bool = False,
) -> SavedMoe:
    """The weighted experts, added in ascending id order, and what `moe_backward` needs."""
    x, out = array_of(x_TM, "x_TM", 2, _FLOATS), array_of(out_TM, "out_TM", 2, _FLOATS, True)
    ids = array_of(expert_ids_TK, "expert_ids_TK", 2, np.int32)
    routing = array_of(routing_TK, "routing_TK", 2, _FLOATS)
    check_size(x, "x_TM", 1, experts.hidden, "the experts' hidden size")
    check_size(ids, "expert_ids_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 1, ids.shape[1], "experts per token of expert_ids_TK")
    check_size(out, "out_TM", 0, x.shape[0], "tokens of x_TM")
    check_size(out, "out_TM", 1, experts.hidden, "the experts' hidden size")
    check(isfinite(alpha), f"activation.alpha: must be finite, got {alpha}")
    check(limit > 0, f"activation.limit: must be above 0 (infinity: none), got {limit}")
    check(isfinite(up_offset), f"activation.up_offset: must be finite, got {up_offset}")
    high = int(ids.max(initial=-1))
    check(
        high < experts.num_experts,
        f"expert_ids_TK: id {high} is not below the {experts.num_experts} experts",
    )
    check(bool(np.isfinite(routing[ids >= 0]).all()), "routing_TK: a weight is not finite")
    check_apart("out_TM", out, x_TM=x, expert_ids_TK=ids, routing_TK=routing)
    checked = _checked_lora(lora, experts, lora_scale, dropout, seed)
    for name, matrix in zip(LORA_NAMES, checked.matrices if checked else (), strict=False):
        check_apart("out_TM", out, **{f"lora.{name}": matrix})
    saved = SavedMoe(
        x.copy(), experts, ids.copy(), routing.copy(), checked, (alpha, limit, up_offset), recompute
    )
    out[:] = 0
    for expert, tokens, places in saved.chosen():
        own = _Expert.of(experts, expert, x.dtype)
        x_mask, h_mask = _masks(checked, expert, tokens, experts)
        gate_up = own.gate_up_of(x[tokens], checked, expert, x_mask)
        h, _, _ = _activated(gate_up, saved.activation)
        result = h @ own.down.T + own.down_bias
        if checked is not None:
            result += checked.low_rank(h_mask * h, 2, expert) @ checked.matrices[5][expert].T
        np.add.at(out, tokens, routing[tokens, places, None] * result)
        if saved.gate_up is not None:
            saved.gate_up[expert] = gate_up
    return saved


def _masks(
    lora: _Lora | None, expert: int, tokens: npt.NDArray[np.int64], experts: Any
) -> tuple[Floats | float, Floats | float]:
    if lora is None:
        return 1.0, 1.0
    return lora.masks(expert, tokens, (experts.hidden, experts.intermediate))


def moe_backward(
    saved: SavedMoe,
    grad_out_TM: Any,
    grad_x_TM: Any,
    grad_routing_TK: Any,
    grad_lora: Any = None,
) -> None:
    """The gradients of one `moe_saving`, written to the arrays given for them."""
    experts, lora, x = saved.experts, saved.lora, saved.x
    grad_out = array_of(grad_out_TM, "grad_out_TM", 2, _FLOATS)
    grad_x = array_of(grad_x_TM, "grad_x_TM", 2, _FLOATS, writable=True)
    grad_routing = array_of(grad_routing_TK, "grad_routing_TK", 2, _FLOATS, writable=True)
    check(grad_routing.flags.c_contiguous, "grad_routing_TK: must be contiguous")
    for array, name, like in (
        (grad_out, "grad_out_TM", x),
        (grad_x, "grad_x_TM", x),
        (grad_routing, "grad_routing_TK", saved.routing),
    ):
        for dim in range(2):
            check_size(array, name, dim, like.shape[dim], "as in the forward pass")
    check(
        (grad_lora is None) == (lora is None),
        "grad_lora: must be given where the forward pass had a lora, and only there",
    )
    grads = () if grad_lora is None else _lora_matrices(grad_lora, experts, lora)
    outputs = {"grad_x_TM": grad_x, "grad_routing_TK": grad_routing}
    outputs |= {f"grad_lora.{name}": grad for name, grad in zip(LORA_NAMES, grads, strict=False)}
    inputs: dict[str, Any] = {"grad_out_TM": grad_out}
    if lora is not None:
        inputs |= {f"lora.{n}": m for n, m in zip(LORA_NAMES, lora.matrices, strict=True)}
    for name, output in outputs.items():
        check_apart(name, output, **inputs)
        inputs[name] = output
    if saved.used:
        raise ArgumentError("saved: its gradients were taken already; run the forward pass again")
    saved.used = True
    for output in outputs.values():
        output[:] = 0
    for expert, tokens, places in saved.chosen():
        own = _Expert.of(experts, expert, x.dtype)
        x_mask, h_mask = _masks(lora, expert, tokens, experts)
        rows = x[tokens]
        gate_up = (
            own.gate_up_of(rows, lora, expert, x_mask)
            if saved.gate_up is None
            else saved.gate_up[expert]
        )
        h, by_gate, by_up = _activated(gate_up, saved.activation)
        weight = saved.routing[tokens, places, None]
        grad = grad_out[tokens]
        # Of the expert's output before it is weighted: its product with h is the gradient of the
        # routing weight, without the output itself.
        grad_h = grad @ own.down
        if lora is not None:
            down_a, down_b = lora.matrices[4][expert], lora.matrices[5][expert]
            low_grad = lora.scale * (grad @ down_b)
            grad_h += h_mask * (low_grad @ down_a)
            grads[4][expert] = (weight * low_grad).T @ (h_mask * h)
            grads[5][expert] = (weight * grad).T @ lora.low_rank(h_mask * h, 2, expert)
        grad_routing[tokens, places] = np.sum(grad_h * h, axis=1) + grad @ own.down_bias
        grad_h = weight * grad_h
        both = np.concatenate([grad_h * by_gate, grad_h * by_up], axis=1)
        grad_rows = both @ own.gate_up
        if lora is not None:
            for pair, half in enumerate(np.split(both, 2, axis=1)):
                a, b = lora.matrices[2 * pair][expert], lora.matrices[2 * pair + 1][expert]
                low_grad = lora.scale * (half @ b)
                grad_rows += x_mask * (low_grad @ a)
                grads[2 * pair][expert] = low_grad.T @ (x_mask * rows)
                grads[2 * pair + 1][expert] = half.T @ lora.low_rank(x_mask * rows, pair, expert)
        np.add.at(grad_x, tokens, grad_rows)
