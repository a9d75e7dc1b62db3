"""The choice of paths on simulated links, beside round robin and beside binding at submission.

A link sends one slice after the other at its rate of the moment; a slice completes a fixed time
after its last byte. What the policy learns, it learns from completions alone.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from inlay.transfer.reference.spray import MIN_SLICE_BYTES, PathEstimate, PathView, Ticket, choose

MBIT = 1e6 / 8
SPEEDS = tuple(speed * MBIT for speed in (1600, 800, 533, 400))
TEN_GBIT = 1e10 / 8
SLICE = MIN_SLICE_BYTES


class Link:
    """A queue before a wire whose rate may change: `rates` is (from second, bytes/s), ascending."""

    def __init__(
        self, rates: Sequence[tuple[float, float]], delay_s: float, overhead_s: float
    ) -> None:
        self.rates = rates
        self.delay_s = delay_s
        self.overhead_s = overhead_s
        self.free_s = 0.0

    def send(self, size_bytes: int, now_s: float) -> float:
        """The time at which a slice that is queued now completes."""
        time_s, left = max(now_s, self.free_s) + self.overhead_s, float(size_bytes)
        for i, (_, rate) in enumerate(self.rates):
            until_s = self.rates[i + 1][0] if i + 1 < len(self.rates) else math.inf
            if time_s >= until_s:
                continue
            moved = min(left, rate * (until_s - time_s))
            time_s, left = time_s + moved / rate, left - moved
            if left <= 0.0:
                break
        self.free_s = time_s
        return time_s + self.delay_s


def links(speeds: Sequence[float] = SPEEDS) -> list[Link]:
    return [Link([(0.0, speed)], 200e-6, 10e-6) for speed in speeds]


class Job(NamedTuple):
    arrival_s: float
    size_bytes: int


Policy = Callable[[Sequence[Link], Sequence[Job]], list[float]]


def bound(pick: Callable[[Sequence[Link], int, int], int]) -> Policy:
    """Each slice of 64 KiB is bound to a link when its job arrives."""

    def run(paths: Sequence[Link], jobs: Sequence[Job]) -> list[float]:
        done_s, index = [], 0
        for job in jobs:
            ends = []
            for start in range(0, job.size_bytes, SLICE):
                size = min(SLICE, job.size_bytes - start)
                now_ns = round(job.arrival_s * 1e9)
                ends.append(paths[pick(paths, index, now_ns)].send(size, job.arrival_s))
                index += 1
            done_s.append(max(ends))
        return done_s

    return run


round_robin = bound(lambda paths, index, _: index % len(paths))


def static(speeds: Sequence[float]) -> Policy:
    """Bound at submission to the queue that is shortest by the speeds that are believed."""

    def run(paths: Sequence[Link], jobs: Sequence[Job]) -> list[float]:
        free_s = [0.0] * len(paths)

        def pick(_: Sequence[Link], __: int, now_ns: int) -> int:
            ends = [
                max(free, now_ns * 1e-9) + SLICE / speed
                for free, speed in zip(free_s, speeds, strict=True)
            ]
            best = ends.index(min(ends))
            free_s[best] = ends[best]
            return best

        return bound(pick)(paths, jobs)

    return run


def late(speeds: Sequence[float], base_s: float = 100e-6) -> Policy:
    """The policy of the engine, with the speeds that it is told."""

    def run(paths: Sequence[Link], jobs: Sequence[Job]) -> list[float]:
        views = [PathView(PathEstimate(speed, base_s, 0)) for speed in speeds]
        order = itertools.count()
        events: list[tuple[float, int, Callable[[float], None]]] = []
        left = [job.size_bytes for job in jobs]
        unanswered = [job.size_bytes for job in jobs]
        done_s = [math.nan] * len(jobs)
        queue: deque[int] = deque()

        def at(time_s: float, call: Callable[[float], None]) -> None:
            heapq.heappush(events, (time_s, next(order), call))

        def dispatch(now_s: float) -> None:
            now_ns = round(now_s * 1e9)
            while queue:
                job = queue[0]
                path, size = choose(views, left[job], now_ns)
                if path < 0:
                    return
                ticket = views[path].estimate.posted(size, now_ns)
                left[job] -= size
                if left[job] == 0:
                    queue.popleft()

                def answered(
                    then_s: float, job: int = job, path: int = path, size: int = size,
                    ticket: Ticket = ticket,
                ) -> None:  # fmt: skip
                    views[path].estimate.completed(size, ticket, round(then_s * 1e9))
                    unanswered[job] -= size
                    if unanswered[job] == 0:
                        done_s[job] = then_s
                    dispatch(then_s)

                at(paths[path].send(size, now_s), answered)

        def arrive(job: int) -> Callable[[float], None]:
            def arrived(now_s: float) -> None:
                queue.append(job)
                dispatch(now_s)

            return arrived

        for i, job in enumerate(jobs):
            at(job.arrival_s, arrive(i))
        while events:
            time_s, _, call = heapq.heappop(events)
            call(time_s)
        return done_s

    return run


def moved_by(paths: Sequence[Link], end_s: float) -> float:
    """What the wires of all links could have carried until then, in bytes."""
    whole = 0.0
    for link in paths:
        ends_s = [start_s for start_s, _ in link.rates[1:]] + [math.inf]
        for (start_s, rate), until_s in zip(link.rates, ends_s, strict=True):
            whole += rate * max(0.0, min(until_s, end_s) - start_s)
    return whole


def share_of_sum(policy: Policy, paths: Sequence[Link], size_bytes: int) -> float:
    (end_s,) = policy(paths, [Job(0.0, size_bytes)])
    return size_bytes / moved_by(paths, end_s)


def dropping() -> list[Link]:
    """The largest link falls to a quarter for 0.3 s."""
    found = links()
    found[0].rates = [(0.0, SPEEDS[0]), (0.1, SPEEDS[0] / 4), (0.4, SPEEDS[0])]
    return found


def poisson(load: float, count: int, seed: int) -> list[Job]:
    """Slices of 64 KiB at `load` of the sum of the links."""
    rng = random.Random(seed)
    gap_s = SLICE / (load * sum(SPEEDS))
    arrivals = itertools.accumulate(rng.expovariate(1.0 / gap_s) for _ in range(count))
    return [Job(arrival_s, SLICE) for arrival_s in arrivals]


def p99_s(policy: Policy, paths: Sequence[Link], jobs: Sequence[Job]) -> float:
    ends = policy(paths, jobs)
    latencies = sorted(end - job.arrival_s for end, job in zip(ends, jobs, strict=True))
    return latencies[len(latencies) * 99 // 100]


BELIEFS = pytest.mark.parametrize(
    "speeds", [SPEEDS, (TEN_GBIT,) * 4], ids=["known speeds", "unknown speeds"]
)


@BELIEFS
@pytest.mark.parametrize("size_mib", [64, 256])
def test_unequal_links_are_used_whole(speeds: Sequence[float], size_mib: int) -> None:
    share = share_of_sum(late(speeds), links(), size_mib << 20)
    assert share >= 0.92
    assert share >= 1.9 * share_of_sum(round_robin, links(), size_mib << 20)
    assert share >= 0.99 * share_of_sum(static(speeds), links(), size_mib << 20)


def test_binding_at_submission_needs_to_know_the_speeds() -> None:
    """What the policy is measured against is no strawman: it is good where speeds are known."""
    assert share_of_sum(static(SPEEDS), links(), 64 << 20) >= 0.92
    assert share_of_sum(static((TEN_GBIT,) * 4), links(), 64 << 20) < 0.6


@BELIEFS
def test_a_sudden_drop_costs_little(speeds: Sequence[float]) -> None:
    share = share_of_sum(late(speeds), dropping(), 256 << 20)
    assert share >= 0.92
    assert share >= 1.1 * share_of_sum(static(SPEEDS), dropping(), 256 << 20)


@BELIEFS
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_late_slices_are_few(speeds: Sequence[float], seed: int) -> None:
    jobs = poisson(0.45, 4000, seed)
    ours = p99_s(late(speeds), links(), jobs)
    assert 2.0 * ours <= p99_s(round_robin, links(), jobs)
    assert ours <= 1.15 * p99_s(static(SPEEDS), links(), jobs)


@pytest.mark.parametrize("delay_ms", [1, 5, 20])
@BELIEFS
def test_far_peers_are_not_starved(speeds: Sequence[float], delay_ms: int) -> None:
    paths = [Link([(0.0, speed)], delay_ms * 1e-3, 10e-6) for speed in SPEEDS]
    assert share_of_sum(late(speeds, base_s=delay_ms * 1e-3), paths, 512 << 20) >= 0.9


def test_a_link_that_was_bad_is_used_again_when_it_is_good() -> None:
    """Nobody says so: probes find it out."""
    paths = links()
    paths[0].rates = [(0.0, SPEEDS[0] / 40), (0.4, SPEEDS[0])]
    assert share_of_sum(late(SPEEDS), paths, 512 << 20) >= 0.9


@pytest.mark.parametrize("stalled", range(4))
def test_a_stall_is_not_taken_for_a_slow_link(stalled: int) -> None:
    paths = links()
    rate = SPEEDS[stalled]
    paths[stalled].rates = [(0.0, rate), (0.1, 1.0), (0.25, rate)]
    assert share_of_sum(late(SPEEDS), paths, 256 << 20) >= 0.95
    paths = links()
    paths[stalled].rates = [(0.0, rate), (0.1, 1.0), (0.25, rate)]
    later = [job for job in poisson(0.45, 4000, 1) if not 0.1 <= job.arrival_s < 0.3]
    assert p99_s(late(SPEEDS), paths, later) <= 1.5 * p99_s(late(SPEEDS), links(), later)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_links_that_crawl_now_and_then_come_back(seed: int) -> None:
    """Each falls to a twentieth once a second, for 50 to 300 ms."""
    rng = random.Random(seed)
    paths = links()
    for link, rate in zip(paths, SPEEDS, strict=True):
        time_s = 0.0
        while time_s < 20.0:
            start_s = time_s + rng.expovariate(1.0)
            time_s = start_s + rng.uniform(0.05, 0.3)
            link.rates = [*link.rates, (start_s, rate / 20), (time_s, rate)]
    jobs = [Job(0.25 * i, 64 << 20) for i in range(40)]
    ends = late(SPEEDS)(paths, jobs)
    assert sorted(end - job.arrival_s for end, job in zip(ends, jobs, strict=True))[20] <= 0.3
