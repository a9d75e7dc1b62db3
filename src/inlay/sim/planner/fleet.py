"""Instances that would be bought together, and what a simulation of them comes to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from inlay.cluster.slo import SloClass
from inlay.sim.capacity import tiers, token_bytes
from inlay.sim.figures import figures
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.demand import Demand
from inlay.sim.planner.memory import Memory
from inlay.sim.results import ResultsFile
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.tier_file import StoreTable
from inlay.sim.transform import scale_rate

LINK_LATENCY_S = 1e-3
_GROUPS = {"prefill": "prefill", "decode": "decode", "both": "all"}


@dataclass(frozen=True)
class Mix:
    """What a fleet is made of, in any numbers.

    Attributes:
        groups: one candidate for both phases, or one for prefill and one for decode.
        memory: behind its GPUs.
    """

    groups: tuple[Candidate, ...]
    memory: Memory = Memory()

    @property
    def is_single(self) -> bool:
        """Whether all its GPUs are of one kind."""
        return len({one.hardware for one in self.groups}) == 1


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
        instances = sum(count * one.price_usd for one, count in self._each)
        return instances + self.mix.memory.price_usd(self.hosts)

    @property
    def hosts(self) -> float:
        """Machines with GPUs; a part of one counts as such."""
        return sum(count * one.design.hosts for one, count in self._each)

    @property
    def gpus(self) -> int:
        """In all."""
        return sum(count * one.gpus for one, count in self._each)

    @property
    def cache_tb(self) -> float:
        """10^12 bytes of memory and disks that are bought for blocks."""
        return self.mix.memory.bought_tb(self.hosts)

    @property
    def store(self) -> StoreTable | None:
        """That its instances share."""
        return self.mix.memory.store(dict(self._each))

    @property
    def groups(self) -> dict[str, tuple[Candidate, int]]:
        """Candidates and their counts by the names that files have for them."""
        return {_GROUPS[one.role]: (one, count) for one, count in self._each}

    @property
    def name(self) -> str:
        """For people."""
        parts = [f"{count} x {group} on {one.name}" for group, (one, count) in self.groups.items()]
        return " + ".join([*parts, self.mix.memory.name] if self.mix.memory.name else parts)

    @property
    def _each(self) -> tuple[tuple[Candidate, int], ...]:
        return tuple(zip(self.mix.groups, self.counts, strict=True))

    def more(self, place: int, count: int) -> "Fleet":
        """With so many more of one of its candidates."""
        counts = list(self.counts)
        counts[place] += count
        return Fleet(self.mix, tuple(counts))

    def with_memory(self, memory: Memory) -> "Fleet":
        """With another memory behind its GPUs."""
        return Fleet(replace(self.mix, memory=memory), self.counts)

    def within(self, price_usd: float) -> "Fleet":
        """Without as many of the group with most instances as the price asks for; one of each group
        is left."""
        fleet = self
        while fleet.price_usd > price_usd and max(fleet.counts) > 1:
            fleet = fleet.more(fleet.counts.index(max(fleet.counts)), -1)
        return fleet

    def scenario(self, slo: SloClass) -> Scenario:
        """What a simulation of it takes."""
        memory, store = self.mix.memory, self.store
        one_token = token_bytes(self.mix.groups[0].design)
        kinds = tuple(
            Kind(
                instance=replace(
                    one.instance, **memory.cache(one).tiers(one_token, tiers(one.design))
                ),
                role=one.role,
                count=count,
                name=group,
                gpus=one.gpus,
                assumed=one.design.is_assumed,
                price_usd=one.price_usd,
            )
            for group, (one, count) in self.groups.items()
        )
        return Scenario(
            kinds=kinds,
            slo=slo,
            link_latency_s=LINK_LATENCY_S,
            store=None if store is None else store.tier(one_token),
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A fleet that was simulated.

    Attributes:
        rate: of requests, times the trace's own.
        served: share of the requests that fit, and so were not refused.
        kept: that kept all objectives.
        ttft_kept, tbt_kept: that kept the first, and those of gaps.
        figures: of `sim.figures`.
    """

    fleet: Fleet
    rate: float
    served: float
    kept: float
    ttft_kept: float
    tbt_kept: float
    figures: Mapping[str, object]


def simulate(fleet: Fleet, demand: Demand, rate: float = 1.0) -> Attempt:
    """Replay a trace on a fleet, so many times as fast.

    Cost: that of a simulation, seconds for ten thousand requests; what came of each goes to a file,
    as in `results.ResultsFile`.
    """
    scenario, slo, parts = fleet.scenario(demand.slo), demand.slo, demand.parts()
    if rate != 1.0:
        parts = map(partial(scale_rate, factor=rate), parts)
    results = ResultsFile(Simulation(scenario).replay(parts))
    kept: Counter[str] = Counter()
    for part in results.parts():
        gaps = part.finished & (part.tbt_s <= slo.tbt_s) & (part.longest_gap_s <= slo.itl_s)
        kept["served"] += int(part.finished.sum())
        kept["kept"] += int(part.meets(slo).sum())
        kept["ttft"] += int((part.finished & (part.ttft_s <= slo.ttft_s)).sum())
        kept["tbt"] += int(gaps.sum())
    return Attempt(
        fleet=fleet,
        rate=rate,
        served=kept["served"] / len(demand),
        kept=kept["kept"] / len(demand),
        ttft_kept=kept["ttft"] / len(demand),
        tbt_kept=kept["tbt"] / len(demand),
        figures=figures(results, scenario),
    )


def neighbours(best: Attempt, demand: Demand) -> list[Attempt]:
    """What one instance more, and one less, of each group would come to, at the same rate; and one
    node, or a disk in each host, more and less.

    Cost: a simulation of each, six at most.
    """
    fleet, memory = best.fleet, best.fleet.mix.memory
    near = [
        fleet.more(place, change)
        for place, count in enumerate(fleet.counts)
        for change in (1, -1)
        if count + change >= 1
    ]
    near.append(fleet.with_memory(memory.more(1)))
    if memory.nodes or memory.disks:
        near.append(fleet.with_memory(memory.more(-1)))
    return [simulate(one, demand, best.rate) for one in near]
