import pytest

from inlay.cache.load_costs import LoadCosts

PAGE_BYTES, PAGE_TOKENS = 1_000_000, 16


def test_rates_follow_what_is_seen():
    costs = LoadCosts(PAGE_BYTES, PAGE_TOKENS)
    for _ in range(30):
        costs.observe_prefill(512, 0.5)
        costs.observe_load(10, 0.01)
        costs.observe_find(0.0005)
    assert costs.prefill_s(1024) == pytest.approx(1.0, rel=0.01)
    assert costs.load_s(100) == pytest.approx(0.1, rel=0.05)
    assert costs.find_s == pytest.approx(0.0005, rel=0.02)


def test_later_observations_count_more():
    costs = LoadCosts(PAGE_BYTES, PAGE_TOKENS)
    for seconds in [0.1] * 20 + [0.4] * 10:
        costs.observe_load(10, seconds)
    assert 0.35 < costs.load_s(10) <= 0.4


def test_until_something_is_seen_loading_is_worth_a_try():
    costs = LoadCosts(PAGE_BYTES, PAGE_TOKENS)
    assert costs.load_s(1) < costs.prefill_s(PAGE_TOKENS)


def test_steps_of_few_tokens_say_nothing():
    costs = LoadCosts(PAGE_BYTES, PAGE_TOKENS)
    before = costs.prefill_s(100)
    costs.observe_prefill(PAGE_TOKENS - 1, 5.0)
    assert costs.prefill_s(100) == before
