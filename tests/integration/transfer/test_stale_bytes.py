"""Bytes that were sent before a link was cut, and arrive after their slice went another way.

They wait in the queue of the cut link, the memory is used for something else meanwhile, and then
the link lets them pass.
"""

import time
from collections.abc import Iterator

import pytest

from tests.integration.transfer.rails_initiator import MANY
from tests.integration.transfer.test_rails import Pair
from tests.support.netns import ShapedLinks

pytestmark = pytest.mark.netns

WATCHED_S = 3


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ShapedLinks([800, 400, 400]) as links:
        yield Pair(links)


@pytest.mark.parametrize("cut", [0, 1])
def test_of_writes(pair: Pair, cut: int) -> None:
    link = pair.links[cut]
    pair.begin("write", 1)
    time.sleep(0.1)
    link.cut(silently=True)
    assert pair.result() is None  # complete
    pair.begin("write", 2)
    assert pair.result() is None
    before = link.bytes_sent("left")
    link.restore()
    end = time.monotonic() + WATCHED_S
    while time.monotonic() < end:
        code = f"int((np.frombuffer(segments['sink'], np.uint8)[:{MANY}] != 2).sum())"
        assert pair.tell_target(code) == 0
    assert link.bytes_sent("left") - before > 100_000  # there were some


@pytest.mark.parametrize("cut", [0, 1])
def test_of_reads(pair: Pair, cut: int) -> None:
    link = pair.links[cut]
    pair.begin("read", 7)
    time.sleep(0.1)
    link.cut(silently=True)
    assert pair.result() is True
    before = link.bytes_sent("right")
    link.restore()
    end = time.monotonic() + WATCHED_S
    while time.monotonic() < end:
        pair.begin("others", 7)
        assert pair.result() == 0
    assert link.bytes_sent("right") - before > 100_000
