"""Places of KV pages, and settings that cannot be."""

from typing import Any

import numpy as np
import pytest

from inlay.core.errors import ConfigError
from inlay.serve.bench import transfer
from inlay.serve.bench.transfer import TransferBenchConfig, kv_places


def test_pieces_of_a_prompt_share_no_byte() -> None:
    starts = kv_places(np.random.default_rng(0))
    lengths = np.tile(np.repeat(transfer.KV_PIECE_BYTES, transfer.KV_PAGES), transfer.KV_LAYERS)
    assert len(starts) == len(lengths) == 3904
    order = np.argsort(starts)
    ends = (starts + lengths)[order]
    assert (starts[order][1:] >= ends[:-1]).all()
    assert starts.min() >= 0 and ends[-1] <= transfer.KV_POOL_BYTES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workload": "pages"}, "blocks or kv, got pages"),
        ({"ops": ["read", "copy"]}, "got \\['copy'\\]"),
        ({"block_bytes": [0]}, "at least 1"),
        ({"batch": 0}, "batch must be in 1..65536, got 0"),
        ({"threads": 257}, "threads must be in 1..256, got 257"),
        ({"seconds": 0.0}, "got 0.0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransferBenchConfig(**settings)
