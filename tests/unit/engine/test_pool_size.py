import re

import pytest

from inlay.cache import CacheConfig
from inlay.core.errors import ConfigError, ResourceError
from inlay.core.kv_format import gqa_format
from inlay.core.overrides import apply_overrides
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


@pytest.mark.parametrize(
    ("config", "free_pages", "settings"),
    [
        # More than is free: 85 % of that is offered.
        ({"cache": CacheConfig(pages=1000)}, 100, {"cache.memory": 85, "cache.pages": 85}),
        ({"cache": CacheConfig(memory="1TiB")}, 100, {"cache.memory": 85, "cache.pages": 85}),
        # A context that the pool does not hold: what was set, larger, or a shorter context.
        (
            {"cache": CacheConfig(pages=3), "max_context_tokens": 49},
            100,
            {"cache.pages": 4, "max_context_tokens": 3},
        ),
        (
            {"cache": CacheConfig(memory="24KiB"), "max_context_tokens": 1600},
            102,
            {"cache.memory": 100, "max_context_tokens": 3},
        ),
        # The engine chose 30 of 100 pages; more are free, or not.
        ({"max_context_tokens": 640}, 100, {"cache.memory": 40, "max_context_tokens": 30}),
        ({"max_context_tokens": 1648}, 100, {"max_context_tokens": 30}),
        # Less than a page.
        ({"cache": CacheConfig(memory=100)}, 200, {"cache.memory": 128}),
    ],
)
def test_settings_that_a_message_names_do_fit(config, free_pages, settings):
    free_bytes = free_pages * 8192
    with pytest.raises((ConfigError, ResourceError)) as failure:
        _choose(free_bytes=free_bytes, **config)
    named = dict(re.findall(r"(cache\.\w+|max_context_tokens)=(\w+)", str(failure.value)))
    assert named.keys() == settings.keys()
    for path, value in named.items():
        changed = EngineConfig(**config)
        if path == "cache.pages":
            changed = apply_overrides(changed, ["cache.memory=none"])
        elif path == "cache.memory":
            changed = apply_overrides(changed, ["cache.pages=none"])
        changed = apply_overrides(changed, [f"{path}={value}"])
        size = choose_pool_size(
            changed, FORMAT, model_context_tokens=2048, free_bytes=free_bytes, device="cpu"
        )
        assert size.num_pages == settings[path]


def test_where_no_page_fits_the_message_says_so():
    with pytest.raises(ResourceError, match="need 24.0 KiB, and 8.0 KiB are free on cpu: not one"):
        _choose(free_bytes=8192, cache=CacheConfig(pages=3))
    with pytest.raises(ResourceError, match="pages of 8.0 KiB get 30% of that: not one page fits"):
        _choose(free_bytes=8192)
    with pytest.raises(ResourceError, match="set cache.memory=16384, or cache.pages=2 for 32 tok"):
        _choose(free_bytes=3 * 8192)
