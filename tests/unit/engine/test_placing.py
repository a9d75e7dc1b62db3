"""Where the layers of a model go on a machine of a given memory."""

import pytest

from inlay.core.errors import ResourceError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.placement import Placement
from inlay.engine.placing import Budget, choose_placement

GIB = 1 << 30


def choose(
    name: str, gpus: list[float], host: float = 600, weight_format: str = "int4"
) -> Placement:
    shape = shape_of(known_config(name))
    budget = Budget(
        host_bytes=int(host * GIB),
        gpu_bytes={f"cuda:{n}": int(size * GIB) for n, size in enumerate(gpus)},
    )
    return choose_placement(shape, weight_format, budget, context_tokens=8192, step_tokens=1024)


def test_what_a_gpu_has_no_room_for_is_the_hosts() -> None:
    placed = choose("qwen3-30b-a3b", [8], weight_format="int4+bfloat16")
    assert placed.devices == ("cuda:0",)
    (resident,) = {layer.resident for layer in placed.layers}
    assert 0 < resident < 128
    more = choose("qwen3-30b-a3b", [12], weight_format="int4+bfloat16")
    assert more.layers[0].resident > resident
    assert {layer.resident for layer in choose("qwen3-30b-a3b", [80]).layers} == {128}


def test_layers_are_shared_among_gpus_in_order() -> None:
    placed = choose("deepseek-v3", [24, 24])
    assert [(stage.device, stage.end - stage.first) for stage in placed.stages] == [
        ("cuda:0", 31),
        ("cuda:1", 30),
    ]
    assert [layer.resident for layer in placed.layers[:3]] == [0, 0, 0]  # dense ones


def test_layers_without_room_stay_on_the_host() -> None:
    placed = choose("llama-3.1-8b", [4], weight_format="int8")
    assert placed.devices == ("cuda:0", "cpu")


def test_a_budget_that_fits_nothing_is_refused() -> None:
    with pytest.raises(ResourceError, match="hold not one layer.* placement.gpu_memory"):
        choose("deepseek-v3", [1.2])
    with pytest.raises(ResourceError, match="GB of main memory, and .* are needed"):
        choose("deepseek-v3", [24], host=100)
