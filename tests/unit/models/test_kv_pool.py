"""The memory of the page pool, on a CPU."""

from pathlib import Path

import psutil
import pytest

from inlay.core.errors import ResourceError
from inlay.models.model import load_model
from tests.support.tiny_models import make_tiny_model

MIB = 1 << 20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_take_memory_when_they_are_used(tmp_path: Path, dtype: str) -> None:
    model = load_model(make_tiny_model(tmp_path / "model"))
    kv_format = model.kv_format(dtype=dtype)
    before = psutil.Process().memory_info().rss
    pool = model.new_kv_pool(kv_format, num_pages=512 * MIB // kv_format.page_bytes)
    assert psutil.Process().memory_info().rss - before < 16 * MIB
    pages = pool.whole.as_bytes()
    assert pages.nbytes == pool.nbytes and not pages[:2].any() and not pages[-2:].any()
    pages[: len(pages) // 2] = 1
    assert psutil.Process().memory_info().rss - before > 200 * MIB


def test_more_than_there_is(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "model"))
    kv_format = model.kv_format(dtype="bfloat16")
    with pytest.raises(ResourceError, match="no memory for .* KV pages"):
        model.new_kv_pool(kv_format, num_pages=(1 << 46) // kv_format.page_bytes)
