"""store/eviction: what part of their prompts requests find in a pool, by the policy that keeps it.

The limit of a `hit_ratio` is what one gets who knows the future (`pool.farthest_next_use`).
`unbounded` is the ratio of a pool that drops nothing.
"""

from collections.abc import Generator

from benchmarks.case import Run
from benchmarks.store.workloads import by_name
from benchmarks.triples import Samples
from inlay.sim.studies import pool

DRAWN = ("zipf", "scans", "rounds")


def measure(run: Run) -> Generator[Samples, None, None]:
    """Every trace, capacity and policy once; the rest is made of these."""
    ratios: dict[tuple[str, int, str], float] = {}
    for point in run.params("unbounded"):
        trace = point["trace"]
        requests = by_name(trace, run.seeds[0])
        best: dict[int, float] = {}
        yield sample(run, "unbounded", pool.unbounded(requests), point)
        for at in run.params("hit_ratio"):
            if at["trace"] == trace:
                tokens = at["capacity_tokens"]
                capacity = tokens // run.workload["block_tokens"]
                if capacity not in best:
                    best[capacity] = pool.farthest_next_use(requests, capacity)
                ratio = pool.hit_ratio(requests, at["policy"], capacity)
                ratios[trace, tokens, at["policy"]] = ratio
                yield sample(run, "hit_ratio", ratio, at, ("knowing the future", best[capacity]))
    for name, others in (("behind_better", ("lru", "s3fifo")), ("behind_lru", ("lru",))):
        for point in run.params(name):
            where = point["trace"], point["capacity_tokens"]
            ahead = max(ratios[*where, other] for other in others) - ratios[*where, "cost"]
            yield sample(run, name, 100 * ahead, point)


def sample(
    run: Run,
    name: str,
    value: float,
    params: dict[str, object],
    limit: tuple[str, float] | None = None,
) -> Samples:
    """One value; drawn workloads name their seed."""
    seeds = run.seeds if params["trace"] in DRAWN else ()
    return Samples(
        name=name, values=[value], params=params, limit=limit, seeds=seeds, simulated=True
    )
