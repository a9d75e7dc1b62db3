import pytest

from inlay.cache import CacheConfig
from inlay.core.errors import ConfigError
from inlay.core.kv_format import gqa_format
from inlay.engine.config import EngineConfig, SchedulerConfig
from inlay.engine.pool_size import choose_pool_size

# A page of 16 tokens takes 8 KiB.
FORMAT = gqa_format(layers=2, kv_heads=2, head_dim=16, dtype="float32")
GIB = 2**30


def _choose(*, free_bytes=GIB, device="cpu", context=2048, **config):
    return choose_pool_size(
        EngineConfig(**config),
        FORMAT,
        model_context_tokens=context,
        free_bytes=free_bytes,
        device=device,
    )


def test_a_cpu_holds_what_can_run_at_once():
    size = _choose(scheduler=SchedulerConfig(max_running=4))
    assert (size.num_pages, size.max_context_tokens) == (4 * 128, 2048)


def test_a_cpu_leaves_most_memory_free():
    assert _choose(free_bytes=100 * 8192).num_pages == 30


def test_a_gpu_gives_most_of_its_memory():
    assert _choose(free_bytes=100 * 8192, device="cuda:0").num_pages == 85


def test_one_long_context_fits():
    size = _choose(context=100_000, scheduler=SchedulerConfig(max_running=1))
    assert size.max_context_tokens == 100_000


def test_a_small_pool_shortens_the_context():
    assert _choose(cache=CacheConfig(pages=3)).max_context_tokens == 48
    assert _choose(cache=CacheConfig(memory="80KiB")).num_pages == 10


def test_max_context_tokens_shortens_the_model():
    assert _choose(max_context_tokens=100).max_context_tokens == 100


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cache": CacheConfig(memory=100)}, "less than one KV page of 8.0 KiB"),
        (
            {"cache": CacheConfig(pages=3), "max_context_tokens": 49},
            "max_context_tokens 49 needs 4 KV pages of 8.0 KiB, but the cache has 3",
        ),
        ({"max_context_tokens": 5000}, "5000 is more than the model's own limit of 2048"),
    ],
)
def test_what_cannot_be(config, message):
    with pytest.raises(ConfigError, match=message):
        _choose(**config)
