"""Jobs for the model cluster, drawn from seeds."""

import itertools

import numpy as np

from tests.unit.cluster.model_cluster import Job

BLOCK = 512


def multi_turn(
    sessions: int, *, rate: float, seed: int = 0, turns: int = 5, shared_blocks: int = 1
) -> list[Job]:
    """Conversations: each turn has all before it; each begins with the same system prompt."""
    rng = np.random.default_rng(seed)
    jobs = []
    start_s = 0.0
    for session in range(sessions):
        start_s += rng.exponential(turns / rate)
        time_s, parts = start_s, [("system", i) for i in range(shared_blocks)]
        for _ in range(rng.geometric(1 / turns)):
            new = int(rng.integers(2, 12))
            parts = parts + [("own", session, len(parts) + i) for i in range(new)]
            outputs = int(rng.integers(10, 110))
            jobs.append(
                Job(
                    arrival_s=time_s,
                    num_tokens=len(parts) * BLOCK,
                    blocks=tuple(_names(parts)),
                    outputs=outputs,
                )
            )
            time_s += rng.exponential(15.0) + 5.0
    return sorted(jobs, key=lambda job: job.arrival_s)


def hot_prefix(count: int, *, rate: float, seed: int = 0, prefix: int = 40) -> list[Job]:
    """All begin with one of a few long documents, most of them with the first."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate, count))
    jobs = []
    for number, time_s in enumerate(times_s):
        document = min(int(rng.zipf(2.0)) - 1, 5)
        parts: list[object] = [("document", document, i) for i in range(prefix)]
        parts += [("own", number, i) for i in range(int(rng.integers(1, 4)))]
        jobs.append(
            Job(
                arrival_s=float(time_s),
                num_tokens=len(parts) * BLOCK,
                blocks=tuple(_names(parts)),
                outputs=int(rng.integers(10, 110)),
            )
        )
    return jobs


def no_sharing(count: int, *, rate: float, seed: int = 0, shared_blocks: int = 0) -> list[Job]:
    """Nothing in common, or the first blocks only."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate, count))
    jobs = []
    for number, time_s in enumerate(times_s):
        own = int(rng.integers(2, 30))
        parts: list[object] = [("system", i) for i in range(shared_blocks)]
        parts += [("own", number, i) for i in range(own)]
        jobs.append(
            Job(
                arrival_s=float(time_s),
                num_tokens=len(parts) * BLOCK,
                blocks=tuple(_names(parts)),
                outputs=int(rng.integers(10, 110)),
            )
        )
    return jobs


_IDS = itertools.count(1)
_NAMES: dict[object, int] = {}


def _names(parts: list[object]) -> list[int]:
    """An id for each block and all before it. The parts here name their predecessors already."""
    return [_NAMES.setdefault(part, next(_IDS)) for part in parts]
