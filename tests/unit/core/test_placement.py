"""Where layers run."""

import pytest

from inlay.core.errors import ConfigError
from inlay.core.placement import LayerPlacement, Placement, Stage


def test_neighbouring_layers_of_a_device_are_a_stage() -> None:
    on_gpu = LayerPlacement(device="cuda:0", resident=2)
    placement = Placement(
        layers=(on_gpu, on_gpu, LayerPlacement(), LayerPlacement(device="cuda:0"))
    )
    assert placement.stages == (
        Stage(device="cuda:0", first=0, end=2),
        Stage(device="cpu", first=2, end=3),
        Stage(device="cuda:0", first=3, end=4),
    )
    assert placement.devices == ("cuda:0", "cpu")


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "cuda"},
        {"device": "cuda:0", "resident": -1},
        {"resident": 1},
        {"prefill": "device"},
    ],
)
def test_impossible_layers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LayerPlacement(**wrong)  # type: ignore[arg-type]
