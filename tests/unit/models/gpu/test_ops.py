"""Whole models on the GPU's operations against PyTorch with the weights that their codes mean."""

import pytest
import torch

from inlay.core.model_config import read_shape
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.ops import GpuOps
from inlay.models.model import load_model
from inlay.models.native_ops import NativeOps
from inlay.models.ops import ExpertTensors
from inlay.models.placed import Placed
from inlay.models.torch_ops import TorchOps
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [200, 3, 77] * 7]


class Meant(TorchOps):
    """What packed weights mean, in float32."""

    def __init__(self, device):
        super().__init__(device)
        self._host = NativeOps()

    @property
    def weight_formats(self):
        return self._host.weight_formats

    def pack_linear(self, parts_NM, bias_parts_N, weight_format):
        meant = self._host.pack_linear(parts_NM, (), weight_format).weight.dequantize()
        return super().pack_linear([torch.from_numpy(meant)], bias_parts_N, "float32")

    def pack_heads(self, parts_HNK, weight_format):
        meant = [self.pack_linear([part], (), weight_format).weight_NM for part in parts_HNK]
        return super().pack_heads(meant, "float32")

    def new_experts(self, experts, hidden, width, weight_format, *, biases=False):
        self._format = weight_format
        return super().new_experts(experts, hidden, width, "float32", biases=biases)

    def set_expert(self, experts, number, tensors):
        width, hidden = tensors.gate_FM.shape
        host = self._host.new_experts(1, hidden, width, self._format)
        self._host.set_expert(host, 0, tensors._replace(biases=None))
        meant = (torch.from_numpy(of) for of in host.dequantize(0))
        super().set_expert(experts, number, ExpertTensors(*meant, tensors.biases))


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
