"""Routed experts in plain PyTorch: choosing them, and what one of them computes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.core.model_shape import Activation, RouterShape
from inlay.models.ops import ExpertTensors
from inlay.models.quantized import floats_of


class TorchExperts:
    """The experts of a layer.

    Args:
        gate_up_E2FM, down_EMF: their memory.
        dtype: activations are rounded to it.
        biases: they have some.
    """

    def __init__(
        self, gate_up_E2FM: Tensor, down_EMF: Tensor, dtype: torch.dtype, *, biases: bool
    ) -> None:
        self.gate_up_E2FM, self.down_EMF, self.dtype = gate_up_E2FM, down_EMF, dtype
        self._biases = None
        if biases:
            zeros = (torch.zeros(of.shape[:2], device=of.device) for of in (gate_up_E2FM, down_EMF))
            self._biases = tuple(zeros)

    def set(self, expert: int, tensors: ExpertTensors) -> None:
        """Copy one expert."""
        width = self.down_EMF.shape[2]
        self.gate_up_E2FM[expert, :width].copy_(floats_of(tensors.gate_FM))
        self.gate_up_E2FM[expert, width:].copy_(floats_of(tensors.up_FM))
        self.down_EMF[expert].copy_(floats_of(tensors.down_MF))
        if self._biases and tensors.biases:
            self._biases[0][expert] = torch.cat(tensors.biases[:2])
            self._biases[1][expert] = tensors.biases[2]

    def one(self, expert: int, x_TM: Tensor, activation: Activation) -> Tensor:
        """What an expert makes of these rows, float32."""
        stored = self.down_EMF.dtype
        gate_up = x_TM.to(self.dtype).to(stored) @ self.gate_up_E2FM[expert].t()
        if self._biases:
            gate_up = gate_up + self._biases[0][expert]
        gate, up = gate_up.chunk(2, dim=-1)
        active = _activated(gate, up, activation).to(self.dtype).to(stored)
        down = (active @ self.down_EMF[expert].t()).float()
        return down + self._biases[1][expert] if self._biases else down

    def add_all(self, x_TM: Tensor, activation: Activation, out_TM: Tensor) -> None:
        """Add what all of them make of these rows, as shared experts do."""
        for expert in range(len(self.down_EMF)):
            out_TM += self.one(expert, x_TM, activation)


def _activated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    if activation.kind == "silu":
        return F.silu(gate) * up
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return (up + 1) * gate * torch.sigmoid(activation.alpha * gate)


def route(
    logits_TE: Tensor,
    router: RouterShape,
    correction_E: Tensor | None,
    out_ids_TK: Tensor,
    out_weights_TK: Tensor,
) -> None:
    """See `Ops.route`."""
    sigmoid = router.score == "sigmoid"
    scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
    wanted_TE = scores_TE if correction_E is None else scores_TE + correction_E
    if router.groups > router.groups_per_token:
        wanted_TE = _in_best_groups(wanted_TE, router)
    ids_TK = wanted_TE.topk(out_ids_TK.shape[1], dim=-1).indices
    weights_TK = scores_TE.gather(1, ids_TK)
    if router.normalize:
        # All sigmoids may be 0.
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + (1e-20 if sigmoid else 0))
    out_ids_TK.copy_(ids_TK)
    out_weights_TK.copy_(weights_TK * router.scale)


def _in_best_groups(wanted_TE: Tensor, router: RouterShape) -> Tensor:
    """What experts of other groups are wanted for is minus infinity."""
    grouped_TGE = wanted_TE.view(len(wanted_TE), router.groups, -1)
    best = grouped_TGE.topk(2 if router.group_score == "best_two" else 1, dim=-1).values
    chosen = best.sum(-1).topk(router.groups_per_token, dim=-1).indices
    closed_TG = torch.ones(best.shape[:2], dtype=torch.bool, device=wanted_TE.device)
    closed_TG.scatter_(1, chosen, value=False)
    return grouped_TGE.masked_fill(closed_TG[..., None], -torch.inf).flatten(1)
