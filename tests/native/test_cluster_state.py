"""The compiled core of the cluster state keeps the numbers of the reference, and chooses alike.

All of it to the last bit, but for what is learned from samples, whose sums are made in another
order.
"""

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay import _native
from inlay.cluster._reference_seen import SeenPrompts
from inlay.cluster._reference_state import State
from inlay.cluster._reference_timing import Timing
from inlay.cluster.slot_numbers import NUM_NUMBERS, SlotNumbers
from inlay.core.errors import ArgumentError

PAGE_TOKENS = 16
PRIOR = [0.01, 1.2e-4, 2e-9, 0.008, 2e-4, 1e-7]
ROLES = ("both", "prefill", "decode", "closed")


class Numbers(SlotNumbers):
    def __init__(self, numbers_CS: np.ndarray) -> None:
        self.all = numbers_CS
        self._lie_in(numbers_CS)


class Pair:
    """Both of them, each over its own numbers."""

    def __init__(self, roles: list[str]) -> None:
        self.both: tuple[Any, Any] = (
            _native.cluster.State(PAGE_TOKENS, 1 << 16),
            State(PAGE_TOKENS, 1 << 16),
        )
        self.timings: tuple[Any, Any] = (
            _native.cluster.Timing(PRIOR, 2000.0, 2.5, 0.05),
            Timing(PRIOR, 2000.0, 2.5, 0.05),
        )
        slots = len(roles)
        self.numbers = [Numbers(np.zeros((NUM_NUMBERS, slots))) for _ in self.both]
        for core, numbers in zip(self.both, self.numbers, strict=True):
            core.bind(numbers.all)
        self.roles = roles
        self.there = list(range(slots))
        for slot in range(slots):
            self.join(slot)

    def join(self, slot: int) -> None:
        chunk = 256 * (slot + 1)
        for core, numbers, timing in zip(self.both, self.numbers, self.timings, strict=True):
            numbers.all[:, slot] = 0
            numbers.chunk[slot] = chunk
            numbers.max_rows[slot] = 4
            numbers.pages_free[slot] = numbers.pages_total[slot] = 200 * (slot + 1)
            numbers.find_s[slot] = numbers.load_block_s[slot] = 1e9
            numbers.link_latency_s[slot], numbers.link_bandwidth[slot] = 0.002, 1e8
            numbers._link_std[slot] = 0.5
            core.join(slot, timing, chunk)
        self.open()

    def open(self) -> None:
        """As `Slots` does it; who is closed takes nothing."""
        roles = [role if slot in self.there else "closed" for slot, role in enumerate(self.roles)]
        short = np.array([role != "closed" for role in roles])
        prefill = np.array([role in ("both", "prefill") for role in roles])
        decode = np.array([role in ("both", "decode") for role in roles])
        for numbers in self.numbers:
            numbers.closed_short_s[:] = np.where(short, 0.0, np.inf)
            numbers.closed_prefill_s[:] = np.where(prefill if prefill.any() else short, 0, np.inf)
            numbers.closed_decode_s[:] = np.where(decode if decode.any() else short, 0, np.inf)

    def do(self, name: str, *arguments: object) -> Any:
        mine, theirs = (getattr(core, name)(*arguments) for core in self.both)
        assert mine == theirs, name
        return mine

    def choose(self, name: str, *arguments: object) -> tuple[Any, ...]:
        mine, theirs = (getattr(core, name)(*arguments) for core in self.both)
        assert mine[:-1] == theirs[:-1], name
        assert mine[-1].tolist() == theirs[-1].tolist(), name
        answer: tuple[Any, ...] = mine
        return answer

    def check(self) -> None:
        mine, theirs = (numbers.all for numbers in self.numbers)
        assert mine.tolist() == theirs.tolist()
        assert self.both[0].outputs == self.both[1].outputs
        self.do("live")


slots = st.integers(0, 3)
seconds = st.floats(0.0, 3.0)
step = st.one_of(
    st.tuples(
        st.just("dispatched"), slots, slots, st.integers(-1, 1), st.integers(1, 9000), seconds
    ),
    st.tuples(st.just("prefill_done"), st.integers(0)),
    st.tuples(st.just("finished"), st.integers(0), st.none() | st.integers(1, 400)),
    st.tuples(st.just("report"), slots, st.integers(0, 9), st.integers(0, 40_000), seconds),
    st.tuples(st.just("moved"), slots, st.floats(0, 1e8), st.none() | seconds),
    st.tuples(st.just("leave"), slots),
    st.tuples(st.just("join"), slots),
)
histories = st.lists(st.tuples(seconds, step), max_size=40)


def replay(pair: Pair, steps: list[Any]) -> float:
    """Whatever happens; returns the time."""
    now_s, sent, ids = 0.0, 0, ["unknown"]
    for apart_s, (kind, *arguments) in steps:
        now_s += apart_s / 10
        match kind, arguments:
            case "dispatched", [prefill, decode, priority, num_tokens, work_s]:
                if prefill in pair.there and decode in pair.there:
                    # Now and then one goes once more.
                    ids.append(str(sent - sent % 7 // 6))
                    sent += 1
                    reused = num_tokens // PAGE_TOKENS // 2
                    pair.do(
                        "dispatched", ids[-1], prefill, decode, priority, num_tokens, 300,
                        reused, reused // 3, 1.5 * work_s, work_s / 50, work_s, now_s,
                    )  # fmt: skip
            case "prefill_done", [number]:
                pair.do("prefill_done", ids[number % len(ids)], now_s)
            case "finished", [number, outputs]:
                pair.do("finished", ids[number % len(ids)], outputs)
            case "report", [slot, count, tokens, found_s]:
                if slot in pair.there:
                    pair.do(
                        "report", slot, count, count // 2, count // 3, tokens, tokens // 3, 500,
                        50 * count, tokens % 300, found_s or None, found_s / 100 or None, [], now_s,
                    )  # fmt: skip
            case "moved", [slot, size_bytes, took_s]:
                pair.do("sending", slot, size_bytes)
                if slot in pair.there or took_s is None:
                    pair.do("sent", slot, size_bytes * 0.7, took_s)
            case "leave", [slot]:
                if slot in pair.there and len(pair.there) > 1:
                    pair.do("leave", slot)
                    pair.there.remove(slot)
                    pair.open()
            case "join", [slot]:
                if slot not in pair.there:
                    pair.there.append(slot)
                    pair.join(slot)
        pair.do("elapse", now_s)
        pair.check()
        for slot in pair.there:
            pair.do("load_after", slot, apart_s, now_s)
            pair.do("tbt_at_s", slot, 3.0, 5000.0)
            pair.do("best_effort", slot)
    return now_s


@given(
    roles=st.lists(st.sampled_from(ROLES), min_size=4, max_size=4),
    steps=histories,
    request=st.tuples(
        st.integers(1, 9000), st.integers(1, 500), st.integers(-1, 1), st.integers(0, 600)
    ),
    gap_s=st.sampled_from([math.inf, 0.02, 1.0]),
    matches=st.lists(st.integers(0, 600), max_size=6),
    copies=st.booleans(),
)
def test_equals_the_reference(
    roles: list[str],
    steps: list[Any],
    request: tuple[int, ...],
    gap_s: float,
    matches: list[int],
    copies: bool,
) -> None:
    pair = Pair(["both", *roles[1:]])
    now_s = replay(pair, steps)
    asked = (*request, gap_s, np.array(matches, np.int32), now_s)
    pair.choose("lowest", *asked, np.array([3.0, 1.0, 2.0, 1.0]))
    pair.choose("least_loaded", *asked)
    pair.choose("local_cache_aware", *asked)
    pair.choose("kv_centric", *asked, copies, 2.0)
    for displaced in (0.0, 0.3):
        answer = pair.choose("inlay", *asked, 1.0, 0.05, 10.0, 3.0, displaced)
        assert len(answer[-1]) in (8, 9)


def test_nobody_is_told_by_name() -> None:
    core = _native.cluster.State(PAGE_TOKENS, 0)
    none = np.zeros(0, np.int32)
    with pytest.raises(ArgumentError, match="nobody has joined"):
        core.least_loaded(10, 10, 0, 0, math.inf, none, 0.0)
    with pytest.raises(ArgumentError, match="numbers: must have"):
        core.bind(np.zeros((3, 1)))
    core.bind(np.zeros((NUM_NUMBERS, 2)))
    with pytest.raises(ArgumentError, match="nobody is in slot 1"):
        core.dispatched("a", 1, 1, 0, 10, 10, 0, 0, 1.0, 1.0, 1.0, 0.0)
    with pytest.raises(ArgumentError, match="nobody is in slot 7"):
        core.leave(7)
    with pytest.raises(ArgumentError, match="there are 2 slots, got 7"):
        core.sending(7, 1.0)
    with pytest.raises(ArgumentError, match="cost: must have 2 elements, got 3"):
        core.lowest(10, 10, 0, 0, math.inf, none, 0.0, np.zeros(3))
    with pytest.raises(ArgumentError, match="there are 2 slots already, got 1"):
        core.bind(np.zeros((NUM_NUMBERS, 1)))


def test_numbers_outlive_those_who_made_them() -> None:
    core = _native.cluster.State(PAGE_TOKENS, 0)
    core.bind(np.zeros((NUM_NUMBERS, 1)))
    core.join(0, _native.cluster.Timing(PRIOR, 2000.0, 2.5, 0.05), 512)
    core.dispatched("a", 0, 0, 0, 10, 10, 0, 0, 1.0, 1.0, 1.0, 0.0)
    core.prefill_done("a", 1.0)
    answer = core.least_loaded(10, 10, 0, 0, math.inf, np.zeros(0, np.int32), 1.0)
    del core
    assert answer[-1].tolist() == [[1e-6], [0.0]]


samples = st.tuples(
    st.integers(0, 600), st.integers(0, 10**6), st.integers(0, 40), st.integers(0, 10**5),
    st.floats(1e-4, 1.0) | st.sampled_from([0.0, math.inf, math.nan]),
)  # fmt: skip


@given(reports=st.lists(st.lists(samples, max_size=20), max_size=12), known=st.integers(0, 50))
def test_timing_learns_what_the_reference_does(reports: list[Any], known: int) -> None:
    both: tuple[Any, Any] = (
        _native.cluster.Timing(PRIOR, 300.0, 2.5, 0.05),
        Timing(PRIOR, 300.0, 2.5, 0.05),
    )
    for one in both:
        if known:
            one.believe(known, 0.1)
        for report in reports:
            one.observe(report)
    mine, theirs = both
    assert mine.num_steps == theirs.num_steps
    scaled = np.array(mine.coefficients) / PRIOR, np.array(theirs.coefficients) / PRIOR
    assert scaled[0] == pytest.approx(scaled[1], rel=1e-6, abs=1e-6 * max(1.0, scaled[1].max()))
    assert mine.relative_std == pytest.approx(theirs.relative_std, rel=1e-6)


def test_reports_teach_the_timing_of_their_kind() -> None:
    pair = Pair(["both"] * 4)
    rows = [(0, 0, 8, 8000, 0.05)] * 20
    for core in pair.both:
        core.report(1, 0, 8, 0, 0, 8000, 200, 100, 0, None, None, rows, 0.0)
    mine, theirs = (numbers.all for numbers in pair.numbers)
    assert np.allclose(mine, theirs, rtol=1e-9)
    assert pair.numbers[0].step_s[1] == pytest.approx(0.05, rel=0.1)


@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 20), seconds), max_size=60
    ),
    stride=st.integers(1, 4),
)
def test_seen_prompts_are_those_of_the_reference(
    prompts: list[tuple[int, int, int, float]], stride: int
) -> None:
    both: tuple[Any, Any] = (
        _native.cluster.SeenPrompts(1, 2, stride, 30),
        SeenPrompts(1, 2, stride, 30),
    )
    for family, length, held, ready_s in prompts:
        chain = random.Random(family).randbytes(16 * 40)[: 16 * length]
        for one in both:
            one.add(chain, held, ready_s)
        mine, theirs = both
        assert mine.displaced == theirs.displaced
        for count in range(45):
            assert mine.ready_s(chain, count) == theirs.ready_s(chain, count)
