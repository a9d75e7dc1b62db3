"""Simulated tiers against those of the engine: the same chunks, and the same hits from them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inlay.sim.step_time import StepTime
from inlay.sim.tier import Tier
from inlay.store import EvictionPolicy, Newcomer
from tests.support.played_blocks import PlayedBlocks
from tests.support.tiered_bench import TieredBench
from tests.unit.sim.test_scheduler import steps_of
from tests.unit.sim.worlds import PAGE, instance, requests, run

STEP_S = 3.0
"""More than a second, after which policies ask again about blocks in use."""


class BoundedBlocks(PlayedBlocks):
    """A store with room for so many objects, by a policy of the real one, as its master uses it."""

    def __init__(self, num_pages, capacity, policy):
        super().__init__(num_pages)
        self.capacity = capacity
        self.policy = EvictionPolicy(policy)
        self.now_ns = 0
        self.ids = {}
        self.unused = list(range(capacity))[::-1]

    def begin(self, job):
        super().begin(job)
        if job.kind == "load":
            self.policy.hit([self.ids[one] for one in job.digests if one in self.ids], self.now_ns)

    def end(self, job, **how):
        super().end(job, **how)
        if job.kind != "save":
            return
        held, newcomers, there = [], [], set(self.ids)  # what is there is not moved
        for digest, page_id, parent in zip(job.digests, job.page_ids, job.parents, strict=True):
            if digest in there:
                continue
            held.append(self.ids.get(parent))
            if len(self.ids) == self.capacity and not self._evict(held):
                held.pop()
                continue
            self.ids[digest] = id = self.unused.pop()
            self.objects[digest] = self.pages[page_id]
            newcomers.append(Newcomer(id, held[-1], id))
        self.policy.add(newcomers, self.now_ns)
        for digest in set(self.objects) - set(self.ids):
            del self.objects[digest]
        assert set(self.objects) == set(self.ids) and len(self.ids) <= self.capacity

    def _evict(self, held):
        id = self.policy.victim(self.now_ns, held.__contains__)
        if id is None:
            return False
        digest = next(digest for digest, one in self.ids.items() if one == id)
        self.policy.evict(id, id)
        del self.ids[digest], self.objects[digest]
        self.unused.append(id)
        return True


def copy_all(bench):
    """What is to be copied, while nothing is computed."""
    while True:
        bench.tiers.poll()
        bench.tiers.start()
        if not bench.blocks.jobs():
            return
        bench.blocks.end_all()


@given(
    drawn=requests(),
    pages=st.integers(30, 48),
    capacity=st.sampled_from((3, 20, 45, 1000)),
    write=st.sampled_from(("through", "second_hit", "evict")),
)
def test_the_same_hits_as_the_engine(drawn, pages, capacity, write):
    # One after the other: else it depends on when in a step a load or a copy is made, which a test
    # that ends them by hand does not know.
    drawn = [replace(one, arrival_s=1000.0 * i) for i, one in enumerate(drawn)]
    limits = {"max_running": 8, "max_batch_tokens": 32, "prefill_chunk": 16}
    host = Tier(name="host", tokens=capacity * PAGE, eviction="lru")
    steps = StepTime.fitted([STEP_S, 0, 0, STEP_S, 0, 0])
    config = instance(
        step_time=steps, num_pages=pages, token_bytes=1.0, host=host, write=write, **limits
    )
    world = run([config], drawn)
    bench, chunks = TieredBench(pages=pages, write=write, batch=32, **limits), []
    blocks = BoundedBlocks(pages, capacity, "lru")
    bench.blocks = bench.tiers._blocks = bench.tiers.loader._blocks = blocks
    bench.tiers._saver._blocks = blocks
    computed = bench.scheduler.computed
    bench.scheduler.computed = lambda one: (
        chunks.append((one.choice.request.order, one.start, one.stop)), computed(one)
    )  # fmt: skip
    waiting = list(enumerate(drawn))
    for start_s, expected in steps_of(world):
        while waiting and waiting[0][1].arrival_s <= start_s:
            number, request = waiting.pop(0)
            if not bench.scheduler.has_work:
                copy_all(bench)
            bench.request(request.tokens(number), output=request.output, priority=request.priority)
        for job in blocks.jobs("find"):  # in the simulated world that takes no time
            blocks.end(job)
        blocks.now_ns = round(start_s * 1e9)
        chunks.clear()
        while not chunks:
            bench.step()
            # Loads are made one by one, and a step that waits begins as soon as one is.
            loads = blocks.jobs("load")
            for job in blocks.jobs():
                if chunks or job not in loads[1:]:
                    blocks.end(job)
        assert chunks == expected
        blocks.now_ns += round(STEP_S * 1e9)  # it is over
    assert not bench.scheduler.has_work
    for outcome in world.outcomes():
        request = bench.requests[int(outcome["request"])]
        if outcome["preemptions"]:  # what was thrown away, an engine counts by its clock
            continue
        assert outcome["cached_tokens"] == request.cached_tokens
        assert outcome["host_tokens"] == request.tier_tokens.get("host", 0)
