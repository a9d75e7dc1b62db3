"""The scheduler on a real cache; a step's computing is played by the test."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scheduler_bench import Bench


def _outputs(bench):
    return {(c.request.order, c.index): c.output for c in bench.choices}


def test_long_prompts_are_computed_in_chunks_beside_decodes():
    bench = Bench(pages=64)
    bench.request(range(6), output=8)
    assert bench.step() == {(0, 0): 6}
    bench.request(range(100, 140))
    assert bench.step() == {(0, 0): 1, (1, 0): 16}
    assert bench.step() == {(0, 0): 1, (1, 0): 16}
    assert bench.step() == {(0, 0): 1, (1, 0): 8}
    assert bench.step() == {(0, 0): 1, (1, 0): 1}


def test_the_token_budget_is_shared_in_order_of_arrival():
    bench = Bench(pages=64, max_batch_tokens=20)
    for base in (0, 100, 200):
        bench.request(range(base, base + 12))
    assert bench.step() == {(0, 0): 12, (1, 0): 8}
    assert bench.step() == {(0, 0): 1, (1, 0): 4, (2, 0): 12}


def test_a_known_prefix_is_not_computed_again():
    bench = Bench()
    bench.request(range(16), output=1)
    bench.run()
    bench.request(range(16), output=1)
    assert bench.step() == {(1, 0): 4}, "all but the last block, which must give logits"
    bench.request([*range(14), 50, 51], output=1)
    assert bench.step() == {(2, 0): 4}


def test_without_prefix_reuse_all_is_computed():
    bench = Bench(prefix=False)
    for _ in range(2):
        bench.request(range(16), output=1)
        assert sum(bench.step().values()) == 16
        bench.run()
    assert bench.cache.counts().free == 32


def test_priority_comes_before_arrival():
    bench = Bench(max_running=1)
    bench.request(range(4), output=1)
    bench.request(range(10, 14), output=1, priority=5)
    bench.request(range(20, 24), output=1, priority=-1)
    bench.run()
    assert bench.finished == [(2, 0), (0, 0), (1, 0)]


def test_an_urgent_request_takes_the_place_of_a_lesser_one():
    bench = Bench(max_running=1)
    bench.request(range(4), output=5)
    bench.step()
    bench.request(range(10, 14), output=2, priority=-1)
    assert bench.step() == {(1, 0): 4}
    bench.run()
    assert bench.finished == [(1, 0), (0, 0)]
    assert bench.scheduler.preemptions == 1


def test_a_flood_of_one_tenant_is_not_before_all_others():
    bench = Bench(max_running=1)
    for base in range(0, 40, 10):
        bench.request(range(base, base + 8), output=1, tenant="many")
    bench.step()
    bench.request(range(100, 108), output=1, tenant="few")
    bench.request(range(110, 118), output=1, tenant="few")
    bench.request(range(120, 128), output=1, tenant="few", produced=((),))
    bench.run()
    # In turns from when the others came, and what began elsewhere first.
    assert [order for order, _ in bench.finished] == [0, 4, 6, 1, 5, 2, 3]


def test_long_outputs_and_prompts_count_for_their_tenant():
    bench = Bench(max_running=1)
    bench.request(range(4), output=20, tenant="long")
    bench.run()
    bench.request(range(10, 14), output=1, tenant="long")
    for base in (20, 30, 40):
        bench.request(range(base, base + 9), output=1, tenant="short")
    cancelled = bench.request(range(50, 80), tenant="other")
    bench.scheduler.remove(cancelled)
    bench.request(range(90, 94), output=1, tenant="other")
    bench.run()
    assert [order for order, _ in bench.finished] == [0, 2, 6, 3, 4, 1]


def test_when_pages_run_out_the_last_comer_waits():
    bench = Bench(pages=6)
    bench.request(range(8), output=12)
    bench.request(range(50, 58), output=12)
    bench.run()
    assert bench.scheduler.preemptions > 0
    assert bench.requests[0].preemptions == 0
    assert bench.finished == [(0, 0), (1, 0)]
    alone = Bench(pages=64)
    alone.request(range(8), output=12)
    alone.request(range(50, 58), output=12)
    alone.run()
    assert _outputs(bench) == _outputs(alone)


def test_a_decode_that_loses_its_pages_leaves_the_step_to_prompts():
    bench = Bench(pages=30, prefill_chunk=3, max_running=3, max_batch_tokens=8)
    bench.request(range(97), output=1)
    bench.request([1000, 1001], output=20)
    bench.run()  # no step is empty
    assert bench.scheduler.preemptions and len(bench.finished) == 2


def test_choices_share_the_prompt():
    bench = Bench()
    bench.request(range(10), output=4, n=3)
    assert bench.step() == {(0, 0): 10}
    pages = [list(choice.hold.pages) for choice in bench.choices]
    assert pages[0][:2] == pages[1] == pages[2]
    # The two tokens of the partial page are computed again beside each first own token.
    assert bench.step() == {(0, 0): 1, (0, 1): 3, (0, 2): 3}
    assert bench.step() == {(0, 0): 1, (0, 1): 1, (0, 2): 1}
    bench.run()


def test_choices_count_as_running_before_they_run():
    bench = Bench(max_running=4)
    bench.request(range(40), output=2, n=3)
    bench.request(range(50, 58), output=2, n=2)
    bench.request(range(60, 68), output=2)
    bench.step()
    assert [c.request.order for c in bench.scheduler.running] == [0]
    bench.run()
    assert sorted(bench.finished) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]


def test_prompt_logprobs_need_every_position_and_small_chunks():
    bench = Bench(vocab_size=2**24 // 6)
    bench.request(range(16), output=1)
    bench.run()
    choice = bench.request(range(16), output=1, prompt_logprobs=0)
    assert bench.step() == {(1, 0): 6}
    choice.request.prompt_logprobs += [None] * 6
    assert bench.step() == {(1, 0): 6}


def test_prompt_logprobs_of_several_requests_share_the_rows_of_a_step():
    bench = Bench(vocab_size=2**24 // 6)
    for base in (0, 100, 200):
        bench.request(range(base, base + 8), output=1, prompt_logprobs=0)
    assert bench.step() == {(0, 0): 6, (1, 0): 1, (2, 0): 1}, "6 rows, and one each to go on"
    bench.run()
    assert len(bench.finished) == 3


@pytest.mark.parametrize("state", ["waiting", "running", "forked"])
def test_removing_frees_everything(state):
    bench = Bench(max_running=3)
    choice = bench.request(range(10), output=4, n=3)
    if state != "waiting":
        bench.step()
    if state == "forked":
        bench.step()
    for one in choice.request.choices:
        bench.scheduler.remove(one)
    bench.audit()
    assert bench.cache.counts().used == 0
    assert not bench.scheduler.has_work
    bench.request(range(20), output=1, n=3)
    bench.run()


def test_removed_choices_do_not_pile_up_behind_one_that_waits():
    bench = Bench(max_running=1)
    bench.request(range(4), output=10**9)
    bench.step()
    bench.request(range(4))
    for _ in range(1000):
        bench.scheduler.remove(bench.request(range(4)))
    assert len(bench.scheduler._waiting) < 200
    assert bench.scheduler.num_waiting == 1


@given(seed=st.integers(0, 10**6))
def test_random_loads_finish_with_the_same_output(seed):
    """Small pools, odd chunks, cancels: whoever is not cancelled gets what it gets alone."""
    rng = random.Random(seed)
    pages = rng.randint(10, 24)
    bench = Bench(
        pages=pages,
        prefix=rng.random() < 0.8,
        max_running=rng.randint(3, 8),
        max_batch_tokens=rng.randint(8, 40),
        prefill_chunk=rng.randint(1, 16),
    )
    wanted = []
    for _ in range(rng.randint(1, 12)):
        size = rng.randint(1, 24)
        prompt = [*range(rng.choice([0, 0, 50]), 60)][:size]
        wanted.append((prompt, rng.randint(1, 12), rng.randint(-1, 1), rng.randint(1, 3)))
    cancelled = set()
    for prompt, output, priority, n in wanted:
        bench.request(prompt, output=output, priority=priority, n=n)
        if rng.random() < 0.6 and bench.scheduler.has_work:
            bench.step()
        if rng.random() < 0.15:
            victim = rng.choice(bench.requests)
            cancelled.add(victim.order)
            for choice in victim.choices:
                if choice.state != "finished":
                    bench.scheduler.remove(choice)
            bench.audit()
    bench.run()
    assert bench.cache.counts().used == 0
    for request, (prompt, output, _, n) in zip(bench.requests, wanted, strict=True):
        if request.order in cancelled:
            continue
        alone = Bench(pages=64, max_batch_tokens=64, prefill_chunk=64)
        alone.request(prompt, output=output, n=n)
        alone.run()
        assert [c.output for c in request.choices] == [c.output for c in alone.choices]
