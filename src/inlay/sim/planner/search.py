"""The cheapest fleets that keep objectives: bounds first, then simulations, the cheapest first.

Every mix starts with the fewest instances that its bounds let through. The cheapest is simulated;
if it misses, the group that is to blame gets more, and the mix waits for its new price. What one
simulation says of a group, that so few are not enough, is taken to hold for each mix with it: gaps
between tokens come from decoding, and where these are kept, late first tokens come from prefill. So
a mix is simulated only if nothing cheaper keeps the objectives. That is not quite so where groups
hold each other up, and so a plan is tried with fewer before it is one.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inlay.sim.planner.bounds import Bound, bound
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.demand import Demand
from inlay.sim.planner.fleet import Attempt, Fleet, Mix, simulate
from inlay.sim.planner.memory import MEMORIES, Memory

_STEP = 12  # a group of so many grows by one at a time, larger ones by this share
_GIVEN_UP = 4  # times what bounds ask for, after which more instances are not what is missing


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A mix that was not chosen.

    Attributes:
        fleet: the cheapest of it that was not ruled out.
        reason: why it is not among the plans.
    """

    fleet: Fleet
    reason: str


@dataclass(kw_only=True)
class Search:
    """What a search has found.

    Attributes:
        plans: fleets that keep the objectives, the cheapest first, one of each mix.
        losses: other mixes, by the price at which each was left.
        unfit: candidates that no number of is enough, and why; what comes nearest first.
        attempts: all simulations, in order.
    """

    plans: list[Attempt] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unfit: dict[Candidate, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)


class _Counts:
    """How many of each candidate are still thought enough, with each memory behind them."""

    def __init__(self, bounds: dict[Candidate, Bound], mixes: Sequence[Mix]) -> None:
        self._bounds = bounds
        least = {one: found.least for one, found in bounds.items()}
        self._least = {memory: dict(least) for memory in {mix.memory for mix in mixes}}

    def fleet(self, mix: Mix, own: dict[Candidate, int]) -> Fleet:
        least = self._least[mix.memory]
        return Fleet(mix, tuple(max(least[one], own.get(one, 0)) for one in mix.groups))

    def given_up(self, fleet: Fleet) -> Candidate | None:
        """The group that has grown far beyond what its bounds ask for."""
        return next(
            (
                one
                for one, count in zip(fleet.mix.groups, fleet.counts, strict=True)
                if count > _GIVEN_UP * (self._bounds[one].least + 1)
            ),
            None,
        )

    def bound(self, one: Candidate) -> int:
        return self._bounds[one].least

    def enough(self, one: Candidate, count: int, memory: Memory) -> None:
        least = self._least[memory]
        least[one] = min(least[one], count)

    def not_enough(self, one: Candidate, count: int, memory: Memory) -> None:
        for other, least in self._least.items():
            if one.role == "decode" or memory.has_no_less(other):  # gaps have no other reason
                least[one] = max(least[one], grown(count))


def grown(count: int) -> int:
    """The next number of instances to be tried."""
    return count + max(1, count // _STEP)


def search(
    mixes: Sequence[Mix],
    demand: Demand,
    *,
    attain: float,
    budget_usd: float = math.inf,
    most: int = 3,
    told: Callable[[Fleet], None] = lambda fleet: None,
) -> Search:
    """Find the cheapest fleets, and one whose GPUs are all alike to compare with.

    Args:
        mixes: of what fleets may be made; see `mixes_of`.
        attain: share of the requests that are to keep all objectives.
        most: how many plans; one more where none of them has a single kind of hardware.
        told: of each fleet before it is simulated.

    Cost: tens of simulations.
    """
    found = Search()
    mixes, usable = usable_of(mixes, demand, attain, found)
    counts = _Counts(usable, mixes)
    own: dict[Mix, dict[Candidate, int]] = {}
    last: dict[Mix, Attempt] = {}
    queue = [(counts.fleet(mix, {}).price_usd, number) for number, mix in enumerate(mixes)]
    heapq.heapify(queue)
    while queue:
        price, number = heapq.heappop(queue)
        mix = mixes[number]
        mine = own.setdefault(mix, {})
        fleet = counts.fleet(mix, mine)
        if fleet.price_usd > price:
            heapq.heappush(queue, (fleet.price_usd, number))
            continue
        over = counts.given_up(fleet)
        if over is not None:
            why = f"more {over.role} instances do not help{missed(last.get(mix), attain)}"
        elif price > budget_usd:
            why = (
                f"above the budget by {price - budget_usd:,.0f} USD{missed(last.get(mix), attain)}"
            )
        elif not _wanted(mix, found.plans, most):
            why = f"costs more{missed(last.get(mix), attain)}"
        else:
            told(fleet)
            attempt = last[mix] = simulate(fleet, demand)
            found.attempts.append(attempt)
            if attempt.kept >= attain:
                found.plans.append(_trimmed(attempt, counts, demand, attain, found))
                continue
            place, shared = to_blame(attempt, attain)
            if shared:
                counts.not_enough(mix.groups[place], fleet.counts[place], mix.memory)
            else:
                mine[mix.groups[place]] = grown(fleet.counts[place])
            heapq.heappush(queue, (counts.fleet(mix, mine).price_usd, number))
            continue
        found.losses.append(Loss(fleet=fleet, reason=why))
    found.plans.sort(key=lambda plan: plan.fleet.price_usd)
    return found


def _trimmed(
    attempt: Attempt, counts: _Counts, demand: Demand, attain: float, found: Search
) -> Attempt:
    """A plan without what it does not need: another mix may have had late tokens for a reason of
    its own."""
    for place, one in enumerate(attempt.fleet.mix.groups):
        while attempt.fleet.counts[place] > counts.bound(one):
            less = simulate(attempt.fleet.more(place, -1), demand)
            found.attempts.append(less)
            if less.kept < attain:
                break
            attempt = less
            counts.enough(one, attempt.fleet.counts[place], attempt.fleet.mix.memory)
    return attempt


def usable_of(
    mixes: Sequence[Mix], demand: Demand, attain: float, found: Search
) -> tuple[list[Mix], dict[Candidate, Bound]]:
    """Mixes of candidates that some number of may be enough, and their bounds; `found` has why
    others are not."""
    candidates = dict.fromkeys(one for mix in mixes for one in mix.groups)
    bounds = {one: bound(one, demand, attain) for one in candidates}
    unfit = [(one, limit) for one, limit in bounds.items() if limit.reason]
    unfit.sort(key=lambda pair: pair[1].missing)
    found.unfit = {one: limit.reason for one, limit in unfit}
    left = [mix for mix in mixes if not found.unfit.keys() & set(mix.groups)]
    return left, {one: limit for one, limit in bounds.items() if not limit.reason}


def mixes_of(candidates: list[Candidate], memories: Sequence[Memory] = MEMORIES) -> list[Mix]:
    """All that a fleet may be made of."""
    groups: list[tuple[Candidate, ...]] = [(one,) for one in candidates if one.role == "both"]
    decodes = [one for one in candidates if one.role == "decode"]
    groups += [(one, other) for one in candidates if one.role == "prefill" for other in decodes]
    return [Mix(group, memory) for group in groups for memory in memories]


def rival_of(found: Search, demand: Demand) -> Attempt | None:
    """What the cheapest plan with one kind of GPU does for the price of a mixed one.

    None where the cheapest plan is such a one, or there is none. Cost: a simulation.
    """
    singles = [plan.fleet for plan in found.plans if plan.fleet.mix.is_single]
    if not singles or found.plans[0].fleet.mix.is_single:
        return None
    return simulate(singles[0].within(found.plans[0].fleet.price_usd), demand)


def _wanted(mix: Mix, plans: list[Attempt], most: int) -> bool:
    if len(plans) < most:
        return True
    return mix.is_single and not any(plan.fleet.mix.is_single for plan in plans)


def to_blame(attempt: Attempt, attain: float) -> tuple[int, bool]:
    """Which group of a fleet needs more, and whether that holds in each mix."""
    if len(attempt.fleet.counts) == 1:
        return 0, True
    if attempt.tbt_kept < attain:
        return 1, True
    if attempt.ttft_kept < attain:
        return 0, True
    return int(attempt.tbt_kept < attempt.ttft_kept), False


def missed(attempt: Attempt | None, attain: float) -> str:
    """What the last simulation of a mix has kept."""
    if attempt is None:
        return ""
    return (
        f"; {attempt.fleet.price_usd:,.0f} USD of it keep {attempt.kept:.1%} instead of "
        f"{attain:.1%} (TTFT {attempt.ttft_kept:.1%}, TBT {attempt.tbt_kept:.1%})"
    )
