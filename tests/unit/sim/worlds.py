"""Small worlds, and requests drawn for them."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from inlay.cluster.prefix_index import PrefixIndex
from inlay.sim.step_time import StepTime
from inlay.sim.world import (
    Finished,
    FirstToken,
    InstanceConfig,
    Reported,
    Sending,
    Sent,
    World,
    names_of,
)

pytest.importorskip("inlay._native")

PAGE = 4
SECOND = StepTime.fitted([1, 0, 0, 1, 0, 0])
"""Each step takes a second."""
SLOPED = StepTime.fitted([2, 0.03, 0.001, 1, 0.1, 0.002])


def instance(**changes):
    return InstanceConfig(
        **{
            "step_time": SECOND,
            "num_pages": 32,
            "page_tokens": PAGE,
            "max_batch_tokens": 32,
            "max_running": 8,
            "prefill_chunk": 16,
        }
        | changes
    )


@dataclass(frozen=True)
class Drawn:
    """A request: its prompt begins with `shared` tokens of a family, the rest is its own."""

    arrival_s: float
    prompt: int
    output: int
    family: int = 0
    shared: int = 0
    priority: int = 0
    prefill: int = 0
    decode: int = 0

    def tokens(self, number):
        """Token ids; the last one is unlike that of all others."""
        shared = min(self.shared, self.prompt - 1)
        own = [1000 + number] * (self.prompt - shared)
        return [self.family * 100 + i for i in range(shared)] + own

    def names(self, number):
        tokens = self.tokens(number)
        chains = [tuple(tokens[: i + PAGE]) for i in range(0, len(tokens) - PAGE + 1, PAGE)]
        return names_of(np.array([hash(chain) % 2**63 for chain in chains], np.uint64))


@st.composite
def requests(draw, slots=1, split=False, limit=100, whole_seconds=False):
    """Up to 24 requests in order of arrival; each fits into 32 pages."""
    drawn, now_s = [], 0.0
    for _ in range(draw(st.integers(1, 24))):
        gap = draw(st.sampled_from((0, 0, 1, 3, 20) if whole_seconds else (0, 0, 0.4, 2.5, 20)))
        now_s += gap
        prompt = draw(st.integers(1, limit))
        prefill = draw(st.integers(0, slots - 1))
        drawn.append(
            Drawn(
                arrival_s=now_s,
                prompt=prompt,
                output=draw(st.integers(1, min(20, 120 - prompt))),
                family=draw(st.integers(0, 2)),
                shared=draw(st.sampled_from((0, 6, 16, 40, 80))),
                priority=draw(st.sampled_from((0, 0, 0, -1, 1))),
                prefill=prefill,
                decode=draw(st.integers(0, slots - 1)) if split else prefill,
            )
        )
    return drawn


def world_of(configs, **arguments):
    world = World(index=PrefixIndex(), **arguments)
    for config in configs:
        world.add(config)
        world.index.add()
    world.keep_steps()
    return world


def submit(world, number, request):
    world.submit(
        number,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt,
        output_tokens=request.output,
        blocks=request.names(number),
        prefill=request.prefill,
        decode=request.decode,
        priority=request.priority,
    )


def run(configs, drawn, order=None, **arguments):
    """A world that has run all requests; submitted in `order` where that is given."""
    world = world_of(configs, **arguments)
    for number in range(len(drawn)) if order is None else order:
        world.advance(drawn[number].arrival_s)
        submit(world, number, drawn[number])
        world.audit()
    world.advance(np.inf)
    world.audit()
    return world


def tell(state, news):
    """Give a state one piece of news; returns the request that is over, if one is."""
    if isinstance(news, FirstToken):
        state.prefill_done(str(news.request), news.time_s)
    elif isinstance(news, Reported):
        state.report(news.slot, news.report, news.time_s)
    elif isinstance(news, Sending):
        state.sending(news.slot, news.size_bytes)
    elif isinstance(news, Sent):
        state.sent(news.slot, news.size_bytes, news.seconds)
    else:
        assert isinstance(news, Finished)
        state.finished(str(news.request), news.output_tokens)
        return news.request
    return None
