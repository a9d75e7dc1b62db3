"""Tiers behind simulated devices: what holds in every world, and times worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.cluster.store_index import StoreIndex
from inlay.core.errors import ArgumentError, ConfigError
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.tier import TIERS, Tier
from inlay.sim.world import Reported
from tests.unit.sim.workloads import multi_turn, simulated
from tests.unit.sim.worlds import (
    PAGE,
    SECOND,
    SLOPED,
    Drawn,
    instance,
    requests,
    run,
    submit,
    world_of,
)

LINKED = {"token_bytes": 10.0, "layers": 4, "out_bytes_per_s": 50.0, "in_bytes_per_s": 80.0}
QUICK = LINKED | {"out_bytes_per_s": 5e4, "in_bytes_per_s": 8e4}


def tier(name="host", *, blocks=1000, rate=math.inf, **changes):
    return Tier(
        name=name,
        tokens=blocks * PAGE,
        read_bytes_per_s=rate,
        write_bytes_per_s=rate,
        **{"eviction": "lru"} | changes,
    )


@st.composite
def tiers_of(draw):
    """Of an instance, and of all: each perhaps, small or large, slow or quick."""

    def one(name):
        return tier(
            name,
            blocks=draw(st.sampled_from((1, 5, 30, 1000))),
            rate=draw(st.sampled_from((15.0, 400.0, math.inf))),
            latency_s=draw(st.sampled_from((0.0, 0.1, 1.5))),
            eviction=draw(st.sampled_from(("lru", "cost", "s3fifo"))),
        )

    host = one("host") if draw(st.booleans()) else None
    disk = one("disk") if host is not None and draw(st.booleans()) else None
    store = one("store") if host is None or draw(st.booleans()) else None
    write = draw(st.sampled_from(("through", "second_hit", "evict")))
    return {"host": host, "disk": disk, "write": write}, store


@given(drawn=requests(slots=3, split=True), made=tiers_of(), pages=st.sampled_from((31, 60)))
def test_no_token_is_lost_or_served_twice(drawn, made, pages):
    own, store = made
    config = instance(step_time=SLOPED, num_pages=pages, **LINKED, **own)
    world = run([config] * 3, drawn, store=store, page_tokens=PAGE)  # audited all along
    steps, outcomes = world.steps(), world.outcomes()
    assert sorted(outcomes["request"]) == list(range(len(drawn))) and not world.num_live
    for outcome in outcomes:
        number = int(outcome["request"])
        request = drawn[number]
        mine = steps[(steps["request"] == number) & (steps["slot"] == outcome["decode"])]
        stops = [int(c["stop"]) for c in mine if c["samples"] and c["stop"] >= request.prompt]
        assert stops == list(range(request.prompt, request.prompt + request.output))
        loaded = sum(int(outcome[f"{name}_tokens"]) for name in TIERS)
        assert loaded <= outcome["cached_tokens"] <= request.prompt - 1
        assert (mine["start_s"] >= request.arrival_s).all()
        if not outcome["preemptions"] and request.prefill == request.decode:
            # What lies between two chunks was found; the rest is computed once.
            assert (mine["start"][1:] >= mine["stop"][:-1]).all()
            computed = int((mine["stop"] - mine["start"]).sum())
            assert computed == request.prompt + request.output - 1 - outcome["cached_tokens"]
    again = run([config] * 3, drawn, store=store, page_tokens=PAGE)
    assert np.array_equal(again.steps(), steps) and np.array_equal(again.outcomes(), outcomes)


def test_without_room_in_tiers_nothing_changes():
    """What is read and written takes nobody's time where nothing is found."""
    drawn = [Drawn(i, 50, 5) for i in range(8)]
    alone = run([instance()], drawn).outcomes()
    host = tier(rate=1e-3)
    behind = run([instance(token_bytes=1.0, host=host, write="second_hit")], drawn).outcomes()
    assert np.array_equal(alone, behind)


def test_what_a_device_has_no_room_for_comes_from_the_host():
    """Nine blocks of 40 bytes at 100 a second: 3.6 s, less than the three steps of 33 tokens."""
    steps = replace(SECOND, parts=(((10.0, 0, 0, 10.0, 0, 0, 0, 0),),))
    config = instance(step_time=steps, num_pages=12, token_bytes=10.0, host=tier(rate=100.0))
    drawn = [
        Drawn(0, 37, 1, shared=36),
        Drawn(1000, 47, 1, family=1),
        Drawn(2000, 37, 1, shared=36),
    ]
    world = run([config], drawn)
    last = world.outcomes()[2]
    assert (last["cached_tokens"], last["host_tokens"], last["disk_tokens"]) == (36, 36, 0)
    assert last["first_s"] == pytest.approx(2000 + 3.6 + 10)
    read, written = world.tier_bytes(0, "host")
    assert (read, written) == (9 * 40.0, (9 + 11) * 40.0)


def test_slow_loads_and_computing_meet():
    """Blocks come from the end while others are computed from the beginning."""
    config = instance(
        step_time=SECOND, num_pages=12, prefill_chunk=4, token_bytes=1e6, host=tier(rate=2e6)
    )
    drawn = [
        Drawn(0, 37, 1, shared=36),
        Drawn(1000, 47, 1, family=1),
        Drawn(2000, 37, 1, shared=36),
    ]
    world = run([config], drawn)
    last = world.outcomes()[2]
    assert 0 < last["host_tokens"] < 36
    mine = world.steps()
    mine = mine[mine["request"] == 2]
    gaps = mine["start"][1:] - mine["stop"][:-1]
    assert mine["start"][0] == 0 and gaps.sum() == last["host_tokens"] and (gaps > 0).sum() == 1
    # Ten steps without; a block is computed in a second, and loaded in two.
    assert last["first_s"] < 2000 + 9


def test_a_disk_has_what_left_the_hosts_memory():
    config = instance(num_pages=12, token_bytes=10.0, host=tier(blocks=5), disk=tier("disk"))
    others = [Drawn(1000.0 * i, 47, 1, family=i) for i in (1, 2)]
    drawn = [Drawn(0, 37, 1, shared=36), *others, Drawn(5000, 37, 1, shared=36)]
    for store in (None, tier("store", blocks=1)):  # written at once, or when it leaves memory
        world = run([replace(config, **LINKED)], drawn, store=store, page_tokens=PAGE)
        last = world.outcomes()[3]
        assert last["disk_tokens"] > 0 and last["cached_tokens"] > 20


def test_one_instance_finds_in_the_store_what_another_one_computed():
    index = StoreIndex()
    world = world_of(
        [instance(**QUICK)] * 2,
        store=tier("store", latency_s=1e-3),
        store_index=index,
        news_delay_s=0.5,
        page_tokens=PAGE,
    )
    first = Drawn(0, 17, 1, shared=16)
    submit(world, 0, first)
    # Four blocks are computed in one step, and go over the link.
    there_s = 1 + 160 / 5e4 + 1e-3
    world.advance(there_s + 0.49)
    assert not len(index)
    world.advance(there_s + 0.51)
    assert index.match(first.names(0)) == 4
    submit(world, 1, replace(first, arrival_s=world.now_s, prefill=1, decode=1))
    world.advance(math.inf)
    outcome = world.outcomes()[1]
    assert (outcome["store_tokens"], outcome["cached_tokens"]) == (16, 16)
    # A look-up, four blocks in one load over the link of the one that asks, a step.
    assert outcome["first_s"] == pytest.approx(there_s + 0.51 + 1e-3 + 160 / 8e4 + 1e-3 + 1)
    reports = [news for news in world.news() if isinstance(news, Reported) and news.slot == 1]
    assert reports[-1].report.find_s == pytest.approx((0.8 * 2e-3 + 1e-3) / 1.8)
    assert reports[-1].report.load_block_s > 0


def test_two_that_load_from_a_slow_store_share_it():
    config = instance(**LINKED | {"in_bytes_per_s": 1e6})
    drawn = [Drawn(0, 17, 1, shared=16)]
    drawn += [Drawn(100, 17, 1, shared=16, prefill=slot, decode=slot) for slot in (1, 2)]
    took_s = []
    for there in (drawn[:2], drawn):
        world = run([config] * 3, there, store=tier("store", rate=1e5), page_tokens=PAGE)
        took_s.append([float(one["first_s"]) for one in world.outcomes()[1:]])
    assert took_s[0] == pytest.approx([101 + 1.6e-3], abs=1e-6)
    assert took_s[1] == pytest.approx([101 + 3.2e-3] * 2, abs=1e-6)


@pytest.mark.parametrize(("write", "copied"), [("through", 9), ("second_hit", 0), ("evict", 0)])
def test_when_blocks_are_copied(write, copied):
    config = instance(num_pages=400, token_bytes=10.0, host=tier(), write=write)
    once = [Drawn(0, 37, 1, shared=36)]
    assert run([config], once).tier_bytes(0, "host")[1] == copied * 40
    twice = [*once, replace(once[0], arrival_s=100)]
    assert run([config], twice).tier_bytes(0, "host")[1] == 40 * (9 if write != "evict" else 0)
    if write == "evict":
        config = replace(config, num_pages=31)
        many = [Drawn(100.0 * i, 37, 1, shared=36, family=i) for i in range(5)]
        assert run([config], many).tier_bytes(0, "host")[1] > 0


def test_what_is_evicted_before_it_is_copied_is_lost():
    config = instance(num_pages=12, token_bytes=1e8, host=tier(rate=1e7))
    world = run([config], [Drawn(10.0 * i, 40, 1, family=i) for i in range(3)])
    assert world.lost_blocks(0) > 0


def test_a_lost_instance_loses_its_own_tiers_and_not_the_store():
    for kept, store in ((0, None), (16, tier("store"))):
        world = world_of(
            [instance(host=tier(rate=1e5), **QUICK)] * 2, store=store, page_tokens=PAGE
        )
        submit(world, 0, Drawn(0, 17, 1, shared=16))
        world.advance(50)
        submit(world, 1, Drawn(50, 100, 10, family=1))
        world.advance(51.5)  # while it computes, and copies
        assert [request for request, _ in world.lose(0)] == [1]
        world.audit()
        world.come_back(0)
        submit(world, 2, Drawn(51.5, 17, 1, shared=16))
        world.advance(math.inf)
        world.audit()
        found = {int(one["request"]): int(one["store_tokens"]) for one in world.outcomes()}
        assert found[2] == kept


def test_policies_count_on_the_store():
    """Where requests go anywhere, what all share makes hits of what an instance has not."""
    trace = multi_turn(40, rate=1.0)
    store = Tier(name="store", tokens=10**7, latency_s=1e-3)
    alone = simulated(trace, "random", ["both"] * 4, pages=400, copies=False)
    shared = simulated(trace, "random", ["both"] * 4, pages=400, copies=False, store=store)
    assert shared.hit_ratio > alone.hit_ratio + 0.1
    assert shared.hit_tokens["store"] > 0 == alone.hit_tokens["store"]
    assert shared.tier_bytes[:, TIERS.index("store"), 1].min() > 0


def test_bad_tiers_are_refused():
    for problem, change in (
        ("not one of", {"name": "pool"}),
        ("room for tokens", {"tokens": 0}),
        ("rates must be above 0", {"read_bytes_per_s": 0.0}),
        ("latency", {"latency_s": -1.0}),
        ("eviction 'fifo'", {"eviction": "fifo"}),
    ):
        with pytest.raises(ConfigError, match=problem):
            Tier(**{"name": "host", "tokens": 100} | change)
    with pytest.raises(ConfigError, match="set host"):
        instance(disk=tier("disk"))
    with pytest.raises(ConfigError, match="write 'never'"):
        instance(write="never")
    with pytest.raises(ConfigError, match="less than a page"):
        world_of([instance(token_bytes=1.0, host=Tier(name="host", tokens=PAGE - 1))])
    with pytest.raises(ArgumentError, match="must have bytes"):
        world_of([instance(host=tier())])
    unlinked = Kind(instance=instance(token_bytes=1.0))
    with pytest.raises(ConfigError, match="over the network"):
        Simulation(Scenario(kinds=(unlinked,), store=tier("store")))
