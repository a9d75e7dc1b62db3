"""Bytes that were sent before a link was cut, and arrive after their slice went another way.

They wait in the queue of the cut link, the memory is used for something else meanwhile, and then
the link lets them pass.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.integration.transfer.rails_initiator import MANY
from tests.integration.transfer.test_rails import Pair
from tests.support.netns import Link, ShapedLinks, Side

pytestmark = pytest.mark.netns

WATCHED_S = 3
TRIES = 10  # on a busy machine everything may have arrived before the link is cut


@pytest.fixture
def pair() -> Iterator[Pair]:
    # Slow enough that something waits in their queues on a busy machine, too.
    with ShapedLinks([200, 100, 100]) as links:
        yield Pair(links)


def cut_in_the_middle(pair: Pair, link: Link, what: str, value: int, sender: Side) -> object:
    """Cut a link while bytes are on their way over it; the result of what went on without it."""
    before = link.bytes_sent(sender)
    pair.begin(what, value)
    until = time.monotonic() + 60
    while link.bytes_sent(sender) - before < 1 << 20:
        assert time.monotonic() < until, f"nothing goes over {link.left}"
        time.sleep(0.002)
    link.cut(silently=True)
    return pair.result()


def late(link: Link, sender: Side, look: Callable[[], None]) -> bool:
    """Whether bytes arrive late when the link is back, for as long as somebody looks."""
    before = link.bytes_sent(sender)
    link.restore()
    end = time.monotonic() + WATCHED_S
    while time.monotonic() < end:
        look()
    return link.bytes_sent(sender) - before > 100_000


@pytest.mark.parametrize("cut", [0, 1])
def test_of_writes(pair: Pair, cut: int) -> None:
    def look() -> None:
        code = f"int((np.frombuffer(segments['sink'], np.uint8)[:{MANY}] != 2).sum())"
        assert pair.tell_target(code) == 0

    link = pair.links[cut]
    for _ in range(TRIES):
        assert cut_in_the_middle(pair, link, "write", 1, "left") is None  # complete
        pair.begin("write", 2)
        assert pair.result() is None
        if late(link, "left", look):
            return
    pytest.fail("no byte was on its way when the link was cut")


@pytest.mark.parametrize("cut", [0, 1])
def test_of_reads(pair: Pair, cut: int) -> None:
    def look() -> None:
        pair.begin("others", 7)
        assert pair.result() == 0

    link = pair.links[cut]
    for _ in range(TRIES):
        assert cut_in_the_middle(pair, link, "read", 7, "right") is True
        if late(link, "right", look):
            return
    pytest.fail("no byte was on its way when the link was cut")
