"""Routed experts of one layer as one step of autograd, over the kernels of `inlay.kernels`.

They lie in host memory, frozen and packed; where the rest of the layer is on another device, rows
go to the host and come back. Shapes: T tokens, M model width, K experts per token.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay import kernels
from inlay.tune.lora import Dropout, Lora, LoraPair, seed_of

_PARTS = ("expert_gate", "expert_up", "expert_down")
_NAMES = ("gate_a_ERM", "gate_b_EFR", "up_a_ERM", "up_b_EFR", "down_a_ERF", "down_b_EMR")


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TM: Tensor,
        routing_TK: Tensor,
        ids_TK: Tensor,
        call: "_Call",
        *matrices: Tensor,
    ) -> Tensor:
        out_TM, ctx.saved = call.forward(x_TM, ids_TK, routing_TK, matrices)
        ctx.device, ctx.dtypes = x_TM.device, [matrix.dtype for matrix in matrices]
        return out_TM

    @staticmethod
    def backward(ctx: Any, gradient_TM: Tensor) -> Any:
        gradients = kernels.moe_backward(ctx.saved, _host(gradient_TM))
        ctx.saved = None
        x_TM, routing_TK = (
            torch.from_numpy(array).to(ctx.device)
            for array in (gradients.x_TM, gradients.routing_TK)
        )
        of_matrices = (
            torch.from_numpy(array).to(dtype)
            for array, dtype in zip(gradients.lora or (), ctx.dtypes, strict=True)
        )
        return x_TM, routing_TK, None, None, *of_matrices


class RoutedExperts:
    """The routed experts of a layer, and the LoRA on them.

    Args:
        retain: keep gate and up of each chosen expert for the backward pass; else they are computed
            again.
    """

    def __init__(
        self, experts: kernels.ExpertWeights, lora: Lora, layer: int, *, retain: bool
    ) -> None:
        self._experts, self._layer, self._retain = experts, layer, retain
        self._scale = lora.scale
        pairs = [lora.pair(layer, part) for part in _PARTS]
        self._matrices: tuple[Tensor, ...] = ()
        if any(pairs):
            self._matrices = tuple(
                matrix
                for part, pair in zip(_PARTS, pairs, strict=True)
                for matrix in _both(pair or _nothing(experts, part, lora.rank))
            )

    def __call__(
        self, x_TM: Tensor, ids_TK: Tensor, routing_TK: Tensor, dropout: Dropout
    ) -> Tensor:
        """The weighted sum of each token's experts, float32.

        Args:
            x_TM: float32.
            ids_TK: int32.
            routing_TK: float32.
        """
        retain = self._retain and torch.is_grad_enabled()
        call = _Call(self._experts, self._scale, dropout, self._layer, retain)
        if torch.is_grad_enabled():
            out_TM: Tensor = _Routed.apply(x_TM, routing_TK, ids_TK, call, *self._matrices)  # type: ignore[no-untyped-call]
            return out_TM
        return call.forward(x_TM, ids_TK, routing_TK, self._matrices)[0]


class _Call:
    """One forward pass, as the kernels take it."""

    def __init__(
        self,
        experts: kernels.ExpertWeights,
        scale: float,
        dropout: Dropout,
        layer: int,
        retain: bool,
    ) -> None:
        self._experts, self._scale, self._dropout = experts, scale, dropout
        self._layer, self._retain = layer, retain

    def forward(
        self, x_TM: Tensor, ids_TK: Tensor, routing_TK: Tensor, matrices: tuple[Tensor, ...]
    ) -> tuple[Tensor, kernels.SavedMoe]:
        lora = None
        if matrices:
            given = zip(_NAMES, map(_host, matrices), strict=True)
            lora = kernels.ExpertLora(**dict(given), scale=self._scale)
        out_TM = np.empty(tuple(x_TM.shape), np.float32)
        saved = kernels.moe_saving(
            _host(x_TM),
            self._experts,
            np.ascontiguousarray(ids_TK.cpu().numpy()),
            _host(routing_TK),
            out_TM,
            lora=lora,
            dropout=self._dropout.probability if lora else 0.0,
            seed=seed_of(*self._dropout.key, self._layer, "experts"),
            recompute=not self._retain,
        )
        return torch.from_numpy(out_TM).to(x_TM.device), saved


def _host(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array


def _both(pair: LoraPair) -> tuple[Tensor, Tensor]:
    return pair.a, pair.b


def _nothing(experts: kernels.ExpertWeights, part: str, rank: int) -> LoraPair:
    """Of a matrix that is no target: adds 0, and gets no gradient."""
    rows, columns = experts.intermediate, experts.hidden
    if part == "expert_down":
        rows, columns = columns, rows
    count = experts.num_experts
    return LoraPair(torch.zeros(count, rank, columns), torch.zeros(count, rows, rank))
