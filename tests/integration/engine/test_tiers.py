"""Engines with a real store behind their pages: eviction, restarts, cut-offs."""

import random
import time

import pytest

from inlay.core.messages import SamplingParams
from tests.integration.engine.engines import drain, prefer_loads, request

PARAMS_DICT = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
PARAMS = SamplingParams(**PARAMS_DICT)


def _prompts(count, length=200, seed=1):
    rng = random.Random(seed)
    return [[rng.randrange(3, 90) for _ in range(length)] for _ in range(count)]


@pytest.fixture(scope="module")
def prompts():
    return _prompts(6)


@pytest.fixture(scope="module")
def expected(tiny, prompts):
    """The outputs without any reuse."""
    with tiny.engine(prefix=False) as engine:
        return _texts(engine.generate(prompts, PARAMS))


def _texts(answers):
    assert all(answer.error is None for answer in answers)
    return [answer.choices[0].token_ids for answer in answers]


def _settle(engine):
    """Let copies that have begun, and those that follow of themselves, come to their end."""
    while engine._tiers.busy:
        engine._tiers.wait(5.0)
        engine.step()


def _one_by_one(engine, prompts):
    return [engine.generate(prompt, PARAMS, trace=True)[0] for prompt in prompts]


def test_what_was_evicted_comes_back_from_the_host(tiny, prompts, expected):
    with tiny.engine(pages=30, tiers={"host": "64MiB"}) as engine:
        prefer_loads(engine)
        computed = []
        for prompt in prompts:
            computed += _one_by_one(engine, [prompt])
            _settle(engine)  # no step waits for a copy: the next prompt could take its pages
        assert _texts(computed) == expected
        answers = _one_by_one(engine, prompts)
        assert _texts(answers) == expected
        for answer in answers:
            assert answer.cached_tokens == 192
            assert answer.trace.tier_tokens["host"] >= 176
            assert answer.trace.pages_reused == 12
        stats = engine.stats()
        assert stats.tier_hit_tokens["host"] == sum(a.trace.tier_tokens["host"] for a in answers)
        assert stats.tier_failures == 0


def test_the_disk_serves_after_a_restart(tiny, prompts, expected, tmp_path):
    tiers = {"host": "64MiB", "disk": f"{tmp_path}/kv:1GiB"}
    with tiny.engine(tiers=tiers) as engine:
        assert _texts(_one_by_one(engine, prompts)) == expected
        assert engine.flush(60.0)
    with tiny.engine(tiers=tiers) as engine:
        prefer_loads(engine)
        answers = _one_by_one(engine, prompts)
        assert _texts(answers) == expected
        assert [answer.cached_tokens for answer in answers] == [192] * len(prompts)
        assert all(answer.trace.tier_tokens == {"disk": 192} for answer in answers)


@pytest.mark.parametrize("write", ["second_hit", "evict"])
def test_other_times_to_write(tiny, prompts, expected, write):
    with tiny.engine(pages=30, tiers={"host": "64MiB", "write": write}) as engine:
        prefer_loads(engine)
        for _ in range(2):
            first = _one_by_one(engine, prompts[:1] * 2)
            assert _texts(first) == expected[:1] * 2
            _settle(engine)
            for prompt in prompts[1:]:
                _one_by_one(engine, [prompt])
                _settle(engine)
        assert first[0].trace.tier_tokens["host"] > 0
        written = engine.stats().tier_written_bytes // engine.info.page_bytes
        assert written < 15 if write == "second_hit" else written > 40


def test_other_namespaces_find_nothing(tiny, prompts, tmp_path):
    tiers = {"host": "64MiB", "disk": f"{tmp_path}/kv:1GiB"}
    with tiny.engine(tiers=tiers) as engine:
        _one_by_one(engine, prompts[:1])
        assert engine.flush(60.0)
    with tiny.engine(tiers={**tiers, "secret": "another"}) as engine:
        assert _one_by_one(engine, prompts[:1])[0].cached_tokens == 0
    with tiny.engine(tiers=tiers, page_tokens=8) as engine:
        assert _one_by_one(engine, prompts[:1])[0].cached_tokens == 0


def test_tokens_of_an_answer_are_kept_too(tiny, prompts):
    """The next round of a conversation finds the answer of the one before."""
    with tiny.engine(pages=40, tiers={"host": "64MiB"}) as engine:
        prefer_loads(engine)
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        first = engine.generate(prompts[0], params)[0].choices[0].token_ids
        assert engine.flush(60.0)
        _one_by_one(engine, prompts[1:])
        longer = [*prompts[0], *first, 5, 6, 7]
        answer = engine.generate(longer, PARAMS, trace=True)[0]
        assert answer.cached_tokens == (240 - 1) // 16 * 16
        assert answer.trace.tier_tokens["host"] > 200


def test_loading_that_is_slower_than_computing_is_cut_off(tiny, prompts, expected):
    with tiny.engine(pages=30, tiers={"host": "64MiB"}) as engine:
        _one_by_one(engine, prompts)
        assert engine.flush(60.0)
        engine._tiers.loader.costs.observe_load(10**6, 10**9)
        assert _texts(_one_by_one(engine, prompts)) == expected
        stats = engine.stats()
        assert stats.tier_cut_tokens > 0
        assert stats.tier_hit_tokens.get("host", 0) == 0


def test_prompts_in_a_queue_and_forks(tiny, prompts):
    many = SamplingParams(temperature=1.0, max_tokens=12, seed=3, n=3, ignore_eos=True)
    with tiny.engine(prefix=False) as engine:
        plain = [[c.token_ids for c in a.choices] for a in engine.generate(prompts, many)]
    with tiny.engine(pages=48, max_running=4, tiers={"host": "64MiB"}) as engine:
        prefer_loads(engine)
        for _ in range(3):
            answers = engine.generate(prompts, many)
            assert [[c.token_ids for c in a.choices] for a in answers] == plain
            assert engine.flush(60.0)
        assert engine.stats().tier_hit_tokens["host"] > 0


def test_requests_cancelled_at_any_step_leave_no_page_behind(tiny, prompts):
    with tiny.engine(pages=40, max_running=2, tiers={"host": "64MiB"}) as engine:
        _one_by_one(engine, prompts)
        rng = random.Random(4)
        for round_ in range(30):
            for number, prompt in enumerate(prompts[:4]):
                engine.add(request(f"{round_}-{number}", prompt, max_tokens=4, ignore_eos=True))
            for _ in range(rng.randrange(6)):
                engine.step()
            engine.audit()
            for number in range(4):
                if rng.random() < 0.7:
                    engine.cancel(f"{round_}-{number}")
            drain(engine)
        assert engine.flush(60.0)
        ends = time.monotonic() + 60
        while engine.cache.counts().used and time.monotonic() < ends:
            engine.step()  # a load of a request that is cancelled keeps its pages until it is over
            time.sleep(0.005)
        engine.audit()
        assert engine.cache.counts().used == 0


def test_prompt_logprobs_are_computed_not_loaded(tiny, prompts):
    with tiny.engine(pages=30, tiers={"host": "64MiB"}) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0)
        first = engine.generate(prompts[0], params)[0]
        _one_by_one(engine, prompts[1:])
        assert engine.flush(60.0)
        again = engine.generate(prompts[0], params)[0]
        assert again.prompt_logprobs == first.prompt_logprobs
        assert again.cached_tokens == 0


def test_a_paused_session_makes_room_and_is_back_for_its_next_turn(tiny):
    agent, *others = _prompts(4, length=200, seed=7)
    with tiny.engine(pages=45, tiers={"host": "64MiB", "write": "evict"}) as engine:
        prefer_loads(engine)

        def turn(prompt, session=""):
            message = request("turn", prompt, session=session, **PARAMS_DICT)
            engine.add(message)
            return drain(engine)["turn"]

        turn(others[0])
        turn(agent, "agent")
        paused = engine.pause_session("agent")
        assert paused.num_blocks == paused.on_device == 12
        engine.step()
        _settle(engine)  # pages that are being copied are not free
        turn(others[1])
        turn(others[2])
        _settle(engine)
        assert engine.pause_session("agent").on_device < 12
        # It went before the blocks of others that were used before it.
        assert engine.generate(others[0], PARAMS, trace=True)[0].trace.tier_tokens == {}
        assert engine.generate(others[0], PARAMS)[0].cached_tokens == 192

        engine.resume_session("agent")
        for _ in range(200):
            if engine.resume_session("agent").on_device == 12:
                break
            _settle(engine)
            engine.step()
        (first, *_) = turn([*agent, 5, 6, 7], "agent")
        assert first.cached_tokens == 192
        assert not first.tier_tokens, "it had to be loaded when the turn came"


def test_a_hint_about_a_session_that_nobody_knows(tiny):
    with tiny.engine(pages=30) as engine:
        assert engine.pause_session("nobody").num_blocks == 0
        assert engine.resume_session("nobody").num_blocks == 0


def test_paused_texts_come_back_from_the_host(tiny, prompts, expected):
    with tiny.engine(pages=30, tiers={"host": "64MiB"}) as engine:
        prefer_loads(engine)
        engine.add(request("paused", prompts[0], trace=True, **PARAMS_DICT))
        tokens = []
        while len(tokens) < 3:
            for output in engine.step():
                tokens += [one for delta in output.choices for one in delta.token_ids]
        (paused,) = engine.pause_rollouts()
        assert list(paused.choices[0].token_ids) == tokens
        _settle(engine)
        assert _texts(_one_by_one(engine, prompts[1:])) == expected[1:]  # they take its pages
        _settle(engine)
        engine.resume_rollouts()
        outputs = drain(engine)["paused"]
        tokens += [one for output in outputs for delta in output.choices for one in delta.token_ids]
        assert tuple(tokens) == tuple(expected[0])
