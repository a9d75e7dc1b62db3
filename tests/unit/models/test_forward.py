"""Pages and batches: what a model takes, what it refuses, and what its trace tells."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.core.errors import ArgumentError, ConfigError, ResourceError
from inlay.models.batch import ForwardBatch
from inlay.models.float_arrays import BFLOAT16
from inlay.models.memory import device_free_bytes
from inlay.models.model import load_model
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model


def test_pool(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, tokenizer="none", dtype="bfloat16"))
    kv_format = model.kv_format(page_tokens=32)
    pool = model.new_kv_pool(kv_format, 5)
    assert pool.data.shape == (5, 2, 2, 32, 2, 16) and pool.data.dtype == BFLOAT16
    assert pool.nbytes == pool.data.nbytes == 5 * kv_format.page_bytes
    with pytest.raises(ConfigError, match="num_pages must be at least 1"):
        model.new_kv_pool(kv_format, 0)
    other = load_model(make_tiny_model(tmp_path / "other", tokenizer="none", num_hidden_layers=3))
    with pytest.raises(ConfigError, match="does not fit this model"):
        other.new_kv_pool(kv_format, 1)
    with pytest.raises(ResourceError, match="no memory for .* set cache.memory=") as no:
        model.new_kv_pool(kv_format, 1 << 50)
    named = re.search(r"cache\.pages=(\d+)", str(no.value))
    assert named and 0 < int(named[1]) * kv_format.page_bytes < device_free_bytes("cpu") * 1.1


def test_bad_batches(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, tokenizer="none"))
    pool = model.new_kv_pool(model.kv_format(), 4)

    def batch(**changes: Any) -> ForwardBatch:
        fields: dict[str, Any] = {
            "token_ids_T": [1, 2],
            "positions_T": [0, 1],
            "query_starts_B1": [0, 2],
            "context_lens_B": [2],
            "page_table_BP": [[3]],
            "logit_rows_R": [1],
        } | changes
        return ForwardBatch(**{k: np.array(v, np.int32) for k, v in fields.items()})

    assert model.forward(batch(), pool).shape == (1, 512)
    assert model.forward(batch(logit_rows_R=[]), pool).shape == (0, 512)
    for changes, message in (
        ({"token_ids_T": [1, 512]}, "token ids go from 1 to 512, outside 0..511"),
        ({"token_ids_T": [-1, 5]}, "token ids go from -1"),
        ({"page_table_BP": [[4]]}, "page ids go from 4 to 4, outside 0..3"),
        ({"logit_rows_R": [2]}, "logit rows go from 2"),
        ({"context_lens_B": [17]}, "17 tokens does not fit 1 pages"),
        ({"positions_T": [0, 16]}, "17 tokens does not fit 1 pages"),
        ({"positions_T": [0]}, "1 entries for 2 tokens"),
        ({"query_starts_B1": [0, 1]}, "do not describe 1 requests"),
        ({"token_ids_T": [[1, 2]]}, "token_ids_T must be a contiguous int32 array"),
    ):
        with pytest.raises(ArgumentError, match=message):
            model.forward(batch(**changes), pool)


def test_chosen_experts(tmp_path: Path) -> None:
    """The trace tells which experts ran, in the layers that have some."""
    directory = make_tiny_model(
        tmp_path, tokenizer="none", num_hidden_layers=3, mlp_only_layers=[1]
    )
    traces = []
    for backend in ("torch", "native"):
        driver = ModelDriver(load_model(directory, backend=backend))
        trace = np.full((2, 6, 3), -1, np.int32)
        sequence = driver.add([5, 6, 7, 8, 9, 10])
        driver.step([(sequence, 6)], expert_ids=trace)
        assert trace.min() >= 0 and trace.max() < 8
        traces.append(np.sort(trace, axis=-1))
    assert np.array_equal(*traces)
