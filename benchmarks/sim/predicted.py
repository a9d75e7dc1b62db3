"""The runs of a real deployment, simulated: the same requests at the same times.

What instances of one machine share are its cores, which a simulation does not know: whoever
computes while another one does takes longer, by what was measured of that, and by what is in front
of them takes of the cores. How often that is, a simulation says: it is run again with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.workloads import PAGE_TOKENS, Arrival
from benchmarks.sim.measured import Floats, Front, Steps, mean, slower
from inlay.cluster.timing import NUM_FEATURES
from inlay.core.instance_messages import Role
from inlay.sim.measured_time import Fit
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace
from inlay.sim.world import InstanceConfig

_REPORT_S = 0.02  # as instances report
_LINK_BYTES_PER_S = 1e10
_ROUNDS = 3  # until shares of time do not change any more


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is real, and simulated.

    Attributes:
        roles: of its one or two instances.
        cores: that these and what is in front of them share.
    """

    roles: tuple[Role, ...]
    policy: str
    cores: int
    seed: int = 0


def figures(
    deployment: Deployment, steps: Steps, front: Front, arrivals: Sequence[Arrival]
) -> dict[str, float]:
    """What comes of requests, as `real.figures` has it; and `busy_s` of all instances."""
    span_s = arrivals[-1].time_s - arrivals[0].time_s
    others = front.core_s * len(arrivals) / span_s
    beside_I = np.zeros(len(deployment.roles))
    for _ in range(_ROUNDS if len(beside_I) > 1 else 1):
        fits = _shared(deployment, steps, others, beside_I)
        simulation = _simulation(deployment, steps, fits)
        simulation.world.keep_steps()
        results = simulation.run(trace_of(arrivals))
        beside_I = together(simulation.world.steps(), len(beside_I))
    divided_R = results.prefill != results.decode
    ttft_s = results.ttft_s + front.delays_s(results.input_tokens.astype(np.float64), divided_R)
    return {
        "mean_ttft_s": float(ttft_s.mean()),
        "p90_ttft_s": float(np.percentile(ttft_s, 90)),
        "throughput": len(ttft_s) / results.duration_s,
        "hit_ratio": results.hit_ratio,
        "busy_s": float(results.busy_s.sum()),
    }


def apart(deployment: Deployment, steps: Steps, arrivals: Sequence[Arrival]) -> Results:
    """One request long after the other, with nothing in front."""
    alone = [replace(one, time_s=60.0 * number) for number, one in enumerate(arrivals)]
    fits = [steps.alone] * len(deployment.roles)
    return _simulation(deployment, steps, fits).run(trace_of(alone))


def together(chunks_C: NDArray[np.void], count: int) -> Floats:
    """Of the time in which each of two instances computes, the share in which the other one does.

    Args:
        chunks_C: of all steps, as `sim.world.CHUNK`.
        count: of instances; one alone is never beside another.
    """
    spans = [
        np.unique(chunks_C[chunks_C["slot"] == slot][["start_s", "end_s"]]) for slot in range(count)
    ]
    busy_I = np.array([(span["end_s"] - span["start_s"]).sum() for span in spans])
    if count == 1:
        return np.zeros(1)
    one, other = spans
    both_s = sum(
        np.clip(
            np.minimum(other["end_s"], end_s) - np.maximum(other["start_s"], start_s), 0.0, None
        ).sum()
        for start_s, end_s in one.tolist()
    )
    share_I: Floats = both_s / np.maximum(busy_I, 1e-12)
    return share_I


def _shared(deployment: Deployment, steps: Steps, others: float, beside_I: Floats) -> list[Fit]:
    """Steps of instances that share cores with each other and with `others`, in cores."""
    count = len(beside_I)
    lonely = max(1.0, 1.0 / (deployment.cores - others))
    crowded = max(1.0, count / (deployment.cores - others))
    return [
        mean([slower(steps.alone, lonely), slower(steps.together, crowded)], [1.0 - share, share])
        for share in beside_I
    ]


def _simulation(deployment: Deployment, steps: Steps, fits: Sequence[Fit]) -> Simulation:
    engine = steps.info.engine
    kinds = tuple(
        Kind(
            role=role,
            instance=InstanceConfig(
                step_time=fit.step_time,
                noise=fit.relative_std,
                num_pages=engine.num_pages,
                page_tokens=engine.page_tokens,
                max_batch_tokens=steps.info.max_batch_tokens,
                max_running=steps.info.max_running,
                prefill_chunk=steps.info.prefill_chunk,
                layers=engine.layers,
                token_bytes=engine.page_bytes / engine.page_tokens,
                out_bytes_per_s=_LINK_BYTES_PER_S,
                in_bytes_per_s=_LINK_BYTES_PER_S,
            ),
            believed=steps.alone.step_time.parts[0][0][:NUM_FEATURES],
        )
        for role, fit in zip(deployment.roles, fits, strict=True)
    )
    scenario = Scenario(
        kinds=kinds,
        policy=deployment.policy,
        report_s=_REPORT_S,
        learn=True,
        seed=deployment.seed,
    )
    return Simulation(scenario)


def trace_of(arrivals: Sequence[Arrival]) -> Trace:
    """Requests as a trace, with a name for each page of tokens and all before it."""
    names: dict[tuple[int, ...], int] = {}
    chains = []
    for one in arrivals:
        chain = [0]
        for start in range(0, len(one.prompt), PAGE_TOKENS):
            page = (chain[-1], *one.prompt[start : start + PAGE_TOKENS])
            chain.append(names.setdefault(page, len(names) + 1))
        chains.append(chain[1:])
    return Trace(
        arrival_s=np.array([one.time_s for one in arrivals]),
        input_tokens=np.array([len(one.prompt) for one in arrivals]),
        output_tokens=np.array([one.output_tokens for one in arrivals]),
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.array([name for chain in chains for name in chain], np.uint64),
        block_tokens=PAGE_TOKENS,
    )
