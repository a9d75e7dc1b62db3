"""Instances that would be bought together, and what a simulation of them comes to."""

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.cluster.slo import SloClass
from inlay.sim.figures import figures
from inlay.sim.planner.candidates import Candidate
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace
from inlay.sim.transform import scale_rate

Mix = tuple[Candidate, ...]
"""One candidate for both phases, or one for prefill and one for decode."""

LINK_LATENCY_S = 1e-3
_GROUPS = {"prefill": "prefill", "decode": "decode", "both": "all"}


@dataclass(frozen=True)
class Fleet:
    """A mix, and how many of each.

    Attributes:
        counts: at least 1.
    """

    mix: Mix
    counts: tuple[int, ...]

    @property
    def price_usd(self) -> float:
        """Of all of it."""
        return sum(count * one.price_usd for one, count in zip(self.mix, self.counts, strict=True))

    @property
    def gpus(self) -> int:
        """In all."""
        return sum(count * one.gpus for one, count in zip(self.mix, self.counts, strict=True))

    @property
    def groups(self) -> dict[str, tuple[Candidate, int]]:
        """Candidates and their counts by the names that files have for them."""
        return {
            _GROUPS[one.role]: (one, count)
            for one, count in zip(self.mix, self.counts, strict=True)
        }

    @property
    def name(self) -> str:
        """For people."""
        return " + ".join(
            f"{count} x {group} on {one.name}" for group, (one, count) in self.groups.items()
        )

    def more(self, place: int, count: int) -> "Fleet":
        """With so many more of one of its candidates."""
        counts = list(self.counts)
        counts[place] += count
        return Fleet(self.mix, tuple(counts))

    def within(self, price_usd: float) -> "Fleet":
        """Without as many of the group with most instances as the price asks for; one of each group
        is left."""
        fleet = self
        while fleet.price_usd > price_usd and max(fleet.counts) > 1:
            fleet = fleet.more(fleet.counts.index(max(fleet.counts)), -1)
        return fleet

    def scenario(self, slo: SloClass) -> Scenario:
        """What a simulation of it takes."""
        kinds = tuple(
            Kind(
                instance=one.instance,
                role=one.role,
                count=count,
                name=group,
                gpus=one.gpus,
                assumed=one.design.is_assumed,
                price_usd=one.price_usd,
            )
            for group, (one, count) in self.groups.items()
        )
        return Scenario(kinds=kinds, slo=slo, link_latency_s=LINK_LATENCY_S)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A fleet that was simulated.

    Attributes:
        rate: of requests, times the trace's own.
        kept: share of the requests that kept all objectives.
        ttft_kept, tbt_kept: that kept the first, and those of gaps.
        figures: of `sim.figures`.
    """

    fleet: Fleet
    rate: float
    kept: float
    ttft_kept: float
    tbt_kept: float
    figures: Mapping[str, object]


def simulate(fleet: Fleet, trace: Trace, slo: SloClass, rate: float = 1.0) -> Attempt:
    """Replay a trace on a fleet, so many times as fast.

    Cost: that of a simulation, seconds for ten thousand requests.
    """
    scenario = fleet.scenario(slo)
    results = Simulation(scenario).run(trace if rate == 1.0 else scale_rate(trace, rate))
    gaps = results.finished & (results.tbt_s <= slo.tbt_s) & (results.longest_gap_s <= slo.itl_s)
    return Attempt(
        fleet=fleet,
        rate=rate,
        kept=float(results.meets(slo).mean()),
        ttft_kept=float((results.finished & (results.ttft_s <= slo.ttft_s)).mean()),
        tbt_kept=float(gaps.mean()),
        figures=figures(results, scenario),
    )


def neighbours(best: Attempt, trace: Trace, slo: SloClass) -> list[Attempt]:
    """What one instance more, and one less, of each group would come to, at the same rate.

    Cost: a simulation of each, four at most.
    """
    fleet = best.fleet
    return [
        simulate(fleet.more(place, change), trace, slo, best.rate)
        for place, count in enumerate(fleet.counts)
        for change in (1, -1)
        if count + change >= 1
    ]
