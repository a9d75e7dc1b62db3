"""Requests whose blocks come from tiers behind the device: every page's content is followed."""

import random

import pytest

from inlay.engine.load import work_ahead
from tests.support.played_blocks import GARBAGE
from tests.support.scheduler_bench import PAGE, Bench
from tests.support.tiered_bench import TieredBench

STEP_S = 0.1


@pytest.fixture(scope="module")
def stored():
    """What a bench leaves in the store for the prompt 0..49."""
    bench = TieredBench()
    bench.request(range(50), output=1)
    bench.run_all()
    assert len(bench.blocks.objects) == 12
    return bench.blocks.objects


def test_write_through_copies_every_full_block(stored):
    assert sorted(len(content) for content in stored.values()) == [4 * n for n in range(1, 13)]


def test_another_instance_loads_all_but_the_last_tokens(stored):
    bench = TieredBench(objects=dict(stored))
    choice = bench.request(range(50), output=2)
    assert bench.step() == {}, "computing does not begin while the store may have all of it"
    bench.blocks.end_all()
    steps = [bench.step()]
    while not steps[-1]:
        bench.blocks.end_all()
        steps.append(bench.step())
    assert steps[-1] == {(0, 0): (48, 50)}
    assert choice.prefetch is None
    assert choice.request.cached_tokens == 48
    assert choice.request.tier_tokens == {"host": 48}
    bench.run_all()
    assert bench.tiers.counts.loaded_bytes == 12 * bench.page_bytes


def test_the_last_block_is_loaded_first(stored):
    bench = TieredBench(objects=dict(stored))
    bench.request(range(50))
    bench.step()
    bench.blocks.end_all()
    bench.step()
    first = bench.blocks.jobs("load")[0]
    contents = [bench.blocks.objects[digest] for digest in first.digests]
    assert [len(content) for content in contents] == [44, 48]


def test_a_slow_tier_and_computing_meet(stored):
    """Loading at half the speed of computing takes about a third of the blocks."""
    bench = TieredBench(objects=dict(stored), prefill_chunk=8)
    bench.costs(prefill=100, load=50)
    choice = bench.request(range(50), output=1)
    bench.step()
    bench.blocks.end_all()
    computed = []
    for number in range(20):
        computed += bench.step().values()
        if not bench.scheduler.has_work:
            break
        # One stretch of 8 tokens takes two steps of 8 tokens.
        if number % 2:
            bench.blocks.end(bench.blocks.jobs("load")[0], seconds=0.16)
        bench.clock.advance(0.08)
    assert sum(stop - start for start, stop in computed) + 16 == 50
    assert choice.request.tier_tokens == {"host": 16}
    assert bench.tiers.counts.cut_tokens == 32
    assert bench.tiers.counts.failures == 0


def test_a_tier_slower_than_recomputing_is_left_alone(stored):
    bench = TieredBench(objects=dict(stored))
    bench.costs(prefill=1000, load=1)
    choice = bench.request(range(50), output=1)
    bench.step()
    bench.blocks.end_all()
    steps = [bench.step() for _ in range(4)]
    assert [step[0, 0] for step in steps] == [(0, 16), (16, 32), (32, 48), (48, 50)]
    assert choice.request.cached_tokens == 0
    assert bench.tiers.counts.cut_tokens == 48


def test_a_wait_ends_when_recomputing_would_have(stored):
    """The store was expected to be quick, and is not: the wait has its limit."""
    bench = TieredBench(objects=dict(stored))
    bench.request(range(50), output=1)
    bench.step()
    bench.blocks.end_all()
    bench.step()
    for job in bench.blocks.jobs("load"):
        bench.blocks.begin(job)
    waited_s = 0.0
    while not bench.step():
        sleep_s = bench.tiers.sleep_s
        assert sleep_s is not None, "somebody must wake it"
        bench.clock.advance(sleep_s)
        waited_s += sleep_s
    assert waited_s == pytest.approx(8 / 100, rel=0.01), "8 tokens at 100 tokens/s"
    for job in list(bench.blocks.begun):  # late bytes must do no harm
        bench.blocks.end(job, error=True)
    bench.run_all()
    assert bench.tiers.counts.failures > 0


def test_a_store_that_does_not_answer_delays_little():
    bench = TieredBench()
    bench.request(range(50), output=1)
    waited_s = 0.0
    while not bench.step():
        sleep_s = bench.tiers.sleep_s
        bench.clock.advance(sleep_s)
        waited_s += sleep_s
    assert waited_s <= 0.05 * 48 / 100 + 1e-9, "a twentieth of what computing takes"
    bench.run_all()


def test_a_late_answer_is_still_of_use(stored):
    bench = TieredBench(objects=dict(stored))
    choice = bench.request(range(50), output=1)
    bench.step()
    bench.clock.advance(1.0)
    assert bench.step() == {(0, 0): (0, 16)}
    bench.blocks.end_all()
    bench.run_all()
    assert choice.request.tier_tokens == {"host": 32}


def test_blocks_that_vanish_are_computed(stored):
    bench = TieredBench(objects=dict(stored))
    choice = bench.request(range(50), output=1)
    bench.step()
    bench.blocks.end_all()
    bench.step()
    lose = {bench.blocks.jobs("load")[0].digests[0]}
    while bench.scheduler.has_work:
        for job in bench.blocks.jobs():
            bench.blocks.end(job, lose=lose)
        bench.step()
    assert choice.request.tier_tokens == {"host": 44}
    assert bench.tiers.counts.failures == 1


def test_a_store_that_fails_is_left_alone_for_a_while(stored):
    bench = TieredBench(objects=dict(stored))
    bench.request(range(50), output=1)
    bench.step()
    for job in bench.blocks.jobs():
        bench.blocks.end(job, error=True)
    assert bench.step() == {(0, 0): (0, 16)}
    bench.request(range(100, 150), output=1)
    assert not bench.blocks.jobs(), "neither a look-up nor a copy"
    for _ in range(20):
        bench.step()
    assert not bench.scheduler.has_work
    bench.clock.advance(1.1)
    bench.request(range(50), output=1)
    bench.run_all()
    assert len(bench.blocks.objects) > len(stored), "it is used again"


def test_blocks_are_loaded_while_a_request_waits(stored):
    bench = TieredBench(objects=dict(stored), max_running=1, pages=48)
    bench.request(range(100, 116), output=60)
    bench.step()
    bench.clock.advance(1.0)
    bench.step()
    waiting = bench.request(range(50), output=1)
    for _ in range(10):
        bench.blocks.end_all()
        bench.step()
        bench.clock.advance(0.01)
    assert waiting.state == "waiting"
    assert bench.cache.match_prefix(waiting.names, 49).num_tokens == 48, "others may use it, too"
    bench.run_all()
    assert waiting.request.tier_tokens == {"host": 48}
    assert waiting.request.cached_tokens == 48


def test_what_is_being_loaded_is_no_work_ahead(stored):
    bench = TieredBench(objects=dict(stored), pages=64)
    choice = bench.request([*range(50), 99], output=1)

    def ahead():
        return work_ahead([choice.request], bench.cache).prefill_tokens

    assert ahead() == 51, "nobody knows what the store has"
    lefts = []
    while choice.prefetch is not None:
        bench.step()
        if loads := bench.blocks.jobs("load"):
            lefts.append(ahead())
            assert lefts[-1] <= 51 - PAGE * sum(len(job.digests) for job in loads)
        bench.blocks.end_all()
    assert lefts == sorted(lefts, reverse=True) and lefts[-1] == 51 - 48
    bench.run_all()
    assert ahead() == 0


def test_loads_for_others_that_come_later_are_no_reason_to_compute(stored):
    other = TieredBench(objects=dict(stored))
    other.request(range(200, 250), output=1)
    other.run_all()
    bench = TieredBench(objects=other.blocks.objects, pages=64)
    bench.costs(prefill=100, load=150)
    choice = bench.request([*range(8), 99], output=1)
    bench.step()
    bench.blocks.end_all()
    assert bench.step() == {}
    (load,) = bench.blocks.jobs("load")
    bench.blocks.begin(load)
    bench.request(range(200, 250), output=1)
    for _ in range(3):
        for job in bench.blocks.jobs("find"):
            bench.blocks.end(job)
        assert (0, 0) not in bench.step()
    assert len(bench.blocks.jobs("load")) > 1
    bench.blocks.end(load)
    bench.step()
    assert choice.request.tier_tokens == {"host": 8}


def test_equal_prefixes_are_loaded_once(stored):
    bench = TieredBench(objects=dict(stored), pages=64)
    choices = [bench.request(range(50), output=2) for _ in range(3)]
    bench.run_all()
    assert bench.tiers.counts.loaded_bytes == 12 * bench.page_bytes
    assert [c.request.cached_tokens for c in choices] == [48] * 3


def test_pages_of_a_waiting_request_are_taken_when_a_running_one_needs_them(stored):
    bench = TieredBench(objects=dict(stored), max_running=1, pages=24)
    bench.request(range(100, 110), output=80)
    waiting = bench.request(range(50), output=1)
    for _ in range(8):
        bench.step()
        bench.blocks.end_all()
        bench.clock.advance(0.01)
    assert waiting.prefetch.hold is not None
    bench.run_all()
    assert bench.scheduler.preemptions == 0


def test_a_request_that_is_cancelled_leaves_nothing(stored):
    for steps in range(5):
        bench = TieredBench(objects=dict(stored))
        choice = bench.request(range(50))
        for number in range(steps):
            bench.step()
            if number == 1:
                for job in bench.blocks.jobs("load")[:1]:
                    bench.blocks.begin(job)
            if number == 0:
                bench.blocks.end_all()
        bench.scheduler.remove(choice)
        bench.audit()
        bench.run_all()
        bench.blocks.end_all()
        bench.tiers.poll()
        bench.audit()
        assert bench.cache.counts().used == 0


def test_the_copy_of_an_evicted_page_is_still_good():
    bench = TieredBench(pages=14)
    bench.request(range(30), output=1)
    while bench.scheduler.has_work:
        bench.step()
        bench.clock.advance(0.1)
        for job in bench.blocks.jobs("find"):
            bench.blocks.end(job)
    bench.tiers.poll()
    bench.tiers.start()
    (save,) = bench.blocks.jobs("save")
    bench.blocks.begin(save)
    bench.request(range(200, 244), output=1)
    for _ in range(8):
        bench.step()
        for job in bench.blocks.jobs("find"):
            bench.blocks.end(job)
        bench.clock.advance(0.1)
    assert save in bench.blocks.begun
    bench.blocks.end(save)
    assert bench.blocks.objects[save.digests[0]] == list(range(4))
    bench.run_all()
    assert bench.cache.counts().used == 0


@pytest.mark.parametrize("write", ["through", "second_hit", "evict"])
@pytest.mark.parametrize("seed", range(12))
def test_random_histories(seed, write):
    """Requests, jobs and failures in any order: contents are right and texts are the same."""
    rng = random.Random(seed)
    prompts = []
    for _ in range(60):
        base = rng.choice(prompts)[: rng.randrange(4, 50)] if prompts and rng.random() < 0.9 else []
        prompts.append([*base, *(rng.randrange(9) for _ in range(rng.randrange(1, 30)))][:60])
    options = [
        {"output": rng.randrange(1, 6), "n": rng.choice([1, 1, 3]), "priority": rng.randrange(3)}
        for _ in prompts
    ]
    plain = Bench(pages=200, max_running=8)
    for prompt, option in zip(prompts, options, strict=True):
        plain.request(prompt, **option)
    plain.run()
    bench = TieredBench(write=write, pages=28, max_running=4, prefill_chunk=9, batch=3)
    load = rng.choice([30, 100, 1000, 10000])
    bench.costs(prefill=100, load=load)
    todo = list(zip(prompts, options, strict=True))
    for _ in range(5000):
        if todo and rng.random() < 0.3:
            prompt, option = todo.pop(0)
            bench.request(prompt, **option)
        bench.step()
        bench.clock.advance(rng.choice([0.001, 0.01, 0.1]))
        for job in bench.blocks.jobs():
            luck = rng.random()
            if luck < 0.2 and job not in bench.blocks.begun:
                bench.blocks.begin(job)
            elif luck < 0.6:
                lose = {d for d in job.digests if rng.random() < 0.1}
                bench.blocks.end(job, error=rng.random() < 0.02, lose=lose)
        if not todo and not bench.scheduler.has_work:
            break
    else:
        raise AssertionError("no progress")
    bench.blocks.end_all()
    bench.tiers.poll()
    bench.audit()
    assert [c.output for c in bench.choices] == [c.output for c in plain.choices]
    assert bench.cache.counts().used == 0
    assert GARBAGE not in bench.blocks.objects.values()
    if write == "through" and load >= 1000:
        assert bench.tiers.counts.loaded_bytes > 0
