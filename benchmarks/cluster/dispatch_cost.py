"""cluster/dispatch_cost: how many requests a second one core can name, look up, place and pass."""

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.cluster.dispatching import passing
from benchmarks.triples import Comparison, Samples
from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.policies import make_policy
from inlay.cluster.prefix_index import PrefixIndex
from inlay.cluster.state import ClusterState
from inlay.cluster.timing import TimingModel
from inlay.core.block_hash import DIGEST_BYTES, ROOT
from inlay.core.token_ids import pack_token_ids
from inlay.kernels import block_hash_chain

Params = Mapping[str, Any]
# Seconds per step, prompt token, attended token, decode step, row and token of context.
TIMING = (5e-3, 5e-5, 1e-9, 5e-3, 1e-4, 1e-8)
PAGE_BYTES = 1 << 20
HASHES = 50  # in one sample


class Filled:
    """An index in which each instance has whole prompts, and requests for it."""

    def __init__(self, run: Run, instances: int, blocks: int) -> None:
        self._rng = np.random.default_rng(run.seeds[0])
        self._work = run.workload
        self.index = PrefixIndex()
        self.block_tokens = self._work["block_tokens"]
        shared = self._digests(self._work["shared_blocks"])
        own = self._work["prompt_blocks"] - self._work["shared_blocks"]
        prompts = []
        for _ in range(instances):
            slot = self.index.add()
            here = [self._digests(own) for _ in range(round(blocks / instances / own) or 1)]
            self.index.load(slot, shared + b"".join(here))
            prompts += [shared + one for one in here]
        drawn = self._rng.integers(len(prompts), size=self._work["requests"])
        self.requests = [
            self._request(prompts[number], self._work[f"{'reused' if i % 2 else 'shared'}_blocks"])
            for i, number in enumerate(drawn)
        ]

    def _digests(self, count: int) -> bytes:
        return self._rng.bytes(count * DIGEST_BYTES)

    def _request(self, prompt: bytes, reused: int) -> RequestView:
        count = self._work["prompt_blocks"]
        return RequestView(
            num_tokens=count * self.block_tokens,
            digests=prompt[: reused * DIGEST_BYTES] + self._digests(count - reused),
        )


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Each index once, for all that is asked of it."""
    filled: dict[tuple[int, int], Filled] = {}

    def at(params: Params) -> Filled:
        size = params["instances"], params["blocks"]
        if size not in filled:
            filled.clear()
            filled[size] = Filled(run, *size)
        return filled[size]

    for params in run.params("decisions_per_s"):
        one = at(params)
        yield rate("decisions_per_s", params, one, deciding(one, params))
    for params in run.params("matches_per_s"):
        one = at(params)
        yield rate("matches_per_s", params, one, matching(one))
        per_block = one.index.memory_bytes() / len(one.index)
        yield Samples(name="bytes_per_block", params=params, values=[per_block])
    filled.clear()
    for params in run.params("hash_us"):
        yield hashing(run, params)
    yield from passing(run)


def rate(
    name: str, params: Params, filled: Filled, call: Callable[[RequestView], object]
) -> Comparison:
    """Calls per second, all requests in turn."""

    def ours() -> float:
        start = time.perf_counter()
        for request in filled.requests:
            call(request)
        return len(filled.requests) / (time.perf_counter() - start)

    return Comparison(name=name, params=params, ours=ours)


def matching(filled: Filled) -> Callable[[RequestView], object]:
    """The index alone."""
    match = filled.index.match
    return lambda request: match(request.digests, 0.0)


def deciding(filled: Filled, params: Params) -> Callable[[RequestView], object]:
    """What stands between a prompt's names and the instances that get it, all of them idle."""
    state = ClusterState(filled.block_tokens, PAGE_BYTES)
    timing = TimingModel(np.array(TIMING))
    for slot in range(params["instances"]):
        state.join(slot, "both", timing, pages_total=params["blocks"])
    policy = make_policy(params["policy"], seed=0)
    match, choose, sent = filled.index.match, policy.choose, policy.sent

    def decide(request: RequestView) -> Decision:
        decision = choose(request, match(request.digests, 0.0), state, 0.0)
        sent(request, decision, 0.0)
        return decision

    assert all(decide(one).refusal is None for one in filled.requests[:4])
    return decide


def hashing(run: Run, params: Params) -> Comparison:
    """Microseconds for one prompt."""
    rng = np.random.default_rng(run.seeds[0])
    prompt = pack_token_ids(rng.integers(1 << 17, size=params["tokens"]).tolist())
    block_tokens = run.workload["block_tokens"]

    def ours() -> float:
        start = time.perf_counter()
        for _ in range(HASHES):
            block_hash_chain(bytes(32), ROOT, prompt, block_tokens)
        return (time.perf_counter() - start) / HASHES * 1e6

    return Comparison(name="hash_us", params=params, ours=ours)
