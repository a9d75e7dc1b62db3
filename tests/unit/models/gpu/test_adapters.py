"""Adapters beside the GPU kernels: what comes to them is what the merged model gives."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from inlay.core.errors import ResourceError
from inlay.core.model_config import read_shape
from inlay.core.placement import Placement
from inlay.models import Model, load_model
from inlay.models.adapter_weights import AdapterWeights
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.gpu.expert_adapters import GpuExpertAdapter
from inlay.models.gpu.ops import GpuOps
from inlay.models.host_share import ShareConfig
from inlay.models.ops import Ops
from inlay.models.placed import Placed
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge
from tests.unit.models.gpu.meant import Meant
from tests.unit.models.reference import relative_error

PROMPTS = (range(5, 14), range(40, 45), range(100, 107), range(7, 11))


class NamedOps(GpuOps):
    """No host, even on a CPU. A GPU keeps its name: what it shares with the host is page-locked."""

    @property
    def device(self) -> str:
        return "gpu:0" if self._device.type == "cpu" else super().device

    def free_bytes(self) -> int:
        return 1 << 40


def model_on(directory: Path, ops: Ops, weight_format: str, resident: int, **sharing: int) -> Model:
    layers = read_shape(directory).layers
    return load_model(
        directory,
        weight_format=weight_format,
        placement=Placement.on(ops.device, layers, resident=resident),
        backends={ops.device: ops},
        sharing=ShareConfig(**sharing),
    )


def logits_of(model: Model, adapters: Sequence[AdapterWeights | None]) -> list[torch.Tensor]:
    """Of prompts with these adapters in one step, and of the step of one token behind them."""
    driver = ModelDriver(model, dtype="float32")
    running = [driver.add(p, adapter=a) for p, a in zip(PROMPTS, adapters, strict=True)]
    prompts = driver.step([(one, len(one.tokens)) for one in running])
    for one in running:
        one.tokens.append(9)
    return [logits.cpu() for logits in (*prompts, *driver.step([(one, 1) for one in running]))]


def adapters_of(directory: Path, folder: Path) -> list[Path]:
    """Of all matrices, and of some of the experts'."""
    parts = ("o_proj", "experts.down_proj")
    return [
        make_adapter(directory, folder / "a", rank=4, seed=1),
        make_adapter(directory, folder / "b", rank=3, seed=2, targets=parts),
    ]


@pytest.mark.parametrize(
    ("architecture", "weight_format"),
    [
        ("qwen3_moe", "int4:g32"),
        ("qwen3_moe", "float32"),
        ("deepseek_v3", "int8"),
    ],
)
def test_all_on_the_gpu(
    tmp_path: Path, device: torch.device, architecture: str, weight_format: str
) -> None:
    """Routed and shared experts, attention and dense layers, beside a prompt without."""
    directory = make_tiny_model(tmp_path / "model", architecture, num_hidden_layers=2)
    folders = adapters_of(directory, tmp_path)
    placed = Placed.whole(Meant(device), read_shape(directory))
    meant = load_model(
        directory,
        weight_format=weight_format,
        placement=placed.placement,
        backends=placed.backends,
    )
    model = model_on(directory, NamedOps(device), weight_format, read_shape(directory).experts)
    wanted, found = (
        logits_of(one, [a, None, b, a])
        for one in (meant, model)
        for a, b in [map(one.load_adapter, folders)]
    )
    plain = logits_of(model, [None] * 4)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        tolerance = 5e-2 if device.type == "cuda" else 1e-4
        assert relative_error(one, other) < tolerance
        changed = relative_error(one, plain[number])
        assert (changed < tolerance) if number % 4 == 1 else (changed > 0.05)


@pytest.mark.parametrize(
    ("resident", "sharing"),
    [
        pytest.param(0, {}, id="host"),
        pytest.param(3, {}, id="both"),
        pytest.param(3, {"stream": 4, "stream_bytes": 150_000}, id="streamed"),
        pytest.param(3, {"deferred": 2}, id="deferred"),
    ],
)
def test_experts_that_host_and_gpu_share(
    tmp_path: Path, device: torch.device, resident: int, sharing: dict[str, int]
) -> None:
    """Those of the host alone, those here, and those that come for a prompt."""
    directory = make_tiny_model(
        tmp_path / "model", "qwen3_moe", num_hidden_layers=2, num_experts_per_tok=4
    )
    folders = adapters_of(directory, tmp_path)
    merged = [merge(directory, one, tmp_path / f"{one.name}-merged") for one in folders]
    model = model_on(directory, NamedOps(device), "bfloat16+float32", resident, **sharing)
    a, b = map(model.load_adapter, folders)
    found = logits_of(model, [a, None, b, a])
    fake = FakeOps("gpu:0", FakeDevice())
    of_each = [
        logits_of(model_on(one, fake, "float32", resident, **sharing), [None] * 4)
        for one in (merged[0], directory, merged[1])
    ]
    for number, logits in enumerate(found):
        wanted = of_each[(0, 1, 2, 0)[number % 4]][number]
        assert relative_error(logits, wanted) < 3e-2  # weights and rows of bfloat16
        other = of_each[(1, 0, 1, 1)[number % 4]][number]
        assert relative_error(logits, other) > 0.05


def test_memory_that_runs_out_is_said(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_tiny_model(tmp_path / "model", "qwen3_moe", num_hidden_layers=2)
    model = model_on(directory, NamedOps(device), "bfloat16+float32", 3)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 3 GiB")

    monkeypatch.setattr(GpuExpertAdapter, "__init__", full)
    with pytest.raises(ResourceError, match=r"Tried to allocate 3 GiB.*cache\.memory"):
        model.load_adapter(make_adapter(directory, tmp_path / "a"))
