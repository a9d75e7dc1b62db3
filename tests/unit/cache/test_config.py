import pytest

from inlay.cache import CacheConfig
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
        ({"write": "back"}, "'back' is not one of through, second_hit, evict"),
    ],
)
def test_bad_values_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**fields)
