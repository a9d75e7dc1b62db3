"""A cluster in one process and in its own time: engines that step, caches that evict, links.

Policies, state and admission are those that serve. What is modelled is the world: each instance
works in steps as the engine's scheduler makes them (decodes first, then chunks of prompts), with
true times that the timing model has to learn, an LRU cache of blocks, and a link out. Everything
is drawn from seeds.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from inlay.cluster.decision import Copy, Decision, RequestView
from inlay.cluster.policies import Policy
from inlay.cluster.slo import SloClass, meets, tbt_s
from inlay.cluster.state import ClusterState
from inlay.cluster.timing import TimingModel
from inlay.core.instance_messages import LoadReport, Role, StepSample

REPORT_S = 0.1
REPORT_DELAY_S = 0.002
EXPECT_S = 10.0


@dataclass(kw_only=True, eq=False)
class Job:
    """One request on its way."""

    arrival_s: float
    num_tokens: int
    blocks: tuple[int, ...]
    outputs: int
    tenant: str = ""
    priority: int = 0
    slo: SloClass = SloClass()
    request_id: str = ""
    decision: Decision | None = None
    computed: int = -1  # tokens; -1: not begun
    copied: bool = False
    cached: int = 0
    produced: int = 0
    first_s: float = -1.0
    last_s: float = -1.0
    gaps: list[float] = field(default_factory=list)
    done: bool = False
    refused: bool = False

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def good(self) -> bool:
        return self.done and meets(self.slo, self.ttft_s, self.gaps)


class Instance:
    """One engine."""

    def __init__(
        self, slot: int, seconds: np.ndarray, pages: int, chunk: int, rng: np.random.Generator
    ) -> None:
        self.slot, self.seconds, self.pages, self.chunk, self.rng = slot, seconds, pages, chunk, rng
        self.max_running, self.max_batch = 64, 2 * chunk
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.queue: list[tuple[int, float, int, Job]] = []
        self.decoding: list[Job] = []
        self.chunks: list[tuple[Job, int]] = []
        self.busy = False
        self.step_end_s = 0.0  # of the current one, or the last
        self.samples: deque[StepSample] = deque(maxlen=64)
        self.link_free_s = 0.0
        self.sent_s: dict[int, float] = {}

    def match(self, blocks: tuple[int, ...]) -> int:
        return sum(1 for _ in itertools.takewhile(self.cache.__contains__, blocks))

    def expect(self, blocks: tuple[int, ...], now_s: float) -> int:
        """What the prefix index says: blocks that are here, or were sent here a moment ago."""
        cache, sent_s = self.cache, self.sent_s
        for count, block in enumerate(blocks):
            if block not in cache and now_s - sent_s.get(block, -np.inf) > EXPECT_S:
                return count
        return len(blocks)

    def store(self, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.pages:
            self.cache.popitem(last=False)

    def plan(self, page_tokens: int) -> float:
        """Choose the next step and return its time; 0 if there is nothing to do."""
        budget, self.chunks = self.max_batch - len(self.decoding), []
        pairs = tokens = 0
        for *_, job in itertools.islice(sorted(self.queue), self.max_running):
            if budget <= 0 or len(self.decoding) + len(self.chunks) >= self.max_running:
                break
            if job.computed < 0:
                blocks = min(self.match(job.blocks), (job.num_tokens - 1) // page_tokens)
                job.cached = job.computed = blocks * page_tokens
            count = min(self.chunk, budget, job.num_tokens - job.computed)
            self.chunks.append((job, count))
            budget -= count
            tokens += count
            pairs += count * job.computed + count * (count + 1) // 2
        rows = len(self.decoding)
        if not (tokens or rows):
            return 0.0
        context = sum(job.num_tokens + job.produced for job in self.decoding)
        c0, c1, c2, d0, d1, d2 = self.seconds
        step_s = c0 + c1 * tokens + c2 * pairs if tokens else d0
        step_s = (step_s + d1 * rows + d2 * context) * self.rng.lognormal(0, 0.05)
        self.samples.append(StepSample(tokens, pairs, rows, context, step_s))
        return float(step_s)

    def report(self) -> LoadReport:
        samples = tuple(self.samples)
        self.samples.clear()
        return LoadReport(
            run_id="1",
            waiting=sum(job.computed < 0 for *_, job in self.queue),
            running=len(self.decoding) + sum(job.computed >= 0 for *_, job in self.queue),
            receiving=0,
            prefill_tokens=sum(job.num_tokens - max(job.computed, 0) for *_, job in self.queue),
            context_tokens=sum(job.num_tokens + job.produced for job in self.decoding),
            pages_total=self.pages,
            pages_free=self.pages - len(self.cache),
            pages_cached=len(self.cache),
            samples=samples,
        )


class ModelCluster:
    """Runs jobs to their end.

    Args:
        chooser: a policy, or anything else with its `choose` and `sent`.
        believed: coefficients that the timing model starts from.
    """

    def __init__(
        self,
        chooser: Policy,
        roles: Iterable[Role],
        true: np.ndarray,
        *,
        believed: np.ndarray | None = None,
        pages: int = 1000,
        page_tokens: int = 512,
        chunk: int = 512,
        copies: bool = False,
        page_bytes: int = 1 << 24,
        bandwidth: float = 1e10,
        seed: int = 0,
    ) -> None:
        self.chooser, self.page_tokens = chooser, page_tokens
        self.page_bytes, self.bandwidth = page_bytes, bandwidth
        self.state = ClusterState(page_tokens, page_bytes, copies)
        timing = TimingModel(true if believed is None else believed)
        self.instances = []
        for slot, role in enumerate(roles):
            rng = np.random.default_rng([seed, slot])
            self.instances.append(Instance(slot, true, pages, chunk, rng))
            self.state.join(slot, role, timing, prefill_chunk=chunk, pages_total=pages)
        self.jobs: list[Job] = []
        self.now_s = 0.0
        self.copied = 0
        self.max_waiting = 0
        self._events: list[tuple[float, int, object, tuple[object, ...]]] = []
        self._count = itertools.count()

    def run(self, jobs: Iterable[Job]) -> "ModelCluster":
        for job in jobs:
            job.request_id = str(len(self.jobs))
            self.jobs.append(job)
            self._at(job.arrival_s, self._arrive, job)
        left = len(self.jobs)
        for instance in self.instances:
            self._at(REPORT_S, self._report, instance)
        self.left = left
        while self._events and self.left:
            self.now_s, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)  # type: ignore[operator]
        assert not self.left
        return self

    def _at(self, time_s: float, call: object, *arguments: object) -> None:
        heapq.heappush(self._events, (time_s, next(self._count), call, arguments))

    def _arrive(self, job: Job) -> None:
        matches_S = np.array(
            [one.expect(job.blocks, self.now_s) for one in self.instances], np.int32
        )
        view = RequestView(
            num_tokens=job.num_tokens,
            digests=b"".join(block.to_bytes(16, "little") for block in job.blocks),
            priority=job.priority,
            tenant=job.tenant,
            slo=job.slo,
        )
        decision = self.chooser.choose(view, matches_S, self.state, self.now_s)
        job.decision = decision
        if decision.refusal is not None:
            job.refused = True
            self.left -= 1
            return
        if decision.copy is not None and not job.copied:
            job.copied = True
            self._copy(job.blocks, decision.copy, job)  # then it is chosen for once more
            return
        self.chooser.sent(view, decision, self.now_s)
        self.state.dispatched(job.request_id, view, decision, self.now_s)
        if decision.replicate is not None:
            self._copy(job.blocks, decision.replicate)
        instance = self.instances[decision.prefill]
        instance.sent_s.update(dict.fromkeys(job.blocks, self.now_s))
        instance.queue.append((job.priority, job.arrival_s, next(self._count), job))
        self.max_waiting = max(self.max_waiting, len(instance.queue))
        self._wake(instance)

    def _copy(self, blocks: tuple[int, ...], copy: Copy, job: Job | None = None) -> None:
        """Blocks go over the sender's link, one copy after the other; engines act between steps."""
        source, target = self.instances[copy.source], self.instances[copy.target]
        size_bytes = copy.num_blocks * self.page_bytes
        asked_s = max(self.now_s, target.step_end_s)
        start_s = max(asked_s, source.step_end_s, source.link_free_s)
        source.link_free_s = start_s + size_bytes / self.bandwidth
        self.state.sending(copy.source, size_bytes)
        self.copied += copy.num_blocks
        moved = blocks[: copy.first_block + copy.num_blocks]
        end_s = source.link_free_s + 0.002
        self._at(end_s, self._sent, copy, size_bytes, end_s - asked_s)
        self._at(end_s, self._copied, copy, moved, job)

    def _sent(self, copy: Copy, size_bytes: int, seconds: float) -> None:
        self.state.sent(copy.source, size_bytes, seconds)

    def _copied(self, copy: Copy, moved: tuple[int, ...], job: Job | None) -> None:
        target = self.instances[copy.target]
        if target.busy and target.step_end_s > self.now_s:
            self._at(target.step_end_s, self._copied, copy, moved, job)
            return
        if self.instances[copy.source].match(moved) == len(moved):
            target.store(moved)
        if job is not None:
            self._arrive(job)

    def _wake(self, instance: Instance) -> None:
        if not instance.busy:
            seconds = instance.plan(self.page_tokens)
            if seconds:
                instance.busy = True
                instance.step_end_s = self.now_s + seconds
                self._at(instance.step_end_s, self._stepped, instance)

    def _stepped(self, instance: Instance) -> None:
        instance.busy = False
        for job in list(instance.decoding):
            self._token(job)
            if job.done:
                instance.decoding.remove(job)
        for job, count in instance.chunks:
            job.computed += count
            if job.computed == job.num_tokens:
                self._prefilled(instance, job)
        self._wake(instance)

    def _prefilled(self, instance: Instance, job: Job) -> None:
        assert job.decision is not None
        instance.queue = [entry for entry in instance.queue if entry[-1] is not job]
        full = job.blocks[: job.num_tokens // self.page_tokens]
        instance.store(full)
        if job.decision.split:
            target = self.instances[job.decision.decode]
            self._at(self.now_s + 0.005, self._receive, target, job, full)
        else:
            self._token(job)
            if not job.done:
                instance.decoding.append(job)

    def _receive(self, target: Instance, job: Job, full: tuple[int, ...]) -> None:
        target.store(full)
        self._token(job)
        if not job.done:
            target.decoding.append(job)
            self._wake(target)

    def _token(self, job: Job) -> None:
        job.produced += 1
        if job.produced == 1:
            job.first_s = self.now_s
            self.state.prefill_done(job.request_id, self.now_s)
        else:
            job.gaps.append(self.now_s - job.last_s)
        job.last_s = self.now_s
        if job.produced >= job.outputs:
            job.done = True
            self.left -= 1
            self.state.finished(job.request_id, job.produced)

    def _report(self, instance: Instance) -> None:
        self._at(self.now_s + REPORT_DELAY_S, self._reported, instance, instance.report())
        self._at(self.now_s + REPORT_S, self._report, instance)

    def _reported(self, instance: Instance, report: LoadReport) -> None:
        self.state.report(instance.slot, report, self.now_s)

    # Figures.

    @property
    def hit_share(self) -> float:
        done = [job for job in self.jobs if job.done]
        return sum(job.cached for job in done) / sum(job.num_tokens for job in done)

    def ttft_s(self, tenant: str | None = None) -> np.ndarray:
        return np.array(
            [job.ttft_s for job in self.jobs if job.done and tenant in (None, job.tenant)]
        )

    @property
    def mean_tbt_s(self) -> float:
        return float(np.mean([tbt_s(job.gaps) for job in self.jobs if job.gaps]))

    @property
    def goodput(self) -> float:
        """Requests that kept their objectives, per second."""
        return sum(job.good for job in self.jobs) / self.now_s
