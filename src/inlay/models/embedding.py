"""The rows of an embedding, which stay with the host as their file has them."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inlay.models.float_arrays import Array, to_float32


class Embedding(Protocol):
    """Rows by token id. A step reads few of them, so none is copied or converted before."""

    @property
    def columns(self) -> int:
        """M, the model's width."""
        ...

    def gather(self, ids_T: NDArray[np.int32], out_TM: NDArray[np.float32]) -> None:
        """The rows of some tokens, in float32."""
        ...


class FloatEmbedding:
    """Rows of floats.

    Args:
        rows_VM: float32 or float16; bfloat16, or its bits in uint16. It may be mapped.
    """

    def __init__(self, rows_VM: Array) -> None:
        is_wide = rows_VM.dtype.itemsize != 2 or rows_VM.dtype == np.float16
        self.rows_VM = rows_VM if is_wide else rows_VM.view(np.uint16)

    @property
    def columns(self) -> int:
        """As the protocol says."""
        return int(self.rows_VM.shape[1])

    def gather(self, ids_T: NDArray[np.int32], out_TM: NDArray[np.float32]) -> None:
        """As the protocol says."""
        rows_TM = self.rows_VM.take(ids_T, axis=0)
        if rows_TM.dtype == np.uint16:
            np.left_shift(rows_TM, 16, out=out_TM.view(np.uint32), dtype=np.uint32)
        else:
            out_TM[:] = rows_TM


class BlockEmbedding:
    """Rows in blocks of a quantised type.

    Args:
        data: `[V, ...]`, mapped.
        columns: M.
        decode: what some of the rows mean, `[T, M]`.
    """

    def __init__(self, data: NDArray[Any], columns: int, decode: Callable[[Array], Array]) -> None:
        self._data, self.columns, self._decode = data, columns, decode

    def gather(self, ids_T: NDArray[np.int32], out_TM: NDArray[np.float32]) -> None:
        """As the protocol says. Cost: 20 to 40 us, and about 5 ns for each number."""
        out_TM[:] = to_float32(self._decode(self._data[ids_T]))
