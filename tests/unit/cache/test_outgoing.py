import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.cache import Outgoing
from inlay.core.instance_messages import KvTarget

PAGE = 4


def target(num_tokens, first_block, pages=None):
    num_pages = max(0, -(-num_tokens // PAGE) - first_block) if pages is None else pages
    return KvTarget(
        request_id="r",
        address="127.0.0.1:1",
        segment="kv",
        grant=1,
        first_block=first_block,
        pages=np.arange(100, 100 + num_pages, dtype="<u4").tobytes(),
        num_tokens=num_tokens,
    )


@st.composite
def histories(draw):
    """A prompt, how it is cut into steps, and before which step its target is known."""
    num_tokens = draw(st.integers(1, 60))
    cached = draw(st.integers(0, (num_tokens - 1) // PAGE)) * PAGE
    stops, at = [], cached
    while at < num_tokens:
        at = min(num_tokens, at + draw(st.integers(1, 20)))
        stops.append(at)
    aimed = draw(st.integers(0, len(stops)))
    return num_tokens, cached, stops, aimed, draw(st.integers(0, num_tokens // PAGE))


@given(histories())
def test_each_layer_of_each_wanted_page_goes_once_and_when_it_is_full(history):
    num_tokens, start, stops, aimed, first_block = history
    outgoing = Outgoing("r", num_tokens, PAGE)
    sent = []
    for number, stop in enumerate(stops):
        if number == aimed:
            outgoing.aim(target(num_tokens, first_block))
        if number >= aimed:
            parts = outgoing.take_parts(start, stop)
            # Whole blocks were full before this step, and layered ones are full after it.
            assert all((block + 1) * PAGE <= start for block in parts.whole)
            assert all(min((block + 1) * PAGE, num_tokens) <= stop for block in parts.layered)
            sent += [*parts.whole, *parts.layered]
        start = stop
    if aimed == len(stops):
        outgoing.aim(target(num_tokens, first_block))
        sent += outgoing.take_parts(num_tokens, num_tokens).whole
    assert outgoing.complete
    assert sent == list(range(first_block, outgoing.num_blocks))


def test_pages_at_the_target_begin_with_its_first_block():
    outgoing = Outgoing("r", 18, PAGE)
    outgoing.aim(target(18, 2))
    assert outgoing.remote(range(2, 5)).tolist() == [100, 101, 102]
    assert outgoing.remote(range(4, 5)).tolist() == [102]


@pytest.mark.parametrize("wrong", [target(17, 0), target(18, 0, pages=4), target(18, 2, pages=5)])
def test_a_target_that_does_not_fit_is_refused(wrong):
    with pytest.raises(ValueError, match="the prompt has 18 tokens in 5 pages"):
        Outgoing("r", 18, PAGE).aim(wrong)
