"""AdamW on the LoRA matrices, with moments in the dtype of the matrices."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class AdamW:
    """Decoupled weight decay.

    Moments are held in each matrix's dtype; every update is computed in float32.

    Args:
        matrices: with names; changed in place.

    Source: arXiv 1711.05101; the order of operations is that of `torch.optim.AdamW`.
    """

    def __init__(
        self,
        matrices: Iterable[tuple[str, Tensor]],
        *,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
    ) -> None:
        self._matrices = dict(matrices)
        self._betas, self._epsilon, self._decay = (beta1, beta2), epsilon, weight_decay
        self._moments = {
            name: (torch.zeros_like(matrix), torch.zeros_like(matrix))
            for name, matrix in self._matrices.items()
        }
        self.steps = 0

    def norm(self) -> float:
        """Of all gradients together."""
        squares = [
            float(matrix.grad.float().square().sum(dtype=torch.float64))
            for matrix in self._matrices.values()
            if matrix.grad is not None
        ]
        return math.sqrt(sum(squares))

    @torch.no_grad()
    def step(self, learning_rate: float, scale: float) -> None:
        """One update with gradients times `scale`, which are given back."""
        self.steps += 1
        beta1, beta2 = self._betas
        first_factor = learning_rate / (1 - beta1**self.steps)
        second_root = (1 - beta2**self.steps) ** 0.5
        for name, matrix in self._matrices.items():
            if matrix.grad is None:
                continue
            gradient = matrix.grad.float() * scale
            matrix.grad = None
            first, second = (moment.float() for moment in self._moments[name])
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            wide = matrix.float()
            wide.mul_(1 - learning_rate * self._decay)
            root = (second.sqrt() / second_root).add_(self._epsilon)
            wide.addcdiv_(first, root, value=-first_factor)
            for held, new in zip(
                (matrix, *self._moments[name]), (wide, first, second), strict=True
            ):
                if held.dtype != torch.float32:  # else they are the same memory
                    held.copy_(new)

    def states(self) -> Iterator[tuple[str, Tensor]]:
        """The moments with names, to be saved or loaded into."""
        for name, (first, second) in self._moments.items():
            yield f"{name}.exp_avg", first
            yield f"{name}.exp_avg_sq", second

    @property
    def nbytes(self) -> int:
        """Memory of the moments."""
        return sum(state.nbytes for _, state in self.states())
