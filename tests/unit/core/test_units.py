import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes, parse_seconds, size_to_set


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5 s", 1.5), ("2min", 120), ("1h", 3600), (0.25, 0.25), (3, 3)],
)
def test_times(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "-1s", "1.s", "1 day"])
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time: write for example 500ms"):
        parse_seconds(text)
