"""Muon for the matrices and Adam for the rest, with one learning rate for both.

Muon (Jordan et al., 2024) replaces each matrix's momentum by the nearest orthogonal matrix, so that
rare directions, such as one word's meaning, move as fast as common ones. The update is scaled to
the root mean square of an Adam step (Liu et al., arXiv 2502.16982).
"""

from __future__ import annotations

import torch
from model import DemoModel
from torch import Tensor


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximately nearest semi-orthogonal matrices of a stack [N, rows, columns], in bf16.

    Cost: `steps` times three batched products; about 25 GFLOP for the whole demo model.
    """
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2).contiguous()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        gram = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, gram, x, beta=3.4445)
    return x.transpose(1, 2) if tall else x


def _parts(name: str, tensor: Tensor) -> list[Tensor]:
    """Split a fused weight into the matrices it holds, each [N, rows, columns] (views)."""
    if name.endswith("gate_up"):
        return list(tensor.chunk(2, dim=2))
    if name.endswith("qkv"):
        half = tensor.shape[0] // 2  # 4 query heads, then 2 key and 2 value heads
        return [tensor[None, :half], *tensor[None, half:].chunk(2, dim=1)]
    return [tensor] if tensor.ndim == 3 else [tensor[None]]


class Optimizer:
    """Steps all weights of a model; `state_dict` makes it resumable.

    Args:
        muon: use Muon for attention and expert matrices (else Adam for all).
        weight_decay: of the matrices, as a share of the learning rate.
    """

    def __init__(self, model: DemoModel, muon: bool = True, weight_decay: float = 0.02):
        self.weight_decay = weight_decay
        named = dict(model.named_parameters())
        matrix = (".qkv", ".attention.out", ".gate_up", ".down")
        self._matrices = {n: p for n, p in named.items() if muon and n.endswith(matrix)}
        self._momentum = {n: torch.zeros_like(p) for n, p in self._matrices.items()}
        rest = [p for n, p in named.items() if n not in self._matrices]
        self._adam = torch.optim.AdamW(
            rest, lr=0.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, foreach=True
        )

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Apply the gradients and clear them."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self._adam.zero_grad()
        for name, weight in self._matrices.items():
            momentum = self._momentum[name]
            momentum.lerp_(weight.grad, 0.05)
            update = torch.lerp(weight.grad, momentum, 0.95)
            weight.mul_(1 - lr * self.weight_decay)
            for target, part in zip(_parts(name, weight), _parts(name, update), strict=True):
                scale = 0.2 * max(part.shape[1:]) ** 0.5
                target.sub_(orthogonalize(part), alpha=lr * scale)
            weight.grad = None

    def state_dict(self) -> dict:
        """Adam's state and Muon's momenta."""
        return {"adam": self._adam.state_dict(), "momentum": self._momentum}

    def load_state_dict(self, state: dict) -> None:
        """Take back what `state_dict` gave."""
        self._adam.load_state_dict(state["adam"])
        self._momentum = state["momentum"]
