"""The best fleets that a budget buys: the most requests in time, or the earliest first tokens.

A mix spends the whole budget: with each count of one group the other has what is left. Bounds say
what no simulation of a fleet can pass, so mixes come in the order of theirs, and one that cannot
pass the plans that are there is not simulated. Of a mix the split between groups that bounds like
best is the first; the next one gives an instance's worth to the group that is to blame.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from inlay.sim.planner.bounds import Bound, alone_R
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.demand import Demand
from inlay.sim.planner.fleet import Attempt, Fleet, Mix, simulate
from inlay.sim.planner.search import Loss, Search, missed, to_blame, usable_of

Aim = Literal["throughput", "ttft"]
AIMS: dict[str, Aim] = {"throughput": "throughput", "ttft": "ttft"}

_FINER = 1.03  # rates that differ by less count as one
_STRIDE = 1.25  # towards a bound, which may be far: what is overloaded takes long to simulate
_MOST_SPLITS = 5  # of a mix
_SLOWEST, _FASTEST = 1 / 64, 64.0  # times the trace's own rate, between which rates are looked for


class Goal(Protocol):
    """What makes a fleet better than another; all scores are above 0, and more is better."""

    @property
    def attain(self) -> float:
        """The share of requests that are to keep all objectives."""

    def limit(self, fleet: Fleet) -> float:
        """What its score cannot pass."""

    def score(self, attempt: Attempt) -> float:
        """Of a simulation; 0 where the objectives are not kept."""

    def attempts(self, fleet: Fleet, beat: float) -> Iterator[Attempt]:
        """Simulations until its score is known, or known not to pass `beat`."""

    def said(self, score: float) -> str:
        """A score for people."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The rate of requests of which enough are in time, times the trace's own.

    It is looked for as if more requests were never easier, which is not quite so in short traces.

    Attributes:
        bounds: at the trace's own rate.
        attain: share of the requests that are to keep all objectives.
    """

    bounds: dict[Candidate, Bound]
    demand: Demand
    attain: float

    def limit(self, fleet: Fleet) -> float:
        """All instances busy all the time."""
        groups = zip(fleet.mix.groups, fleet.counts, strict=True)
        return min(self._limit(one, count) for one, count in groups)

    def score(self, attempt: Attempt) -> float:
        """Its rate."""
        return attempt.rate if attempt.kept >= self.attain else 0.0

    def attempts(self, fleet: Fleet, beat: float) -> Iterator[Attempt]:
        """Above `beat`, or slower until one keeps the objectives; then halves of what is left."""
        most = self.limit(fleet)
        rate = beat * _FINER if beat else min(1.0, most)
        low, high = 0.0, most
        while high > low * _FINER and rate > _SLOWEST:
            attempt = simulate(fleet, self.demand, rate)
            yield attempt
            if attempt.kept >= self.attain:
                low = rate
            elif beat and not low:
                return
            else:
                high = rate
            rate = min(math.sqrt(low * high), low * _STRIDE) if low else high / 2

    def said(self, score: float) -> str:
        """For people."""
        return f"{score:.3g} times the trace's rate"

    def _limit(self, one: Candidate, count: int) -> float:
        demand = self.demand
        window_s = demand.prefill_s if one.role == "prefill" else demand.decode_s
        last_s = demand.last_s
        after_s = window_s - last_s  # the last request, which no rate changes
        span_s = self.bounds[one].instances * window_s / count - after_s
        return last_s / span_s if span_s * _FASTEST > last_s else _FASTEST


@dataclass(frozen=True, kw_only=True)
class FirstToken:
    """First tokens: 1 / the seconds within which nine of ten requests have theirs."""

    demand: Demand
    attain: float

    def limit(self, fleet: Fleet) -> float:
        """Each prompt alone on an instance."""
        times_R = alone_R(fleet.mix.groups[0], self.demand)
        return 1 / float(np.percentile(times_R, 90, method="lower"))

    def score(self, attempt: Attempt) -> float:
        """Where enough requests keep their objectives."""
        spread = attempt.figures["ttft_s"]
        if attempt.kept < self.attain or not isinstance(spread, dict):
            return 0.0
        return 1 / float(spread["p90"])

    def attempts(self, fleet: Fleet, beat: float) -> Iterator[Attempt]:
        """One, at the trace's own rate."""
        yield simulate(fleet, self.demand)

    def said(self, score: float) -> str:
        """For people."""
        return f"a TTFT p90 of {1 / score:.3g} s"


def best_for(
    aim: Aim,
    mixes: Sequence[Mix],
    demand: Demand,
    *,
    attain: float,
    budget_usd: float,
    most: int = 3,
    told: Callable[[Fleet], None] = lambda fleet: None,
) -> Search:
    """Find the best fleets within a budget, and one whose GPUs are all alike to compare with.

    Args:
        aim: what is to be best.
        mixes: of what fleets may be made; see `search.mixes_of`.
        attain: share of the requests that are to keep all objectives.
        most: how many plans; one more where none of them has a single kind of hardware.
        told: of each fleet before it is simulated.

    Returns:
        With `plans` in the order of their scores.

    Cost: tens to hundreds of simulations.
    """
    found = Search()
    mixes, usable = usable_of(mixes, demand, attain, found)
    goal: Goal = (
        Throughput(bounds=usable, demand=demand, attain=attain)
        if aim == "throughput"
        else FirstToken(demand=demand, attain=attain)
    )
    splits: list[list[Fleet]] = []
    for mix in mixes:
        if fleets := list(splits_of(mix, budget_usd)):
            splits.append(fleets)
        else:
            least = Fleet(mix, (1,) * len(mix.groups))
            over = least.price_usd - budget_usd
            found.losses.append(
                Loss(fleet=least, reason=f"one of each is above the budget by {over:,.0f} USD")
            )
    splits.sort(key=lambda fleets: -max(goal.limit(fleet) for fleet in fleets))
    for fleets in splits:
        first = max(fleets, key=lambda fleet: (goal.limit(fleet), _balance(fleet, usable)))
        beat = _to_beat(first.mix, goal, found.plans, most)
        if goal.limit(first) <= beat * _FINER:
            reason = f"cannot pass {goal.said(goal.limit(first))}"
        else:
            best, last = _climb(fleets, first, goal, beat, found, told)
            if best is not None:
                found.plans.append(best)
                found.plans.sort(key=lambda plan: -goal.score(plan))
                continue
            reason = f"does not pass {goal.said(beat)}" if beat else "misses the objectives"
            reason += missed(last, attain)
        found.losses.append(Loss(fleet=first, reason=reason))
    _drop(found, goal, most)
    return found


def splits_of(mix: Mix, budget_usd: float) -> Iterator[Fleet]:
    """All fleets of a mix that leave less of the budget than its last group's instance costs."""
    counts = [1] * len(mix.groups)
    while Fleet(mix, tuple(counts)).price_usd <= budget_usd:
        last = counts[-1]
        while Fleet(mix, (*counts[:-1], last + 1)).price_usd <= budget_usd:
            last += 1
        yield Fleet(mix, (*counts[:-1], last))
        if len(counts) == 1:
            return
        counts[0] += 1


def _climb(
    fleets: list[Fleet],
    first: Fleet,
    goal: Goal,
    beat: float,
    found: Search,
    told: Callable[[Fleet], None],
) -> tuple[Attempt | None, Attempt | None]:
    """The best split of a mix that passes `beat`, if there is one, and the last simulation."""
    place = fleets.index(first)
    seen: set[int] = set()
    best: Attempt | None = None
    last: Attempt | None = None
    while 0 <= place < len(fleets) and place not in seen and len(seen) < _MOST_SPLITS:
        seen.add(place)
        fleet = fleets[place]
        if goal.limit(fleet) <= beat:
            break
        told(fleet)
        better, missing = False, None
        for last in goal.attempts(fleet, beat):
            found.attempts.append(last)
            if goal.score(last) > beat:
                best, beat, better = last, goal.score(last), True
            elif last.kept < goal.attain:
                missing = last
        if best is not None and not better:
            break
        assert last is not None
        place += 1 if to_blame(missing or last, goal.attain)[0] == 0 else -1
    return best, last


def _balance(fleet: Fleet, bounds: dict[Candidate, Bound]) -> float:
    """How often the group that is the tighter one could do its work."""
    groups = zip(fleet.mix.groups, fleet.counts, strict=True)
    return min(count / bounds[one].instances for one, count in groups)


def _to_beat(mix: Mix, goal: Goal, plans: list[Attempt], most: int) -> float:
    """The score that a mix has to pass to be among the plans."""
    if mix.is_single and not any(plan.fleet.mix.is_single for plan in plans):
        return 0.0
    return goal.score(plans[most - 1]) if len(plans) >= most else 0.0


def _drop(found: Search, goal: Goal, most: int) -> None:
    """Plans that others have passed are losses, but for the best with a single kind of hardware."""
    single = next((plan for plan in found.plans if plan.fleet.mix.is_single), None)
    for plan in found.plans[most:]:
        if plan is not single:
            reason = f"comes to {goal.said(goal.score(plan))}"
            found.losses.append(Loss(fleet=plan.fleet, reason=reason))
    found.plans = [plan for n, plan in enumerate(found.plans) if n < most or plan is single]
