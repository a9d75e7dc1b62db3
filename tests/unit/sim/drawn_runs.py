"""Whole simulations, drawn: traces, instances, policies, and what happens to them; and all that was
seen of a run."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.policies import POLICIES
from inlay.cluster.slo import SloClass
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Loss, RoleChange, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace
from inlay.sim.world import Copied, Undivided
from tests.unit.sim.worlds import PAGE, SECOND, SLOPED, instance, tell

LINKED = {"token_bytes": 10.0, "layers": 4, "out_bytes_per_s": 200.0, "in_bytes_per_s": 300.0}
GROUPS = ("chat", "batch")
CLASSES = {
    "chat": SloClass(ttft_s=30.0, tbt_s=4.0),
    "batch": SloClass(name="batch", priority=1),
}
ROLES = (
    ("both",),
    ("both", "both", "both"),
    ("prefill", "decode"),
    ("prefill", "prefill", "decode", "decode"),
    ("prefill", "decode", "both"),
)


@st.composite
def traces(draw, most=24):
    """Requests of a few families, many at the same time; the longest fit into 32 pages."""
    now_s, times, inputs, outputs, chains = 0.0, [], [], [], []
    for number in range(draw(st.integers(1, most))):
        now_s += draw(st.sampled_from((0.0, 0.0, 0.5, 1.0, 3.0, 20.0)))
        tokens = draw(st.integers(1, 100))
        family = draw(st.integers(0, 2))
        shared = min(draw(st.integers(0, 20)), (tokens - 1) // PAGE)
        own = -(-tokens // PAGE) - shared
        times.append(now_s)
        inputs.append(tokens)
        outputs.append(draw(st.integers(1, 20)))
        chains.append(
            [family << 16 | i for i in range(shared)] + [(number + 1) << 32 | i for i in range(own)]
        )
    return Trace(
        arrival_s=np.array(times),
        input_tokens=np.array(inputs),
        output_tokens=np.array(outputs),
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.array([name for chain in chains for name in chain], np.uint64),
        block_tokens=PAGE,
        group=np.array(draw(st.lists(st.integers(0, 1), min_size=len(times), max_size=len(times)))),
        groups=GROUPS,
    )


@st.composite
def scenarios(draw, roomy=False):
    """Instances that are short of pages, unless `roomy`, or not; and what happens to them."""
    roles = draw(st.sampled_from(ROLES))
    one = instance(
        step_time=draw(st.sampled_from((SECOND, SLOPED))),
        num_pages=2000 if roomy else draw(st.sampled_from((32, 60, 2000))),
        max_running=draw(st.sampled_from((2, 8))),
        noise=draw(st.sampled_from((0.0, 0.2))),
        **LINKED,
    )
    return Scenario(
        kinds=tuple(Kind(instance=one, role=role) for role in roles),
        policy=draw(st.sampled_from(sorted(POLICIES))),
        groups=CLASSES,
        admission=AdmissionConfig(mode=draw(st.sampled_from(("off", "off", "early", "predicted")))),
        copies=draw(st.booleans()),
        news_delay_s=draw(st.sampled_from((0.0, 0.25, 1.0))),
        report_s=1.0,
        link_latency_s=draw(st.sampled_from((0.0, 0.5))),
        learn=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        losses=draw(_losses(len(roles))),
        role_changes=draw(_role_changes(len(roles))),
        roles=draw(st.sampled_from(("fixed", "fixed", "auto"))),
    )


@st.composite
def _losses(draw, slots):
    """Of each instance one at most; some are back."""
    lost = draw(st.lists(st.integers(0, slots - 1), max_size=2, unique=True))
    return tuple(
        Loss(
            at_s=draw(st.sampled_from((0.0, 1.0, 2.5, 7.0, 20.0))),
            slot=slot,
            back_s=draw(st.sampled_from((1.5, 10.0, np.inf))),
        )
        for slot in lost
    )


@st.composite
def _role_changes(draw, slots):
    changed = draw(st.lists(st.integers(0, slots - 1), max_size=2, unique=True))
    return tuple(
        RoleChange(
            at_s=draw(st.sampled_from((0.0, 1.0, 4.0, 20.0))),
            slot=slot,
            role=draw(st.sampled_from(("prefill", "decode", "both"))),
        )
        for slot in changed
    )


@dataclass(frozen=True)
class Sent:
    """A request goes to instances."""

    time_s: float
    request: int
    prompt: int
    output: int
    prefill: int
    decode: int


@dataclass
class Seen:
    """One run.

    Attributes:
        steps: chunks, as `world.CHUNK`.
        sent: in order.
        heard: news, and the time by which they were heard.
    """

    simulation: Simulation
    trace: Trace
    results: Results = None
    steps: np.ndarray = None
    sent: list[Sent] = field(default_factory=list)
    heard: list = field(default_factory=list)

    @property
    def busy(self):
        """Of each slot the times of its steps, in order."""
        busy = {}
        for chunk in np.unique(self.steps[["slot", "step", "start_s", "end_s"]]):
            busy.setdefault(int(chunk["slot"]), []).append(
                (float(chunk["start_s"]), float(chunk["end_s"]))
            )
        return busy


def run(scenario, trace):
    """Run it, and look at the world after each thing that is done with it."""
    simulation = Simulation(scenario)
    world, seen = simulation.world, Seen(simulation, trace)
    world.keep_steps()
    advance, submit, news = world.advance, world.submit, world.news
    come_to_s, coming, finished = 0.0, deque(), []

    def audited(until_s):
        nonlocal come_to_s
        done = advance(until_s)
        come_to_s = until_s if done else world.now_s
        world.audit()
        return done

    def noted(request, **what):
        seen.sent.append(
            Sent(
                world.now_s,
                request,
                what["prompt_tokens"],
                what["output_tokens"],
                what["prefill"],
                what["decode"],
            )
        )
        submit(request, **what)

    def listened():
        """All of it, and one after the other what is not for the state alone."""
        coming.extend(news())
        while coming:
            one = coming.popleft()
            seen.heard.append((come_to_s, one))
            if isinstance(one, Undivided | Copied):
                return [one]
            over = tell(simulation.state, one)
            if over is not None:
                finished.append(over)
        return []

    def ended():
        over = finished.copy()
        finished.clear()
        return over

    world._state = None  # so that it is here that the state hears
    world.advance, world.submit = audited, noted
    world.news, world.finished = listened, ended
    seen.results = simulation.run(trace)
    world.audit()
    seen.steps = world.steps()
    return seen
