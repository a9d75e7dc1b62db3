import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.units import parse_bytes, size_to_set


@given(size_bytes=st.integers(0, 1 << 50))
def test_sizes_to_set_are_read_back_and_hardly_rounded(size_bytes: int) -> None:
    up, down = (parse_bytes(size_to_set(size_bytes, up=way)) for way in (True, False))
    assert down <= size_bytes <= up
    assert up - down <= size_bytes / 50


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(63, "63"), (8192, "8192"), (1 << 20, "1024KiB"), (70 << 30, "70GiB")]
)
def test_whole_units(size_bytes: int, text: str) -> None:
    assert size_to_set(size_bytes, up=True) == size_to_set(size_bytes, up=False) == text
