"""NumPy arrays of the numbers that model files hold, bfloat16 and fp8 among them.

NumPy gets those two dtypes from `ml_dtypes`. `inlay.models.torch_arrays` has the same numbers as
tensors, for devices and training.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOAT8: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3fn)

Array = NDArray[Any]


def to_float32(array: Array, *, copy: bool = False) -> NDArray[np.float32]:
    """The nearest float32 of each number, which is the same but of float64; the array itself where
    it is float32, unless a copy is asked for.

    Cost: about 1 ns for each number.
    """
    return array.astype(np.float32, copy=copy)


def bits_of(array: Array) -> Array:
    """As kernels and files take it: bfloat16 and fp8 as their bits in integers of that size."""
    if array.dtype == BFLOAT16:
        return array.view(np.uint16)
    return array.view(np.uint8) if array.dtype == FLOAT8 else array
