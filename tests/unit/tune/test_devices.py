"""Layers of a model on several devices."""

from pathlib import Path

import pytest
import torch

from inlay.core.errors import ConfigError
from inlay.tune import TuneData, train
from inlay.tune.devices import Stage, stages_of
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import random_rows, settings


def test_layers_are_divided_as_they_are_named() -> None:
    assert stages_of((), 27, 0) == (Stage("cpu", range(27)),)
    assert stages_of((), 27, 2) == (Stage("cuda:0", range(13)), Stage("cuda:1", range(13, 27)))
    assert stages_of(("cuda=20", "cpu=7"), 27, 1) == (
        Stage("cuda:0", range(20)),
        Stage("cpu", range(20, 27)),
    )
    assert stages_of(("cpu",), 4, 2) == (Stage("cpu", range(4)),)


@pytest.mark.parametrize(
    "devices, message",
    [
        (("gpu",), "'gpu' is no device"),
        (("cuda:2",), "there is no cuda:2: 2 GPUs can be used"),
        (("cuda:0=3", "cuda:1"), "has 3 layers, the model 4"),
        (("cuda:0=3", "cuda:1=2"), "has 5 layers, the model 4"),
        (("cpu",) * 5, "5 of them for 4 layers"),
    ],
)
def test_devices_that_do_not_fit_are_refused(devices: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stages_of(devices, 4, 2)


@pytest.mark.parametrize(
    "devices",
    [
        ("cpu=1", "cpu=1"),
        pytest.param(("cuda:0", "cpu"), marks=pytest.mark.gpu),
        pytest.param(("cuda:0=2",), marks=pytest.mark.gpu),
        pytest.param(("cuda:0", "cuda:1"), marks=[pytest.mark.gpu, pytest.mark.multi_gpu]),
    ],
)
@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v2"])
def test_losses_do_not_depend_on_devices(
    architecture: str, devices: tuple[str, ...], tmp_path: Path
) -> None:
    model, data = (
        make_tiny_model(tmp_path / "tiny", architecture),
        TuneData(random_rows(6), None, ()),
    )
    on_gpu = devices[0] != "cpu"
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        ours, host = (
            [
                entry["loss"]
                for entry in train(settings(model, tmp_path / name, **more), data).log
                if "loss" in entry
            ]
            for name, more in (
                ("a", {"devices": devices, "use_cpu": not on_gpu}),
                ("b", {}),
            )
        )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert ours == (pytest.approx(host, rel=1e-3) if on_gpu else host)
