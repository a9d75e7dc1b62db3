"""Routed experts: choosing them, and running the chosen ones."""

from typing import Any

import numpy as np

from inlay.kernels._checks import (
    DTYPES,
    F32,
    array_of,
    as_f32,
    check,
    check_size,
    converted,
    dtype_name,
)
from inlay.kernels.reference.rows import silu


class ExpertWeights:
    """Gate, up and down matrices of one layer's experts, kept row-major here."""

    def __init__(
        self, num_experts: int, hidden: int, intermediate: int, dtype: str = "float32"
    ) -> None:
        sizes = {"num_experts": num_experts, "hidden": hidden, "intermediate": intermediate}
        for name, size in sizes.items():
            check(size >= 1, f"{name}: must be at least 1, got {size}")
        self.num_experts, self.hidden, self.intermediate = num_experts, hidden, intermediate
        self.dtype = dtype_name(dtype)
        self._gate_EFM = np.zeros((num_experts, intermediate, hidden), DTYPES[dtype])
        self._up_EFM = np.zeros_like(self._gate_EFM)
        self._down_EMF = np.zeros((num_experts, hidden, intermediate), DTYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._gate_EFM.nbytes + self._up_EFM.nbytes + self._down_EMF.nbytes

    def set(self, expert: int, gate_FM: Any, up_FM: Any, down_MF: Any) -> None:
        """Fill one expert."""
        check(
            0 <= expert < self.num_experts,
            f"expert: must be in 0..{self.num_experts - 1}, got {expert}",
        )
        targets = {"gate_FM": self._gate_EFM, "up_FM": self._up_EFM, "down_MF": self._down_EMF}
        for (name, target), value in zip(targets.items(), (gate_FM, up_FM, down_MF), strict=True):
            source = array_of(value, name, 2, (np.float32, np.uint16))
            for dim in range(2):
                check_size(source, name, dim, target.shape[dim + 1], "the experts' size")
            target[expert] = converted(source, self.dtype)

    def apply(self, expert: int, x_TM: F32) -> F32:
        """`down(silu(gate x) * up x)` of one expert."""
        gate = x_TM @ as_f32(self._gate_EFM[expert]).T
        up = x_TM @ as_f32(self._up_EFM[expert]).T
        result: F32 = silu(gate) * up @ as_f32(self._down_EMF[expert]).T
        return result


def moe(
    x_TM: Any,
    experts: ExpertWeights,
    expert_ids_TK: Any,
    routing_TK: Any,
    out_TM: Any,
    accumulate: bool = False,
) -> None:
    """Weighted sum of each token's experts, added in ascending id order."""
    x, out = array_of(x_TM, "x_TM", 2), array_of(out_TM, "out_TM", 2, writable=True)
    ids = array_of(expert_ids_TK, "expert_ids_TK", 2, np.int32)
    routing = array_of(routing_TK, "routing_TK", 2)
    check_size(x, "x_TM", 1, experts.hidden, "the experts' hidden size")
    check_size(ids, "expert_ids_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 1, ids.shape[1], "experts per token of expert_ids_TK")
    check_size(out, "out_TM", 0, x.shape[0], "tokens of x_TM")
    check_size(out, "out_TM", 1, experts.hidden, "the experts' hidden size")
    high = int(ids.max(initial=-1))
    check(
        high < experts.num_experts,
        f"expert_ids_TK: id {high} is not below the {experts.num_experts} experts",
    )
    check(bool(np.isfinite(routing[ids >= 0]).all()), "routing_TK: a weight is not finite")
    check(not np.shares_memory(x, out), "out_TM: shares memory with x_TM")
    if not accumulate:
        out[:] = 0
    for expert in np.unique(ids[ids >= 0]):
        tokens, places = np.nonzero(ids == expert)
        result = experts.apply(int(expert), x[tokens])
        np.add.at(out, tokens, routing[tokens, places, None] * result)


def router_topk(
    logits_TE: Any, top_k: int, normalize: bool, out_ids_TK: Any, out_weights_TK: Any
) -> None:
    """Softmax, then the `top_k` largest in descending order, ties to the lower id."""
    logits = array_of(logits_TE, "logits_TE", 2)
    ids = array_of(out_ids_TK, "out_ids_TK", 2, np.int32, writable=True)
    weights = array_of(out_weights_TK, "out_weights_TK", 2, writable=True)
    num_experts = logits.shape[1]
    check(1 <= top_k <= num_experts, f"top_k: must be in 1..{num_experts}, got {top_k}")
    for name, array in (("out_ids_TK", ids), ("out_weights_TK", weights)):
        check_size(array, name, 0, logits.shape[0], "tokens of logits_TE")
        check_size(array, name, 1, top_k, "top_k")
    check(not np.isnan(logits).any(), "logits_TE: contains NaN")
    if not len(logits):
        return
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    ids[:] = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    weights[:] = np.take_along_axis(probabilities, ids, axis=1)
    if normalize:
        weights /= weights.sum(axis=1, keepdims=True)
