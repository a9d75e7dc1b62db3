"""The arrays of model files as tensors, and tensors as such arrays; both share their memory."""

import warnings

import numpy as np
import torch
from torch import Tensor

from inlay.models.float_arrays import BFLOAT16, FLOAT8, Array

_BY_BITS = {BFLOAT16: (np.uint16, torch.bfloat16), FLOAT8: (np.uint8, torch.float8_e4m3fn)}

# Packed weights are mapped for reading alone, and nothing here writes to what it was given.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def tensor_of(array: Array) -> Tensor:
    """A tensor of the same memory, to be read only."""
    if array.dtype in _BY_BITS:
        bits, dtype = _BY_BITS[array.dtype]
        return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array)


def array_of(tensor: Tensor) -> Array:
    """An array of the memory of a tensor, which is on the CPU."""
    for array_dtype, (bits, dtype) in _BY_BITS.items():
        if tensor.dtype == dtype:
            of_bits = torch.uint8 if bits is np.uint8 else torch.uint16
            return tensor.detach().view(of_bits).numpy().view(array_dtype)
    values: Array = tensor.detach().numpy()
    return values
