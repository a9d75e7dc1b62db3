"""Dense layers on panels against the weights that the CPU kernels say they hold."""

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.models.gpu import linear as gpu
from inlay.models.gpu.panels import Panels
from tests.unit.models.gpu.products import PACKED, assert_close, packed, rows_of


@pytest.mark.parametrize("weight_format", PACKED)
@pytest.mark.parametrize(("rows", "columns", "k"), [(1, 64, 256), (3, 100, 200), (17, 70, 96)])
def test_product_of_every_format(weight_format, rows, columns, k, device):
    panels, weight_NK = packed(columns, k, weight_format, device)
    x_TK = rows_of(rows, k, device)
    out_TN = torch.full((rows, columns), torch.nan, device=device)
    gpu.linear(x_TK, panels, out_TN)
    assert_close(out_TN, x_TK @ weight_NK.T, k)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [False, True])
def test_pieces_bias_and_what_was_there(rows, pieces, accumulate, device):
    panels, weight_NK = packed(100, 640, "int4:g32", device)
    x_TK = rows_of(rows, 700, device)[:, 30:670]  # rows that lie further apart than they are long
    bias_N = rows_of(1, 100, device, seed=2)[0]
    memory_TN = rows_of(rows, 120, device, seed=3)
    before_TN = memory_TN.clone()
    out_TN = memory_TN[:, 10:110]
    gpu.linear(x_TK, panels, out_TN, bias_N=bias_N, accumulate=accumulate, pieces=pieces)
    expected = x_TK @ weight_NK.T + bias_N
    if accumulate:
        expected += before_TN[:, 10:110]
    assert_close(out_TN, expected, 640)
    assert torch.equal(memory_TN[:, :10], before_TN[:, :10])
    assert torch.equal(memory_TN[:, 110:], before_TN[:, 110:])


def test_no_rows(device):
    panels, _ = packed(64, 64, "int8", device)
    out_TN = torch.empty((0, 64), device=device)
    gpu.linear(torch.empty((0, 64), device=device), panels, out_TN)


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8"])
def test_a_matrix_for_each_head(weight_format, device):
    heads, rows, columns, k = 3, 4, 70, 130
    made = [packed(columns, k, weight_format, device, seed=head) for head in range(heads)]
    panels = Panels.empty(heads, columns, k, weight_format, device)
    for head, (one, _) in enumerate(made):
        panels.set(head, one.data[0].cpu().numpy())
    x_THK = rows_of(rows, heads * k, device).view(rows, heads, k)
    out_THN = torch.full((rows, heads, columns), torch.nan, device=device)
    gpu.linear_heads(x_THK, panels, out_THN)
    expected = torch.stack([x_THK[:, h] @ made[h][1].T for h in range(heads)], dim=1)
    assert_close(out_THN, expected, k)


@pytest.mark.parametrize("weight_format", ["mxfp4", "fp8:g128"])
def test_every_code_and_extreme_scales(weight_format, device):
    """Of small floats: subnormals, both zeros, the largest, and scales at both ends."""
    weight = kernels.LinearWeight(64, 256, weight_format)
    codes = np.arange(256, dtype=np.uint8)
    if weight_format == "mxfp4":
        q = np.tile(codes, (64, 1))[:, :128]
        scales = np.repeat(np.array([[0, 1, 100, 126, 127, 128, 150, 252]], np.uint8), 64, axis=0)
    else:
        q = np.tile(np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8), (64, 1))
        scales = np.repeat(np.array([[2.0**-100, 3e20]], np.float32), 64, axis=0)
    weight.set_rows_quantized(0, np.ascontiguousarray(q), scales)
    panels = Panels.empty(1, 64, 256, weight_format, device)
    panels.set(0, weight.panels())
    expected = torch.from_numpy(weight.dequantize()).T
    out_TN = torch.empty((256, 64), device=device)
    gpu.linear(torch.eye(256, device=device), panels, out_TN)
    # One weight to each sum: exact, on a GPU too.
    assert torch.equal(out_TN.cpu(), expected)
    for k in (0, 7, 100, 135, 255):
        gpu.linear(torch.eye(256, device=device)[k : k + 1], panels, out_TN[k : k + 1])
        assert torch.equal(out_TN[k].cpu(), expected[k])
