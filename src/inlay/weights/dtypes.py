"""Elements of one dtype as another one's, as raw unsigned integers. Pure, NumPy alone.

bfloat16, which NumPy lacks, is the upper half of a float32; it is rounded to the nearest, ties to
even, as PyTorch does.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError
from inlay.weights.manifest import ITEM_BYTES

Raw = npt.NDArray[Any]

_NUMPY = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
FLOATS = ("BF16", *_NUMPY)


def raw_dtype(dtype: str) -> np.dtype[Any]:
    """Unsigned integers as wide as its elements."""
    return np.dtype(f"<u{ITEM_BYTES[dtype]}")


def check_conversion(name: str, own: str, wanted: str) -> None:
    """Whether a tensor can be had in another dtype.

    Raises:
        WeightsMismatchError: it cannot.
    """
    if own != wanted and not (own in FLOATS and wanted in FLOATS):
        raise WeightsMismatchError(
            f"{name} is published as {own} and wanted as {wanted}: only {', '.join(FLOATS)} become "
            "each other"
        )


def convert(elements: Raw, own: str, wanted: str) -> Raw:
    """The same numbers in another dtype; infinities where they do not fit."""
    if own == wanted:
        return elements
    if own == "BF16":
        floats = (elements.astype(np.uint32) << 16).view(np.float32)
    else:
        floats = np.ascontiguousarray(elements).view(_NUMPY[own])
    if wanted != "BF16":
        with np.errstate(over="ignore"):
            return floats.astype(_NUMPY[wanted]).view(raw_dtype(wanted))
    with np.errstate(over="ignore"):
        bits = floats.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
