"""When experts are brought for a step."""

import pytest

from inlay.core.errors import ArgumentError
from inlay.experts.streaming import StreamChoice


def test_a_number_of_tokens_decides_where_one_is_given() -> None:
    assert [StreamChoice(100).streams(tokens) for tokens in (99, 100)] == [False, True]
    assert not StreamChoice(0).streams(1 << 20) and not StreamChoice(0).possible
    with pytest.raises(ArgumentError):
        StreamChoice(-1)


def test_the_quicker_way_is_taken() -> None:
    choice = StreamChoice("auto")
    choice.bring_s = 0.5
    assert not choice.streams(1024)  # the host shows first what it can
    choice.observe(1024, streamed=False, seconds=2.0)
    choice.observe(64, streamed=False, seconds=0.2)
    assert choice.streams(1024) and choice.streams(1500) and not choice.streams(64)
    choice.observe(1024, streamed=True, seconds=3.0)  # more than bringing alone
    assert not choice.streams(1024)
    for _ in range(12):
        choice.observe(1024, streamed=False, seconds=4.0)  # the host has more to do by now
    assert choice.streams(1024)


def test_without_knowing_the_link_nothing_is_brought() -> None:
    choice = StreamChoice("auto")
    choice.observe(1024, streamed=False, seconds=1e9)
    assert not choice.streams(1024)
