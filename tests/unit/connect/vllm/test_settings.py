"""kv_connector_extra_config: what is taken and what is refused."""

import pytest

from inlay.connect.vllm.settings import ConnectorSettings
from inlay.core.errors import ConfigError


def test_nothing_is_needed():
    assert ConnectorSettings.read({}).store is None


def test_values():
    read = ConnectorSettings.read({"store": "h:1", "contribute": "1GiB", "lookup_s": 1})
    assert read == ConnectorSettings(store="h:1", contribute="1GiB", lookup_s=1)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"stor": "h:1"}, "did you mean 'store'"),
        ({"zzz": 1}, "there are store, contribute"),
        ({"staging": 5}, "staging cannot be 5"),
        ({"staging": "much"}, "much"),
        ({"lookup_s": True}, "lookup_s cannot be True"),
        ({"lookup_s": 0}, "lookup_s must be in 0..3600 s, got 0"),
        ({"contribute": "1GiB"}, "contribute needs a store"),
    ],
)
def test_refused(extra, message):
    with pytest.raises(ConfigError, match=message):
        ConnectorSettings.read(extra)
