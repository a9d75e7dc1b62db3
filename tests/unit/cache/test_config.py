import pytest

from inlay.cache import CacheConfig
from inlay.cache.config import split_disk
from inlay.core.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pages": 0}, "pages must be at least 1, got 0"),
        ({"pages": 4, "memory": "1GiB"}, "exclude each other"),
        ({"memory": "a lot"}, "'a lot' is not a size"),
        ({"memory": 0}, "must be positive"),
        ({"page_tokens": 0}, "1..1024, got 0"),
        ({"dtype": "int3"}, "'int3' is not one of auto"),
    ],
)
def test_bad_values_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": "0"}, "cache.host must be positive, got '0'"),
        ({"host": "lots"}, "'lots' is not a size"),
        ({"host": "1GiB", "disk": "/var/cache"}, "a size is missing, for example /var/cache:20GiB"),
        ({"host": "1GiB", "disk": "/var/cache:big"}, "'big' is not a size"),
        ({"host": "1GiB", "disk": ":20GiB"}, "write a directory and a positive size"),
        ({"host": "1GiB", "disk": "/var/cache:0"}, "write a directory and a positive size"),
        ({"disk": "/var/cache:20GiB"}, "set that too, for example cache.host=1GiB"),
        ({"store": "50051"}, "write the master's host:port"),
        ({"store": "localhost:port"}, "write the master's host:port"),
        ({"store": "localhost:70000"}, "write the master's host:port"),
        ({"write": "back"}, "'back' is not one of through, second_hit, evict"),
        ({"host": "1GiB", "prefix": False}, "cache.prefix=false forbids"),
    ],
)
def test_bad_tiers_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**fields)


def test_tiers():
    assert not CacheConfig().has_tiers
    config = CacheConfig(host="8GiB", disk="C:/kv:20GiB", store="[::1]:50051", write="evict")
    assert config.has_tiers
    assert split_disk(config.disk) == ("C:/kv", 20 * 2**30)
