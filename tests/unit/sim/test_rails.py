"""Transfers over simulated links: by hand, against the policies' references, and never lost."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError, ConfigError
from inlay.sim.rails import BIN_S, LinkState, PathChoice, Rails, Sprayed, could_move, spray
from inlay.sim.studies import spraying
from inlay.transfer.reference.spray import PathEstimate, PathView, Ticket, choose

RATES = (200e6, 100e6, 66e6, 50e6)
DELAY_S = 100e-6
SMALL = 64 << 10
CHOICES: tuple[PathChoice, ...] = ("engine", "round_robin", "static")


def whole(*rates: float) -> list[list[LinkState]]:
    return [[LinkState(since_s=0.0, bytes_per_s=rate)] for rate in rates]


def one(rails: Rails, size_bytes: int, until_s: float = 100.0) -> float:
    """Seconds of a transfer that has all links to itself."""
    found = spray(rails, np.zeros(1), np.array([size_bytes]), until_s=until_s)
    return float(found.seconds_N[0])


def small(rails: Rails, gap_s: float, until_s: float) -> Sprayed:
    begun_s_N = np.arange(0.0, until_s - 1.0, gap_s)
    sizes_N = np.full(len(begun_s_N), SMALL, dtype=np.int64)
    return spray(rails, begun_s_N, sizes_N, until_s=until_s)


@pytest.mark.parametrize("choice", CHOICES)
def test_one_link_by_hand(choice: PathChoice) -> None:
    rails = Rails(links=whole(100e6), choice=choice, delay_s=DELAY_S)
    assert one(rails, 10 << 20) == pytest.approx((10 << 20) / 100e6 + DELAY_S, rel=1e-6)


def test_others_by_hand() -> None:
    """A transfer in turn ends with its slowest part, a static one has one link."""
    in_turn = Rails(links=whole(*RATES), choice="round_robin", delay_s=0.0)
    assert one(in_turn, 64 * SMALL) == pytest.approx(16 * SMALL / 50e6, rel=1e-6)
    static = Rails(links=whole(*RATES), choice="static", delay_s=0.0)
    found = spray(static, np.zeros(4), np.full(4, SMALL), until_s=1.0)
    assert found.seconds_N == pytest.approx(SMALL / np.array(RATES), rel=1e-5)


def by_references(size_bytes: int) -> float:
    """The same transfer over `RATES`, by the references of estimates and of the choice."""
    views = [PathView(PathEstimate(rate, 2 * DELAY_S, 0)) for rate in RATES]
    free = [0] * len(RATES)
    events: list[tuple[int, int, int, int, Ticket]] = []
    left, now, order = size_bytes, 0, 0
    while True:
        while left:
            path, size = choose(views, left, now)
            if path < 0:
                break
            ticket = views[path].estimate.posted(size, now)
            left -= size
            free[path] = max(now, free[path]) + math.ceil(size / RATES[path] * 1e9)
            order += 1
            heapq.heappush(events, (free[path] + round(DELAY_S * 1e9), order, path, size, ticket))
        if not events:
            return now * 1e-9
        now, _, path, size, ticket = heapq.heappop(events)
        views[path].estimate.completed(size, ticket, now)


@pytest.mark.parametrize("size_mib", [1, 7, 64, 300])
def test_slices_go_where_the_references_say(size_mib: int) -> None:
    rails = Rails(links=whole(*RATES), delay_s=DELAY_S)
    assert one(rails, size_mib << 20) == pytest.approx(by_references(size_mib << 20), rel=1e-9)


@pytest.mark.parametrize(("told", "allowed_s"), [(True, 0.015), (False, 0.045)])
def test_a_cut_stalls_nothing_for_long_and_the_link_comes_back(
    told: bool, allowed_s: float
) -> None:
    links = whole(*RATES)
    links[0] += [
        LinkState(since_s=0.5, bytes_per_s=0.0, up=False),
        LinkState(since_s=1.0, bytes_per_s=RATES[0]),
    ]
    rails = Rails(links=links, delay_s=DELAY_S, link_events=told)
    found = small(rails, SMALL / (0.3 * sum(RATES)), 3.0)
    assert np.nanmax(found.seconds_N) < allowed_s
    assert not np.isnan(found.seconds_N).any()
    moved_B = found.moved_LB[0]
    assert moved_B[round(0.55 / BIN_S) : round(1.0 / BIN_S)].sum() == 0
    first_s = (np.flatnonzero(moved_B[round(1.0 / BIN_S) :])[0] + 1) * BIN_S
    assert first_s < (0.1 if told else 0.7)
    assert found.repeated >= 1


@pytest.mark.parametrize("choice", CHOICES)
def test_a_link_that_is_slow_is_not_given_up(choice: PathChoice) -> None:
    links = whole(*RATES)
    links[1].append(LinkState(since_s=0.2, bytes_per_s=RATES[1] / 20))
    found = small(Rails(links=links, choice=choice), SMALL / (0.1 * sum(RATES)), 2.0)
    assert found.repeated == 0


@st.composite
def worlds(draw: st.DrawFn) -> Rails:
    links = []
    for _ in range(draw(st.integers(1, 4))):
        rate = draw(st.sampled_from([20e6, 100e6, 3e9]))
        states = [LinkState(since_s=0.0, bytes_per_s=rate)]
        for gap_ms in draw(st.lists(st.integers(1, 400), max_size=6)):
            since_s = states[-1].since_s + gap_ms * 1e-3
            up = draw(st.booleans())
            slow = draw(st.sampled_from([0.0, 0.05, 1.0])) if up else 0.0
            states.append(LinkState(since_s=since_s, bytes_per_s=rate * slow, up=up))
        states.append(LinkState(since_s=states[-1].since_s + 0.05, bytes_per_s=rate))
        links.append(states)
    return Rails(
        links=links,
        choice=draw(st.sampled_from(CHOICES)),
        delay_s=draw(st.sampled_from([0.0, 50e-6, 5e-3])),
        link_events=draw(st.booleans()),
    )


@given(worlds(), st.lists(st.integers(1, 8 << 20), min_size=1, max_size=20), st.integers(0, 3))
def test_no_byte_is_lost_or_moved_twice(rails: Rails, sizes: list[int], at_once: int) -> None:
    begun_s_N = np.linspace(0.0, 1.0, len(sizes))
    sizes_N = np.array(sizes, dtype=np.int64)
    found = spray(rails, begun_s_N, sizes_N, until_s=60.0, at_once=at_once)
    assert not np.isnan(found.seconds_N).any()
    assert found.moved_LB.sum() == sizes_N.sum()
    if not at_once:
        assert found.begun_s_N == pytest.approx(begun_s_N, abs=1e-9)
    for moved_B, states in zip(found.moved_LB, rails.links, strict=True):
        until_s = (np.flatnonzero(moved_B)[-1] + 1) * BIN_S if moved_B.any() else 0.0
        assert moved_B.sum() <= could_move(states, until_s) + 1
    again = spray(rails, begun_s_N, sizes_N, until_s=60.0, at_once=at_once)
    assert (again.seconds_N == found.seconds_N).all()


def test_what_does_not_end_is_said_to_be_so() -> None:
    links = whole(100e6, 100e6)
    for states in links:
        states.append(LinkState(since_s=0.01, bytes_per_s=0.0, up=False))
    found = spray(Rails(links=links), np.array([0.0, 5.0]), np.array([8 << 20] * 2), until_s=2.0)
    assert np.isnan(found.seconds_N).all()
    assert np.isnan(found.begun_s_N).tolist() == [False, True]


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Rails(links=[])
    with pytest.raises(ConfigError, match="above 0"):
        Rails(links=whole(0.0))
    with pytest.raises(ConfigError, match="delay_s"):
        Rails(links=whole(1e6), delay_s=-1.0)
    good = Rails(links=whole(1e6))
    with pytest.raises(ArgumentError, match="at least 1"):
        spray(good, np.zeros(1), np.zeros(1, dtype=np.int64), until_s=1.0)
    with pytest.raises(ArgumentError, match="ascend"):
        spray(good, np.array([1.0, 0.5]), np.ones(2, dtype=np.int64), until_s=1.0)
    with pytest.raises(ArgumentError, match="as many"):
        spray(good, np.zeros(1), np.ones(2, dtype=np.int64), until_s=1.0)
    states = [LinkState(since_s=time_s, bytes_per_s=1e6) for time_s in (0.0, 2.0, 1.0)]
    with pytest.raises(ArgumentError, match="in order of time"):
        spray(Rails(links=[states]), np.zeros(1), np.ones(1, dtype=np.int64), until_s=1.0)


def test_the_study_has_returns_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spraying, "UNTIL_S", 3.0)
    found = {
        choice: {
            one.name: one.value
            for one in spraying.measure(choice=choice, links=4, failing=2, fault="cut")
        }
        for choice in CHOICES
    }
    assert found["engine"]["delivered"] > max(found[choice]["delivered"] for choice in CHOICES[1:])
    assert found["engine"]["used_again_s"] <= found["engine"]["used_again_worst_s"] < 1.0
