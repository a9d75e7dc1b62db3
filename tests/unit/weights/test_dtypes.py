"""Dtypes as each other, beside PyTorch's conversions."""

import numpy as np
import pytest
import torch

from inlay.core.errors import WeightsMismatchError
from inlay.weights.dtypes import check_conversion, convert, raw_dtype

TORCH = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


def raw(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    return tensor.view(torch.uint8).numpy().view(raw_dtype(dtype))


@pytest.mark.parametrize("own", TORCH)
@pytest.mark.parametrize("wanted", TORCH)
def test_as_torch_does(own: str, wanted: str) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (4000,), generator=generator, dtype=torch.int64)
    values = bits.to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-45, 3e38, 65519.0])
    values = torch.cat([values[~values.isnan()], special]).to(TORCH[own])
    expected = raw(values.to(TORCH[wanted]), wanted)
    assert np.array_equal(convert(raw(values, own), own, wanted), expected)


def test_not_a_number_stays_one() -> None:
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32)
    bits = convert(nan, "F32", "BF16")
    assert np.isnan((bits.astype(np.uint32) << 16).view(np.float32)).all()


def test_integers_do_not_become_floats() -> None:
    check_conversion("a", "I32", "I32")
    with pytest.raises(WeightsMismatchError, match="a is published as I32 and wanted as BF16"):
        check_conversion("a", "I32", "BF16")
