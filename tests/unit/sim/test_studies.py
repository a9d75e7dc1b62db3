"""Pools of blocks against figures by hand, and each study on the beginning of a trace."""

import importlib
import random

import pytest

from inlay.sim.formats import read
from inlay.sim.studies import deferral, expert_parallelism, pool
from inlay.sim.studies.mooncake import cluster, design
from inlay.sim.studies.mooncake_run import run
from inlay.sim.studies.pool import Request
from inlay.sim.studies.scheduling_modes import operations
from inlay.sim.trace import Trace
from inlay.sim.transform import cut
from tests.support.tree import ROOT

# Of each study, two points, and which figure is greater in the second one.
POINTS = {
    "hit_ratio": (
        {"capacity_tokens": 100_000, "policy": "lfu"},
        {"capacity_tokens": 50_000_000, "policy": "lru"},
        "hit_ratio",
    ),
    "local_global": ({"cache": "local"}, {"cache": "one"}, "hit_ratio"),
    "policies": ({"policy": "random"}, {"policy": "kv_centric"}, "hit_ratio"),
    "prefill_decode_ratio": ({"prefill": 5}, {"prefill": 8}, "kept"),
    "bandwidth": ({"gbits": 100}, {"gbits": 10}, "mean_ttft_s"),
    "scheduling_modes": ({"mode": "divided"}, {"mode": "prefill_first"}, "p90_tbt_s"),
    "effective_capacity": ({"system": "vllm"}, {"system": "mooncake"}, "kept_100ms"),
    "tiers": (
        {"last": "device", "policy": "random"},
        {"last": "store", "policy": "random"},
        "hit_ratio",
    ),
    "overload": (
        {"admission": "off", "prefill": 8, "decode": 8, "speed": 8.0},
        {"admission": "predicted", "prefill": 8, "decode": 8, "speed": 8.0},
        "refused",
    ),
}


@pytest.fixture(scope="module")
def beginning() -> Trace:
    return cut(read(ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz"), 0.0, 60.0)


@pytest.mark.parametrize("study", POINTS)
def test_studies(study: str, beginning: Trace) -> None:
    measure = importlib.import_module(f"inlay.sim.studies.{study}").measure
    less, more, name = POINTS[study]
    low, high = (
        {found.name: found.value for found in measure("conversation", beginning, **point)}
        for point in (less, more)
    )
    assert low.keys() == high.keys()
    assert low[name] < high[name]


def test_experts_that_are_packed_and_two_batches_are_worth_something() -> None:
    asked = {"role": "prefill", "gpus": 32, "tensor": 1, "experts": "packed", "two_batches": True}
    best = rate(**asked)
    assert best > 1.1 * rate(**asked | {"experts": "numbered"})
    assert best > 1.1 * rate(**asked | {"two_batches": False})


def rate(**point: object) -> float:
    (found,) = expert_parallelism.measure(**point)
    return found.value


def test_deferral_hides_experts_of_the_host() -> None:
    rates = [deferral.measure(deferred=count)[0].value for count in (0, 3)]
    assert 1.1 < rates[1] / rates[0] < 1.5


def test_operations_by_hand(beginning: Trace) -> None:
    """Two operations for each parameter that a token passes, and four for each of its heads'
    numbers with each token that it sees."""
    results = run(beginning, cluster(2, 0))
    shape = design().shape
    matrices = shape.layers * (shape.attention_parameters + shape.mlp_parameters)
    ends = results.input_tokens + results.output_tokens - 1
    tokens = float((ends - results.cached_tokens).sum())
    pairs = float((ends.astype(float) ** 2 - results.cached_tokens.astype(float) ** 2).sum()) / 2
    by_hand = 2 * matrices * tokens + 4 * shape.layers * shape.heads * shape.head_dim * pairs
    assert operations(results) == pytest.approx(by_hand, rel=0.01)


def test_lfu_drops_what_is_asked_for_least_often() -> None:
    requests = [Request(i, blocks) for i, blocks in enumerate([[1], [1], [2], [3], [2], [1]])]
    # Room for two: 3 displaces 2, which was there once, and 1 stays.
    kept = pool.Pool("lfu", 2)
    assert [kept.request(request) for request in requests] == [0, 1, 0, 0, 0, 1]


def test_lfu_against_a_search_of_all_blocks() -> None:
    draw = random.Random(7)
    chains = [[16 * document + k for k in range(4)] for document in range(12)]
    requests = [Request(i, chains[min(draw.randrange(12), draw.randrange(12))]) for i in range(300)]
    kept = pool.Pool("lfu", 20)
    uses: dict[int, tuple[int, int]] = {}
    tick = 0
    for request in requests:
        hits = next((k for k, block in enumerate(request.blocks) if block not in uses), 4)
        missing = [block for block in request.blocks if block not in uses]
        for block in reversed([block for block in request.blocks if block in uses]):
            uses[block] = uses[block][0] + 1, (tick := tick + 1)
        while len(uses) + len(missing) > 20:
            del uses[min(uses.keys() - set(request.blocks), key=uses.__getitem__)]
        for block in reversed(missing):
            uses[block] = 1, (tick := tick + 1)
        assert kept.request(request) == hits
        assert kept.ids.keys() == uses.keys()


def test_nobody_is_ahead_of_the_future(beginning: Trace) -> None:
    requests = pool.whole_blocks(beginning)
    assert sum(len(request.blocks) for request in requests) < len(beginning.blocks)
    for capacity in (100, 1000):
        best = pool.farthest_next_use(requests, capacity)
        for policy in ("lru", "lfu", "s3fifo", "cost"):
            assert pool.hit_ratio(requests, policy, capacity) <= best <= pool.unbounded(requests)
