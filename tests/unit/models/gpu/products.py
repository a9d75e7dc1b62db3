"""What the tests of products share."""

import numpy as np
import torch

from inlay.core.weight_format import FORMATS

PACKED = [name for name in FORMATS if name != "float32"]


def rows_of(rows, columns, device, seed=1):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((rows, columns), dtype=np.float32)).to(device)


def assert_close(found, expected, columns):
    """In float32 up to the order of sums; on a GPU operands have 8 bits, errors that add up like a
    random walk.
    """
    step = 2.0**-8 if found.is_cuda else 2.0**-20
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * step * columns**0.5)
