"""What adapters add, in plain PyTorch: to linear layers, and to experts one after the other.

Held and computed in float32, on the device of the layer. Shapes: T rows, r rank, P parts of one
shape that lie at even distances, K and N columns of x and of the product that a part has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.models.ops import AdapterPart, ExpertPairs
from inlay.models.torch_arrays import tensor_of


@dataclass(frozen=True)
class _Band:
    """Parts that are computed at once.

    Attributes:
        a_PKr, b_PrN: transposed; b with the scale.
        x_column, x_step, out_column, out_step: where the first part begins, and from one part to
            the next.
    """

    a_PKr: Tensor
    b_PrN: Tensor
    x_column: int
    x_step: int
    out_column: int
    out_step: int

    def add(self, x_TK: Tensor, out_TN: Tensor) -> None:
        """Add the parts' products to all rows."""
        parts, width, _ = self.a_PKr.shape
        x_PTK = _parts(x_TK, parts, width, self.x_column, self.x_step)
        out_PTN = _parts(out_TN, parts, self.b_PrN.shape[2], self.out_column, self.out_step)
        out_PTN += x_PTK.float() @ self.a_PKr @ self.b_PrN


def _parts(rows: Tensor, parts: int, width: int, column: int, step: int) -> Tensor:
    """Views `[P, T, width]` of columns."""
    start = rows.storage_offset() + column
    return rows.as_strided((parts, len(rows), width), (step, rows.stride(0), 1), start)


class TorchLinearAdapter:
    """What one adapter adds to a linear layer.

    Args:
        parts: see `AdapterPart`; none writes where another one does.
    """

    def __init__(self, parts: Sequence[AdapterPart], device: torch.device) -> None:
        self._bands = [_band(run, device) for run in _runs(parts)]

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        return sum(band.a_PKr.nbytes + band.b_PrN.nbytes for band in self._bands)

    def add(self, x_TK: Tensor, out_TN: Tensor) -> None:
        """Add it to all rows. Cost: three launches for parts of one shape."""
        for band in self._bands:
            band.add(x_TK, out_TN)


def _runs(parts: Sequence[AdapterPart]) -> list[list[AdapterPart]]:
    """Neighbours of one shape at even distances."""
    runs: list[list[AdapterPart]] = []
    for part in parts:
        if runs and _continues(runs[-1], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _continues(run: list[AdapterPart], part: AdapterPart) -> bool:
    last = run[-1]
    if (last.a.shape, last.b.shape) != (part.a.shape, part.b.shape):
        return False
    return len(run) == 1 or _steps(run[0], run[1]) == _steps(last, part)


def _steps(one: AdapterPart, other: AdapterPart) -> tuple[int, int]:
    return other.x_column - one.x_column, other.out_column - one.out_column


def _band(run: list[AdapterPart], device: torch.device) -> _Band:
    first = run[0]
    x_step, out_step = _steps(first, run[1]) if len(run) > 1 else (0, 0)
    return _Band(
        torch.stack([tensor_of(part.a).t() for part in run]).to(device),
        torch.stack([tensor_of(part.b).t() * part.scale for part in run]).to(device),
        first.x_column,
        x_step,
        first.out_column,
        out_step,
    )


class TorchExpertAdapter:
    """What one adapter adds to the experts of a layer."""

    def __init__(self, pairs: ExpertPairs, device: torch.device) -> None:
        self._pairs = {
            place: (
                tensor_of(a).t().contiguous().to(device),
                (tensor_of(b).t() * scale).contiguous().to(device),
            )
            for place, (a, b, scale) in pairs.items()
        }

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        return sum(a.nbytes + b.nbytes for a, b in self._pairs.values())

    def of(self, expert: int, matrix: str, x_TK: Tensor) -> Tensor | None:
        """What comes to these rows' product with gate, up or down; None: nothing."""
        pair = self._pairs.get((expert, matrix))
        return None if pair is None else x_TK.float() @ pair[0] @ pair[1]
