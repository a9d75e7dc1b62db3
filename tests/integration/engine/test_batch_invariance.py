"""The same request gives the same text, whatever else runs and however it is computed."""

import random

import pytest

from inlay.core.messages import SamplingParams
from tests.integration.engine.engines import MODELS, Loaded, model_directory, prefer_loads

NUM_PROMPTS, OUTPUT = 64, 24
# Room for the longest request and little more; small pages run out often.
SMALL = {"pages": 110, "page_tokens": 2, "max_running": 16}

_WORDS = (
    "lantern harbour bridge carpenter ferry door narrow warm light stairs What does mean Define "
    "the a of and small large wood letters bread morning shore call function example 1 2 30 ?"
).split()


@pytest.fixture(scope="module", params=MODELS)
def loaded(request, tmp_path_factory):
    return Loaded(model_directory(request.param, tmp_path_factory))


@pytest.fixture(scope="module")
def work(loaded):
    """Prompts of 3 to 150 tokens, some with equal beginnings, and how to sample each."""
    rng = random.Random(5)
    shared = " ".join(rng.choices(_WORDS, k=30))
    prompts, params = [], []
    for number in range(NUM_PROMPTS):
        words = rng.choices(_WORDS, k=rng.choice([3, 10, 40, 70]))
        prompts.append((shared + " " if number % 3 == 0 else "") + " ".join(words))
        sampled = [
            {"temperature": 0.0},
            {"temperature": 0.0, "repetition_penalty": 1.2},
            {"temperature": 0.8},
            {"temperature": 1.0, "top_p": 0.9, "top_k": 50},
            {"temperature": 1.2, "min_p": 0.02, "presence_penalty": 0.5},
        ][number % 5]
        params.append(
            SamplingParams(max_tokens=OUTPUT, seed=number, ignore_eos=number % 8 != 0, **sampled)
        )
    return [loaded.text.encode(prompt) for prompt in prompts], params


@pytest.fixture(scope="module")
def alone(loaded, work):
    """Token ids of every prompt computed by itself, without reuse."""
    with loaded.engine(prefix=False) as engine:
        answers = [engine.generate(p, q)[0] for p, q in zip(*work, strict=True)]
    return [answer.choices[0].token_ids for answer in answers]


def _together(engine, work):
    answers = engine.generate(*work)
    assert all(answer.error is None for answer in answers)
    return [answer.choices[0].token_ids for answer in answers]


def test_together(loaded, work, alone):
    with loaded.engine() as engine:
        assert _together(engine, work) == alone


@pytest.mark.parametrize(("chunk", "budget"), [(1, 64), (7, 65), (33, 129)])
def test_in_odd_chunks(loaded, work, alone, chunk, budget):
    with loaded.engine(prefill_chunk=chunk, max_batch_tokens=budget) as engine:
        assert _together(engine, work) == alone


def test_after_prefix_hits(loaded, work, alone):
    with loaded.engine() as engine:
        _together(engine, work)
        before = engine.stats().prefix_hit_tokens
        assert _together(engine, work) == alone
        hits = engine.stats().prefix_hit_tokens - before
        assert hits > 0.6 * sum(len(prompt) for prompt in work[0])


def test_after_preemption(loaded, work, alone):
    with loaded.engine(**SMALL, prefill_chunk=20) as engine:
        assert _together(engine, work) == alone
        assert engine.stats().preemptions > 5


def test_after_preemption_without_prefix_reuse(loaded, work, alone):
    with loaded.engine(**SMALL, prefix=False) as engine:
        assert _together(engine, work) == alone
        assert engine.stats().preemptions > 5


def test_with_tiers_and_preemption(loaded, work, alone):
    with loaded.engine(**SMALL, prefill_chunk=20, tiers={"host": "256MiB"}) as engine:
        prefer_loads(engine)
        assert _together(engine, work) == alone
        assert _together(engine, work) == alone
        stats = engine.stats()
        assert stats.preemptions > 5
        assert stats.tier_written_bytes > 0
        assert stats.tier_hit_tokens["host"] > 0
        assert stats.tier_failures == 0


def test_on_other_pages(loaded, work, alone):
    with loaded.engine(page_tokens=5, pages=4000) as engine:
        assert _together(engine, work) == alone
