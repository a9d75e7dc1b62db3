from hypothesis import given
from hypothesis import strategies as st

from inlay.cache import BlockNames, Prefetch


def _prefetch(*, first=0, last=100, front=0):
    prefetch = Prefetch(BlockNames(b"k", 4), first, last, order=0, asked_s=1.0)
    prefetch.front = front
    return prefetch


def test_the_store_is_still_asked():
    prefetch = _prefetch()
    assert not prefetch.over
    assert prefetch.gate(0) is None
    assert not prefetch.done(50)
    assert prefetch.done(100), "what the store has would be of no use"


def test_nothing_is_there():
    prefetch = _prefetch()
    prefetch.found(0, 8)
    assert prefetch.over
    assert prefetch.done(0)


@given(
    first=st.integers(0, 50),
    count=st.integers(0, 60),
    front=st.integers(0, 120),
    size=st.integers(1, 40),
)
def test_stretches_cover_what_was_found_and_is_of_use(first, count, front, size):
    prefetch = _prefetch(first=first, last=70, front=front)
    prefetch.found(count, size)
    covered = [b for s in prefetch.stretches for b in range(s.start, s.stop)]
    assert covered == list(range(max(first, front), min(first + count, 70)))
    assert all(s.num_blocks == size for s in prefetch.stretches[1:]), "only the first is odd"
    assert list(prefetch.open_stretches) == prefetch.stretches[::-1], "the last is loaded first"


def test_a_request_is_stopped_by_what_is_open_and_steps_over_what_came():
    prefetch = _prefetch(first=2, last=12)
    prefetch.found(10, 4)
    low, middle, high = prefetch.stretches
    assert [(s.start, s.stop) for s in prefetch.stretches] == [(2, 4), (4, 8), (8, 12)]
    assert prefetch.gate(0) is low
    high.state = "over"
    prefetch.arrived.update({8: "host", 9: "host", 11: "host"})
    low.state = "over"
    assert prefetch.gate(2) is middle
    middle.state = "over"
    assert prefetch.over
    assert prefetch.next_arrived(2) == 8
    assert prefetch.reach(8) == 10
    assert prefetch.next_arrived(10) == 11
    assert not prefetch.done(10)
    assert prefetch.reach(11) == 12
    assert prefetch.done(12)


def test_tokens_are_counted_by_tier():
    prefetch = _prefetch(first=2, last=12)
    prefetch.found(10, 4)
    prefetch.arrived.update(dict.fromkeys(range(4, 6), "host"))
    prefetch.arrived.update(dict.fromkeys(range(6, 12), "disk"))
    prefetch.take(4, 8, 16)
    prefetch.take(8, 9, 16)
    assert prefetch.taken == {"host": 32, "disk": 48}
