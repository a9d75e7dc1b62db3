"""Measuring beside a limit and peers on a noisy machine: triples, and what a runner yields.

A triple is one call of each side. The machine's limit is measured before the first triple and
after each one, so every triple lies between two limits; where those two differ by more than
`NOISE`, the machine changed meanwhile and the triple is dropped. Ours and the peers take turns at
being first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NOISE = 0.10

# One call of a side: the value of the comparison's first name, or a value for each name.
Side = Callable[[], float | Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What the machine allows: measured beside every triple, or a constant such as 1.0."""

    name: str
    measure: Side | float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ours beside a limit and peers; the framework calls the sides and repeats them.

    Attributes:
        name: the declared measurement, or several that one call gives together.
        params: one declared parameter point.
        peers: label with version -> side. Leave out what is not installed.
        slow_peers: the same, for peers that a quick run has no time for.
        seeds, simulated: recorded as they are.
    """

    name: str | tuple[str, ...]
    ours: Side
    params: Mapping[str, object] = field(default_factory=dict)
    limit: Limit | None = None
    peers: Mapping[str, Side] = field(default_factory=dict)
    slow_peers: Mapping[str, Side] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    simulated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The measurements as a tuple."""
        return (self.name,) if isinstance(self.name, str) else self.name


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Values that the runner collected itself, for what cannot be called again and again.

    Attributes:
        values: ours, one per repeat.
        limit: name and values, one per repeat or a constant.
        peers: label with version -> values, one per repeat.
    """

    name: str
    values: Sequence[float]
    params: Mapping[str, object] = field(default_factory=dict)
    limit: tuple[str, Sequence[float] | float] | None = None
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    simulated: bool = False
    dropped: int = 0


def measure_triples(comparison: Comparison, repeats: int, quick: bool = False) -> list[Samples]:
    """Take triples until `repeats` are kept, or twice as many were tried.

    Returns:
        One Samples per name of the comparison; when half the triples were dropped before enough
        were kept, its values are empty: the machine was too noisy for a result.
    """
    names = comparison.names
    sides = {"": comparison.ours, **comparison.peers, **({} if quick else comparison.slow_peers)}
    order = list(sides)
    limit = comparison.limit.measure if comparison.limit else 0.0
    before = _call(limit, names)
    kept: list[dict[str, dict[str, float]]] = []
    limits: list[dict[str, float]] = []
    tried = 0
    while len(kept) < repeats and tried < 2 * repeats:
        triple = {label: _call(sides[label], names) for label in order}
        after = _call(limit, names)
        tried += 1
        order.append(order.pop(0))
        if _steady(before[names[0]], after[names[0]]):
            kept.append(triple)
            limits.append({name: (before[name] + after[name]) / 2 for name in before})
        before = after
    dropped = tried - len(kept)
    if len(kept) < repeats:
        kept, limits = [], []
    return [_samples(comparison, name, kept, limits, dropped, order) for name in names]


def _samples(
    comparison: Comparison,
    name: str,
    kept: list[dict[str, dict[str, float]]],
    limits: list[dict[str, float]],
    dropped: int,
    labels: list[str],
) -> Samples:
    def values(label: str) -> list[float]:
        return [triple[label][name] for triple in kept if name in triple[label]]

    limit = None
    if comparison.limit and limits and all(name in row for row in limits):
        limit = (comparison.limit.name, [row[name] for row in limits])
    return Samples(
        name=name,
        params=comparison.params,
        values=values(""),
        limit=limit,
        peers={label: found for label in labels if label and (found := values(label))},
        seeds=comparison.seeds,
        simulated=comparison.simulated,
        dropped=dropped,
    )


def _call(side: Side | float, names: tuple[str, ...]) -> dict[str, float]:
    result = side() if callable(side) else side
    found = dict(result) if isinstance(result, Mapping) else {names[0]: float(result)}
    if not found.keys() <= set(names) or names[0] not in found:
        raise ValueError(f"a side gave {sorted(found)}, declared are {list(names)}")
    return found


def _steady(before: float, after: float) -> bool:
    return abs(after - before) <= NOISE * max(abs(before), abs(after))
