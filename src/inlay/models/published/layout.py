"""What a way of packing says of a matrix: its tensors' names and shapes, and how to read them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.models.float_arrays import Array
from inlay.models.published.rows import Matrix
from inlay.models.weight_files import WeightFiles
from inlay.models.weight_names import Expected


class Parts:
    """The tensors of one matrix, by patterns of their names.

    In a pattern `{name}` is what the matrix is called where it is of floats, and `{module}` the
    same without `.weight`.

    Args:
        files: of the model.
        name: of the matrix.
        expert: which one is read of a tensor that has those of a layer.
    """

    def __init__(self, files: WeightFiles, name: str, expert: int | None = None) -> None:
        self._files, self.name, self.expert = files, name, expert

    def named(self, pattern: str) -> str:
        """The name of a tensor."""
        return pattern.format(name=self.name, module=self.name.removesuffix(".weight"))

    def has(self, pattern: str) -> bool:
        """Whether the files hold it."""
        return self.named(pattern) in self._files.tensors

    def size(self, pattern: str) -> tuple[int, ...]:
        """Its shape."""
        return self._files.tensors[self.named(pattern)].shape

    def dtype(self, pattern: str) -> np.dtype[Any]:
        """Its dtype."""
        return self._files.tensors[self.named(pattern)].dtype

    def get(self, pattern: str, rows: slice | None = None) -> Array:
        """The tensor, to be read only; all of it, or some rows."""
        return self._files.get(self.named(pattern), self.expert if rows is None else rows)

    def there(self, patterns: tuple[str, ...]) -> Iterator[Expected]:
        """Those of some tensors that the files hold, as they are."""
        return (Expected(self.named(one), self.size(one)) for one in patterns if self.has(one))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way of packing.

    Attributes:
        codes, scales: patterns of two of its tensors. A matrix with scales is quantised.
        dtypes: of the codes.
        tensors: those that there must be, with their shapes; codes first, then scales.
        read: some rows of the matrix, `[N, K]`.
        fits: whether it is this way, where several have such scales.
        aside: what files have beside, and nothing is multiplied with here.
        quantize: the inverse of `read`, of rows in float32: codes and scales.
        rows_together: that share a scale.
        count_rows: N, where codes do not lie by rows.
    """

    codes: str
    scales: str
    dtypes: tuple[np.dtype[Any], ...]
    tensors: Callable[[Parts, Expected], tuple[Expected, ...]]
    read: Callable[[Parts, slice], Matrix]
    fits: Callable[[Parts], bool] = lambda parts: True
    aside: tuple[str, ...] = ()
    quantize: Callable[[Parts, Array], tuple[Array, Array]] | None = None
    rows_together: int = 1
    count_rows: Callable[[Parts], int] | None = None

    def is_of(self, parts: Parts) -> bool:
        """Whether a matrix is packed so, as far as names, dtypes and shapes tell."""
        return parts.has(self.codes) and parts.dtype(self.codes) in self.dtypes and self.fits(parts)

    def rows(self, parts: Parts) -> int:
        """N; of a stack of matrices that is read as one, their number."""
        if self.count_rows is not None:
            return self.count_rows(parts)
        return parts.size(self.codes)[0 if parts.expert is None else 1]

    def all_tensors(self, parts: Parts, expected: Expected) -> tuple[Expected, ...]:
        """What files must hold of a matrix, and what they hold beside."""
        return (*self.tensors(parts, expected), *parts.there(self.aside))
