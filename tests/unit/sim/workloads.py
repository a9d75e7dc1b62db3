"""Traces for policies, drawn from seeds, and instances like a small model on one GPU."""

import numpy as np

from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.step_time import StepTime
from inlay.sim.trace import BLOCK_TOKENS, Trace
from inlay.sim.world import InstanceConfig
from tests.unit.cluster.clusters import SECONDS

Part = tuple[object, ...]


def multi_turn(sessions, *, rate, seed=0, turns=5, shared_blocks=1):
    """Conversations: each turn has all before it; each begins with the same system prompt."""
    rng = np.random.default_rng(seed)
    requests = []
    start_s = 0.0
    for session in range(sessions):
        start_s += rng.exponential(turns / rate)
        time_s, parts = start_s, [("system", i) for i in range(shared_blocks)]
        for _ in range(rng.geometric(1 / turns)):
            new = int(rng.integers(2, 12))
            parts = parts + [("own", session, len(parts) + i) for i in range(new)]
            requests.append((time_s, parts, int(rng.integers(10, 110))))
            time_s += rng.exponential(15.0) + 5.0
    return trace_of(requests)


def hot_prefix(count, *, rate, seed=0, prefix=40):
    """All begin with one of a few long documents, most of them with the first."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate, count))
    requests = []
    for number, time_s in enumerate(times_s):
        document = min(int(rng.zipf(2.0)) - 1, 5)
        parts = [("document", document, i) for i in range(prefix)]
        parts += [("own", number, i) for i in range(int(rng.integers(1, 4)))]
        requests.append((time_s, parts, int(rng.integers(10, 110))))
    return trace_of(requests)


def no_sharing(count, *, rate, seed=0, shared_blocks=0, tenant="default", outputs=1):
    """Nothing in common, or the first blocks only; answers so many times as long."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate, count))
    requests = []
    for number, time_s in enumerate(times_s):
        own = int(rng.integers(2, 30))
        parts = [("system", i) for i in range(shared_blocks)]
        parts += [("own", number, i) for i in range(own)]
        requests.append((time_s, parts, outputs * int(rng.integers(10, 110))))
    return trace_of(requests, tenant)


def trace_of(requests, tenant="default"):
    """Of times, parts of prompts, which name their predecessors, and tokens of answers."""
    requests = sorted(requests, key=lambda request: request[0])
    names: dict[Part, int] = {}
    chains = [[names.setdefault(part, len(names)) for part in parts] for _, parts, _ in requests]
    return Trace(
        arrival_s=[time_s for time_s, *_ in requests],
        input_tokens=[len(chain) * BLOCK_TOKENS for chain in chains],
        output_tokens=[outputs for *_, outputs in requests],
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=[block for chain in chains for block in chain],
        groups=(tenant,),
    )


def simulated(trace, policy, roles, *, pages, believed=None, **scenario):
    """A simulation of instances with these roles that has run a trace, and its results.

    Steps vary by 5 %. Blocks are of 16 MB, and go from one to another at 10 GB/s.
    """
    instance = InstanceConfig(
        step_time=StepTime.fitted(SECONDS),
        num_pages=pages,
        max_batch_tokens=1024,
        noise=0.05,
        token_bytes=(1 << 24) / BLOCK_TOKENS,
        layers=32,
        out_bytes_per_s=1e10,
        in_bytes_per_s=1e10,
    )
    kinds = tuple(Kind(instance=instance, role=role, believed=believed) for role in roles)
    simulation = Simulation(Scenario(kinds=kinds, policy=policy, learn=True, **scenario))
    return simulation.run(trace)
