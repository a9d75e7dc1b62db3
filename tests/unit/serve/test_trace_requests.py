"""The options by which a trace is changed before it is replayed."""

import math
from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.serve.commands.trace_requests import parts_of

TRACE = Path(__file__).parents[3] / "benchmarks" / "traces" / "mooncake_conversation.jsonl.gz"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, "--rate must be above 0 and finite, got 0"),
        ({"rate": math.inf}, "--rate must be above 0 and finite, got inf"),
        ({"lengths": -1.0}, "--lengths must be above 0 and finite, got -1"),
        ({"until_s": 0.0}, "--until must be above 0 and finite, got 0"),
        ({"until_s": math.nan}, "--until must be above 0 and finite, got nan"),
    ],
)
def test_an_option_out_of_range_is_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parts_of(TRACE, "auto", 512, **changes)
