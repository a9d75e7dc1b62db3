"""Where the layers of a model go on a machine of a given memory."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.placement import Placement
from inlay.engine.config import EngineConfig
from inlay.engine.placing import (
    Budget,
    choose_placement,
    fewest_gpus,
    place_model,
    shared_by_ranks,
)
from inlay.experts.config import PlacementConfig

GIB = 1 << 30


def of_gib(gpus: list[float], host: float = 600) -> Budget:
    return Budget(
        host_bytes=int(host * GIB),
        gpu_bytes={f"cuda:{n}": int(size * GIB) for n, size in enumerate(gpus)},
    )


def choose(
    name: str, gpus: list[float], host: float = 600, weight_format: str = "int4"
) -> Placement:
    shape, budget = shape_of(known_config(name)), of_gib(gpus, host)
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


def test_a_number_of_experts_that_gpus_keep() -> None:
    shape = shape_of(known_config("qwen3-30b-a3b"))

    def placed(experts: int | None, gpus: list[float], host: float = 600) -> Placement:
        return fewest_gpus(
            shape,
            "int4+bfloat16",
            of_gib(gpus, host),
            experts=experts,
            context_tokens=8192,
            step_tokens=1024,
        )

    for experts in (0, 7, 128):
        found = placed(experts, [80])
        assert {layer.resident for layer in found.layers} == {experts}
    # The second GPU is used where the first one alone has no room for so many.
    assert placed(20, [8, 8]).devices == ("cuda:0",)
    two = placed(100, [12, 12])
    assert two.devices == ("cuda:0", "cuda:1") and two.layers[0].resident == 100
    # With all experts on GPUs the host needs memory for none; one GPU alone would leave it some.
    assert placed(None, [12, 12], host=5).layers[0].resident == 128
    with pytest.raises(ConfigError, match="gpu_experts must be at most 128, .* got 129"):
        placed(129, [80])
    with pytest.raises(ResourceError, match=r"is 100, and (\d+) of each .* on cuda:0 .*=\1, give"):
        placed(100, [8])


def test_settings_for_gpus_are_not_for_a_cpu(tmp_path: Path) -> None:
    for setting in ({"gpu_memory": "4GiB"}, {"gpu_experts": 3}):
        config = EngineConfig(placement=PlacementConfig(**setting))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"placement.{next(iter(setting))} says what goes"):
            place_model(config, tmp_path, "cpu")
    none = EngineConfig(placement=PlacementConfig(gpu_experts=0))
    assert place_model(none, tmp_path, "cpu").placement is None


def test_what_comes_for_long_prompts_has_room_kept() -> None:
    def resident(stream_bytes: int, gpu: float) -> int:
        placed = fewest_gpus(
            shape_of(known_config("qwen3-30b-a3b")),
            "int4+bfloat16",
            Budget(host_bytes=64 * GIB, gpu_bytes={"cuda:0": int(gpu * GIB)}),
            experts=None,
            context_tokens=8192,
            step_tokens=1024,
            stream_bytes=stream_bytes,
        )
        return placed.layers[0].resident

    assert 0 < resident(GIB, 10) < resident(0, 10) < 128
    assert resident(GIB, 80) == 128  # nothing has to come


def test_ranks_have_a_part_of_every_layer() -> None:
    shape = shape_of(known_config("qwen3-30b-a3b"))

    def shared(degree: int, gpus: list[float], host: float = 600) -> Placement:
        return shared_by_ranks(
            degree,
            shape,
            "int4+bfloat16",
            of_gib(gpus, host),
            experts=None,
            context_tokens=8192,
            step_tokens=1024,
        )

    assert {layer.resident for layer in shared(2, [16, 16]).layers} == {128}
    placed = shared(2, [8, 6, 80])  # by the smallest of the first two
    assert placed.devices == ("cuda:0",)
    (resident,) = {layer.resident for layer in placed.layers}
    assert 0 < resident < 128
    assert placed.moved("cuda:1").devices == ("cuda:1",)
    with pytest.raises(ResourceError, match="needs as many GPUs, and this machine has 2: set"):
        shared(4, [16, 16])
    with pytest.raises(ResourceError, match=r"room for its part of \d+ of 48 layers, and with"):
        shared(2, [2.2, 2.2])
    with pytest.raises(ResourceError, match="GB of main memory, and .* are needed"):
        shared(2, [6, 6], host=10)
    with pytest.raises(ConfigError, match="its 32 heads; possible are"):
        shared(3, [16, 16, 16])
