"""Whole models on the GPU's operations against PyTorch with the weights that their codes mean."""

import pytest
import torch

from inlay.core.model_config import read_shape
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.ops import GpuOps
from inlay.models.model import load_model
from inlay.models.placed import Placed
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.unit.models.gpu.meant import Meant

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [200, 3, 77] * 7]


def logits_of(directory, ops, weight_format):
    """A prompt in one step, another in chunks beside it, then tokens of both."""
    placed = Placed.whole(ops, read_shape(directory))
    model = load_model(
        directory,
        weight_format=weight_format,
        placement=placed.placement,
        backends=placed.backends,
    )
    driver = ModelDriver(model, dtype="float32")
    one, other = (driver.add([*prompt, 30, 31]) for prompt in PROMPTS)
    found = driver.step([(one, 7), (other, 5)], all_rows=True)
    found += driver.step([(other, 16)], all_rows=True)
    for _ in range(2):
        found += driver.step([(one, 1), (other, 1)])
    return torch.cat([logits.view(-1, 512) for logits in found])


@pytest.mark.parametrize(
    ("architecture", "weight_format"),
    [
        ("qwen3_moe", "int4:g32"),
        ("qwen3_moe", "bfloat16+float32"),
        ("deepseek_v3", "int8"),
        ("gpt_oss", "mxfp4+float32"),
        ("glm4_moe", "fp8:g128"),
    ],
)
def test_logits(architecture, weight_format, tmp_path, device):
    directory = make_tiny_model(tmp_path, architecture, tokenizer="none", dtype="float32")
    found = logits_of(directory, GpuOps(device), weight_format)
    expected = logits_of(directory, Meant(device), weight_format)
    spread = float(expected.std())
    tolerance = 0.05 if device.type == "cuda" else 1e-4
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * spread)


def test_experts_lie_in_slots_at_their_own_size(device):
    experts = GpuOps(device).new_experts(4, 128, 64, "int4:g32")
    assert isinstance(experts, GpuExperts)
    assert experts.nbytes == 4 * 3 * 128 * 64 * (4 + 16 / 32) / 8
