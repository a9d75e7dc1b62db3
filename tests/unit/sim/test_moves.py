"""Blocks that are copied from instance to instance, and requests that go on elsewhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError
from inlay.sim.world import Copied, Reported, Sending, Sent, Undivided
from tests.unit.sim.worlds import SECOND, SLOPED, Drawn, instance, requests, submit, world_of

LINKED = {"token_bytes": 10.0, "out_bytes_per_s": 100.0, "in_bytes_per_s": 1e3}
SHARED = Drawn(0, 33, 1, shared=32)


def copying(**changes):
    """A world whose first instance has eight blocks that it is to copy to the second at 50 s."""
    world = world_of([instance(step_time=SECOND, **LINKED | changes)] * 2, news_delay_s=0.5)
    submit(world, 0, SHARED)
    world.advance(50)
    world.news()
    return world, world.copy(SHARED.names(0), 0, 1)


def heard(world):
    return [one for one in world.news() if not isinstance(one, Reported)]


def test_a_copy_takes_a_transfer_and_a_step():
    world, number = copying()
    assert not world.advance(100)
    assert world.now_s == pytest.approx(54.7)
    # The last of 32 tokens' blocks is computed while the others go, 320 bytes at 100 a second; then
    # the receiver computes the one token behind them.
    sending, sent, copied = heard(world)
    assert isinstance(sending, Sending) and sending == pytest.approx((50.5, 0, 320.0))
    assert isinstance(sent, Sent) and sent == pytest.approx((53.7, 0, 320.0, 3.2))
    assert isinstance(copied, Copied) and copied == pytest.approx((54.7, number, True))
    assert world.index.match(SHARED.names(0), 54.7).tolist() == [8, 8]
    assert world.advance(100)
    submit(world, 1, Drawn(100, 33, 1, shared=32, prefill=1, decode=1))
    world.advance(np.inf)
    world.audit()
    assert world.outcomes()["cached_tokens"].tolist() == [0, 32]


def test_whoever_waits_for_a_copy_waits_ten_seconds():
    world, number = copying(out_bytes_per_s=1.0)
    assert not world.advance(100)
    sending, sent, copied = heard(world)
    assert sent == (60.5, 0, 320.0, None) and copied == (60.5, number, False)
    assert world.advance(np.inf) and not world.num_live
    world.audit()
    assert world.index.num_blocks(1) == 0
    assert heard(world) == []


def test_blocks_that_are_there_are_not_sent():
    world, number = copying()
    world.advance(100)
    world.news()
    again = world.copy(SHARED.names(0), 0, 1)
    world.advance(200)
    # A step in which the last block is computed once more.
    assert heard(world) == [Copied(pytest.approx(world.now_s), again, True)]
    assert world.sent_bytes(0) == pytest.approx(320.0)
    with pytest.raises(ArgumentError, match="from instance 1 to 1"):
        world.copy(SHARED.names(0), 1, 1)
    with pytest.raises(ArgumentError, match="has no bandwidth"):
        copying(in_bytes_per_s=0.0)


def test_a_request_goes_on_where_it_is_sent():
    world = world_of([instance()] * 2)
    submit(world, 7, Drawn(0, 8, 10))
    world.advance(3.25)
    assert world.take_back(7, 1) is None
    assert world.take_back(7, 0) == 3 and not world.num_live
    world.submit(
        7, arrival_s=0.0, prompt_tokens=11, output_tokens=7, blocks=b"", prefill=1, decode=1
    )
    world.advance(np.inf)
    world.audit()
    (outcome,) = world.outcomes()
    assert (outcome["first_s"], outcome["end_s"], outcome["decode"]) == (1.0, 10.25, 1)
    assert (outcome["longest_gap_s"], outcome["preemptions"]) == (1.25, 1)
    assert world.take_back(7, 1) is None
    finished = [news for news in heard(world) if hasattr(news, "output_tokens")]
    assert [news.output_tokens for news in finished] == [10]


def test_a_lost_instance_forgets_and_its_requests_go_on():
    world = world_of([instance(step_time=SECOND, **LINKED)] * 2)
    submit(world, 7, Drawn(0, 8, 10))
    world.advance(3.25)
    assert world.lose(0) == [(7, 3)]
    world.submit(
        7, arrival_s=0.0, prompt_tokens=11, output_tokens=7, blocks=b"", prefill=1, decode=1
    )
    world.advance(3.5)
    world.come_back(0)
    submit(world, 9, Drawn(3.5, 8, 1))
    world.advance(np.inf)
    world.audit()
    outcomes = {int(outcome["request"]): outcome for outcome in world.outcomes()}
    assert (outcomes[7]["end_s"], outcomes[7]["preemptions"]) == (10.25, 1)
    # The step that was lost does not end that of the next one; and nothing was left to find.
    assert (outcomes[9]["first_s"], outcomes[9]["cached_tokens"]) == (4.5, 0)


def test_a_step_that_was_lost_says_nothing_of_later_requests():
    world = world_of([instance(step_time=SECOND)] * 2)
    submit(world, 1, Drawn(0, 8, 3))
    world.advance(0.5)
    assert world.lose(0) == [(1, 0)]
    submit(world, 2, Drawn(0.5, 8, 3, prefill=1, decode=1))  # where the first one was in memory
    world.advance(0.6)
    world.come_back(0)
    submit(world, 3, Drawn(0.6, 8, 1))
    world.advance(0.7)
    # In a step that ends at 1.5 s; it puts out nothing, and the next one is that of request 4.
    assert world.take_back(2, 1) == 0
    submit(world, 4, Drawn(0.7, 8, 2, prefill=1, decode=1))
    world.advance(np.inf)
    world.audit()
    outcomes = {int(outcome["request"]): outcome for outcome in world.outcomes()}
    assert sorted(outcomes) == [3, 4]
    assert (outcomes[4]["first_s"], outcomes[4]["end_s"]) == (2.5, 3.5)


def test_a_copy_that_nobody_wants_is_told_of_once():
    world, number = copying()
    world.advance(50.5)  # in the step that computes its last token
    world.lose(1)
    world.lose(0)
    world.audit()
    world.advance(100)
    assert [one for one in heard(world) if isinstance(one, Copied)] == [(51.0, number, False)]


def test_a_prompt_whose_sender_is_lost_is_computed_where_it_decodes():
    world = world_of([instance(step_time=SECOND, **LINKED | {"out_bytes_per_s": 10.0})] * 2)
    submit(world, 8, Drawn(0, 17, 2, prefill=0, decode=1))
    world.advance(2.5)  # computed at 1, and sent at 17 s
    world.news()
    assert world.lose(0) == []
    world.advance(np.inf)
    world.audit()
    (outcome,) = world.outcomes()
    assert (outcome["first_s"], outcome["prefill"]) == (4.5, 1)
    assert [news.request for news in heard(world) if isinstance(news, Undivided)] == [8]


@given(drawn=requests(slots=3, split=True), seed=st.integers(0, 1000))
def test_no_token_is_lost_or_served_twice_on_the_way(drawn, seed):
    rng = np.random.default_rng(seed)
    config = instance(step_time=SLOPED, layers=4, **LINKED)
    world = world_of([config] * 3, link_latency_s=0.5)
    places = {}
    for number, request in enumerate(drawn):
        while not world.advance(request.arrival_s):
            world.audit()
        submit(world, number, request)
        places[number] = request.decode
        source, target = rng.permutation(3)[:2].tolist()
        if blocks := request.names(number):
            world.copy(blocks, source, target)
        moved = int(rng.integers(number + 1))
        if rng.random() < 0.3:
            slot = int(rng.integers(3))
            lost = world.lose(slot)
            world.audit()
            world.come_back(slot)
        else:
            produced = world.take_back(moved, places[moved])
            lost = [] if produced is None else [(moved, produced)]
        world.audit()
        for moved, produced in lost:
            one, slot = drawn[moved], int(rng.integers(3))
            world.submit(
                moved, arrival_s=one.arrival_s, prompt_tokens=one.prompt + produced,
                output_tokens=one.output - produced, blocks=one.names(moved), prefill=slot,
                decode=slot,
            )  # fmt: skip
            places[moved] = slot
    while not world.advance(np.inf):
        world.audit()
    world.audit()
    assert not world.num_live
    outcomes, steps = world.outcomes(), world.steps()
    assert sorted(outcomes["request"]) == list(range(len(drawn)))
    for outcome in outcomes:
        number = int(outcome["request"])
        request = drawn[number]
        mine = steps[(steps["request"] == number) & (steps["samples"] == 1)]
        tokens = mine[mine["stop"] >= request.prompt]
        assert tokens["stop"].tolist() == list(
            range(request.prompt, request.prompt + request.output)
        )
        assert (np.diff(tokens["end_s"]) > 0).all()
        assert (outcome["first_s"], outcome["end_s"]) == tuple(tokens["end_s"][[0, -1]])
        gaps = np.diff(tokens["end_s"])
        assert outcome["longest_gap_s"] == pytest.approx(gaps.max(initial=0.0), rel=1e-5)
