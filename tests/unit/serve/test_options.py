import pytest

from inlay.core.errors import ConfigError
from inlay.serve.commands.local import local_engine_config
from inlay.serve.commands.options import with_assignments
from inlay.serve.config import ServeConfig


def test_fields_of_the_engine_need_no_prefix():
    config = with_assignments(
        ServeConfig(),
        ["cache.pages=7", "engine.cache.page_tokens=8", " scheduler.max_running =3", "host=::1"],
    )
    assert (config.engine.cache.pages, config.engine.cache.page_tokens) == (7, 8)
    assert config.engine.scheduler.max_running == 3
    assert config.host == "::1"
    assert with_assignments(config, None) == config


def test_memory_for_keys_and_values():
    options = {"model": None, "device": "cpu", "weight_format": "auto", "context": None}
    options |= {"threads": None, "assignments": None}
    assert local_engine_config(kv_memory="3GiB", **options).cache.memory == "3GiB"
    assert local_engine_config(kv_memory=None, **options).cache.memory is None
    with pytest.raises(ConfigError, match="'3 apples'"):
        local_engine_config(kv_memory="3 apples", **options)
    with pytest.raises(ConfigError, match=r"cache\.pages and cache\.memory exclude each other"):
        local_engine_config(kv_memory="3GiB", **options | {"assignments": ["cache.pages=7"]})


def test_what_is_no_field_is_named_as_it_was_written():
    with pytest.raises(ConfigError, match="^--set kv: the configuration has no field"):
        with_assignments(ServeConfig(), ["kv.pages=7"])
