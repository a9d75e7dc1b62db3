"""Adapters beside the GPU kernels: what comes to them is what the merged model gives."""

from pathlib import Path

import pytest
import torch

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.core.placement import LayerPlacement, Placement
from inlay.models import load_model
from inlay.models.gpu.ops import GpuOps
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge
from tests.unit.models.reference import relative_error

PROMPT = range(5, 30)


class NamedOps(GpuOps):
    """No host, even on a CPU."""

    @property
    def device(self) -> str:
        return "gpu:0"

    def free_bytes(self) -> int:
        return 1 << 40


def test_attention_beside_a_model_without(tmp_path: Path, device: torch.device) -> None:
    directory = make_tiny_model(tmp_path / "model", "qwen3_moe", num_hidden_layers=2)
    a = make_adapter(directory, tmp_path / "a", targets=("q_proj", "v_proj", "o_proj"))
    layer = LayerPlacement(device="gpu:0", resident=read_shape(directory).experts)
    model = load_model(
        directory,
        weight_format="float32",
        placement=Placement(layers=(layer, layer)),
        backends={"gpu:0": NamedOps(device)},
    )
    driver, adapter = ModelDriver(model), model.load_adapter(a)
    rows = [driver.add(PROMPT, adapter=adapter), driver.add(PROMPT)]
    found = driver.step([(row, len(PROMPT)) for row in rows])
    for logits, plain in zip(found, (merge(directory, a, tmp_path / "m"), directory), strict=True):
        alone = ModelDriver(load_model(plain, weight_format="float32"))
        (wanted,) = alone.step([(alone.add(PROMPT), len(PROMPT))])
        assert relative_error(logits.cpu(), wanted) < 1e-2  # products of bfloat16 among them
    with pytest.raises(UnsupportedModelError, match="added on a CPU alone"):
        model.load_adapter(make_adapter(directory, tmp_path / "b"))
