import msgspec
import pytest

from inlay.cache import CacheConfig
from inlay.core.errors import ConfigError
from inlay.engine.config import EngineConfig, SchedulerConfig


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EngineConfig(device="tpu"), "device 'tpu' is not auto, cpu, cuda"),
        (lambda: EngineConfig(device="cuda:x"), "device 'cuda:x'"),
        (lambda: EngineConfig(weight_format="int2"), "weight_format 'int2' is not one of"),
        (lambda: EngineConfig(max_context_tokens=1), "max_context_tokens must be >= 2, got 1"),
        (lambda: EngineConfig(threads=0), "threads must be at least 1, got 0"),
        (lambda: SchedulerConfig(max_running=0), "scheduler.max_running must be >= 1, got 0"),
        (lambda: SchedulerConfig(prefill_chunk=-1), "scheduler.prefill_chunk must be >= 1"),
        (
            lambda: SchedulerConfig(max_batch_tokens=8, max_running=9),
            r"max_batch_tokens \(8\) must be at least scheduler.max_running \(9\)",
        ),
    ],
)
def test_bad_values_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_config_survives_the_way_to_the_worker():
    config = EngineConfig(
        model="some/model",
        device="cuda:1",
        seed=3,
        cache=CacheConfig(memory="2GiB", page_tokens=32),
        scheduler=SchedulerConfig(max_running=7),
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
