"""What one engine does with one request or a few, on a tiny random model."""

import numpy as np
import pytest

from inlay.core.errors import ContextLengthError, OverloadedError, RequestError
from inlay.core.messages import SamplingParams, Structure
from tests.integration.engine.engines import drain, request

PROMPT = "The lantern hangs above the narrow door"


@pytest.fixture(scope="module")
def engine(tiny):
    with tiny.engine() as engine:
        yield engine


def _choice(engine, prompt=PROMPT, **params):
    answer = engine.generate(prompt, SamplingParams(**params))[0]
    assert answer.error is None
    return answer.choices[0]


def test_text_and_tokens_agree(engine):
    choice = _choice(engine, temperature=0.0, max_tokens=30, ignore_eos=True)
    assert len(choice.token_ids) == 30
    assert choice.finish_reason == "length"
    prompt = engine.text.encode(PROMPT)
    stream = engine.text.stream(prompt_ids=prompt)
    assert choice.text == "".join(map(stream.push, choice.token_ids)) + stream.flush()


def test_seeds_repeat_and_differ(engine):
    options = {"temperature": 1.0, "max_tokens": 12}
    first = _choice(engine, seed=1, **options).token_ids
    assert _choice(engine, seed=1, **options).token_ids == first
    assert _choice(engine, seed=2, **options).token_ids != first
    assert _choice(engine, **options).token_ids != _choice(engine, **options).token_ids


def test_token_prompts_and_lists(engine):
    ids = engine.text.encode(PROMPT)
    params = SamplingParams(temperature=0.0, max_tokens=5)
    by_text, by_ids = engine.generate([PROMPT, ids], params)
    assert by_text.choices == by_ids.choices == engine.generate(ids, params)[0].choices
    assert engine.generate([], params) == []


def test_several_choices_share_the_prompt(engine):
    prompt = list(range(3, 40))
    params = SamplingParams(temperature=1.0, max_tokens=10, seed=3, n=4, ignore_eos=True)
    engine.reset_prefix_cache()
    before = engine.stats()
    answer = engine.generate(prompt, params, trace=True)[0]
    after = engine.stats()
    texts = [tuple(choice.token_ids) for choice in answer.choices]
    assert len(set(texts)) == 4
    assert after.prompt_tokens - before.prompt_tokens == len(prompt)
    # Two full prompt pages are shared; every choice has one more for the rest and its output.
    assert after.pages_cached - before.pages_cached <= 2 + 4
    assert answer.trace.pages_used == 4 * 3
    alone = engine.generate(prompt, SamplingParams(temperature=1.0, max_tokens=10, seed=3))[0]
    assert tuple(alone.choices[0].token_ids) == texts[0], "choice 0 is the same without others"


@pytest.mark.parametrize("size", [15, 16, 17, 32])
def test_forks_at_page_borders(engine, size):
    prompt = list(range(3, 3 + size))
    params = {"temperature": 1.0, "max_tokens": 20, "seed": 8, "ignore_eos": True}
    two = engine.generate(prompt, SamplingParams(n=2, **params))[0]
    three = engine.generate(prompt, SamplingParams(n=3, **params))[0]
    assert [c.token_ids for c in two.choices] == [c.token_ids for c in three.choices[:2]]


def test_stop_texts_end_and_are_not_shown(engine):
    free = _choice(engine, temperature=0.0, max_tokens=40, ignore_eos=True)
    stop = free.text[10:14]
    choice = _choice(engine, temperature=0.0, max_tokens=40, ignore_eos=True, stop=("§§", stop))
    assert choice.text == free.text[: free.text.index(stop)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.token_ids == free.token_ids[: len(choice.token_ids)]


def test_a_stop_text_before_min_tokens_does_not_count(engine):
    options = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    free = _choice(engine, **options)
    first = next(char for char in free.text if char.isascii())
    choice = _choice(engine, stop=(first,), min_tokens=20, **options)
    assert len(choice.token_ids) >= 20


def test_stop_ids_end_without_text(engine):
    options = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    free = _choice(engine, **options)
    stop_id = free.token_ids[6]
    at = free.token_ids.index(stop_id)
    choice = _choice(engine, stop_token_ids=(stop_id,), **options)
    assert choice.token_ids == free.token_ids[: at + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop_id)
    assert free.text.startswith(choice.text)
    later = _choice(engine, stop_token_ids=(stop_id,), min_tokens=12, **options)
    assert stop_id not in later.token_ids[:12]


def test_the_models_end_ends_unless_ignored(engine):
    end = min(engine.text.eos_token_ids)
    wants_end = {"temperature": 0.0, "max_tokens": 6, "logit_bias": {end: 100.0}}
    choice = _choice(engine, **wants_end)
    assert (choice.token_ids, choice.text) == ([end], "")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert _choice(engine, ignore_eos=True, **wants_end).token_ids == [end] * 6
    later = _choice(engine, min_tokens=3, **wants_end)
    assert len(later.token_ids) == 4
    assert end not in later.token_ids[:3]


def test_logprobs_match_prompt_logprobs(engine):
    """What decoding reports is what a later reading of the same text reports."""
    prompt = engine.text.encode(PROMPT)
    choice = _choice(engine, prompt, temperature=0.7, max_tokens=15, logprobs=3, ignore_eos=True)
    whole = [*prompt, *choice.token_ids]
    params = SamplingParams(max_tokens=0, prompt_logprobs=3)
    read = engine.generate(whole, params)[0]
    assert read.choices[0].token_ids == []
    assert read.choices[0].finish_reason == "length"
    assert read.prompt_logprobs[0] is None
    assert len(read.prompt_logprobs) == len(whole)
    assert list(read.prompt_logprobs[len(prompt) :]) == choice.logprobs
    values = [value for entry in choice.logprobs for _, value in entry.top]
    assert values == sorted(values, reverse=True) or len(choice.logprobs) > 1
    assert all(np.isfinite(values))


def test_prompt_logprobs_in_chunks_and_with_a_warm_cache(tiny):
    prompt = list(range(3, 90))
    params = SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=0)
    with tiny.engine() as engine:
        expected = engine.generate(prompt, params)[0]
        again = engine.generate(prompt, params)[0]
        assert again.prompt_logprobs == expected.prompt_logprobs
        assert again.cached_tokens == 0
    with tiny.engine(prefill_chunk=13, max_batch_tokens=64) as engine:
        assert engine.generate(prompt, params)[0].prompt_logprobs == expected.prompt_logprobs


def test_a_long_prompt_sent_twice_is_taken_from_the_cache(engine):
    prompt = [(7 * i) % 500 for i in range(700)]
    params = SamplingParams(temperature=0.0, max_tokens=8)
    engine.reset_prefix_cache()
    first, second = engine.generate(prompt, params)[0], engine.generate(prompt, params)[0]
    assert (first.cached_tokens, second.cached_tokens) == (0, 688)
    assert first.choices == second.choices


def test_salts_separate_the_cache(engine):
    ids = [(11 * i) % 500 for i in range(64)]
    cached = []
    for number, salt in enumerate(["a", "a", "b", ""]):
        engine.add(request(f"salt-{number}", ids, max_tokens=1, cache_salt=salt))
        cached.append(drain(engine)[f"salt-{number}"][0].cached_tokens)
    assert cached == [0, 48, 0, 0]


def test_outputs_carry_counts_times_and_trace(engine):
    engine.add(request("t", range(3, 23), max_tokens=4, temperature=0.0, trace=True))
    outputs = drain(engine)["t"]
    assert len(outputs) == 4
    first, *middle, last = outputs
    assert (first.prompt_tokens, first.cached_tokens) == (20, 0)
    assert all(o.prompt_tokens is None and o.times is None for o in middle)
    assert [o.finished for o in outputs] == [False, False, False, True]
    times = last.times
    assert times.arrival_s <= times.scheduled_s <= times.first_token_s <= times.finished_s
    counts = np.array(last.trace.expert_counts_LE)
    # Every token but the last one went through 3 of 8 experts in 2 layers.
    assert counts.shape == (2, 8)
    assert counts.sum(axis=1).tolist() == [23 * 3, 23 * 3]
    assert last.trace.pages_used == 2
    assert last.trace.pages_reused == 0


def test_a_trace_counts_every_token_once(tiny):
    """Also where forks and preempted choices compute tokens again."""
    with tiny.engine(pages=24, page_tokens=4, prefix=False) as engine:
        params = SamplingParams(max_tokens=20, ignore_eos=True, n=3, seed=0)
        answers = engine.generate([list(range(3, 13)), list(range(20, 33))], params, trace=True)
        assert sum(answer.trace.preemptions for answer in answers) > 0
        for answer, prompt in zip(answers, (10, 13), strict=True):
            counts = np.array(answer.trace.expert_counts_LE).sum(axis=1)
            assert counts.tolist() == [3 * (prompt + 3 * 19)] * 2


def test_stats_add_up(tiny):
    with tiny.engine(pages=100) as engine:
        start = engine.stats()
        assert (start.steps, start.generated_tokens, start.pages_free) == (0, 0, 100)
        engine.generate(
            [[5] * 40, [5] * 40, [6] * 3], SamplingParams(max_tokens=6, ignore_eos=True)
        )
        stats = engine.stats()
        assert stats.prompt_tokens == stats.prefix_query_tokens == 83
        assert stats.generated_tokens == 18
        assert stats.pages_free + stats.pages_cached == stats.pages_total == 100
        assert (stats.running, stats.waiting) == (0, 0)
        assert engine.reset_prefix_cache() == stats.pages_cached
        assert engine.stats().pages_free == 100


def test_a_full_queue_refuses(tiny):
    with tiny.engine(max_running=1, max_waiting=2) as engine:
        for number in range(3):
            engine.add(request(number, [5, 6, 7], max_tokens=5))
            if number == 0:
                engine.step()
        with pytest.raises(OverloadedError, match="2 requests are waiting, the limit is 2"):
            engine.add(request("late", [5], max_tokens=5))
        outputs = drain(engine)
        assert all(outputs[str(number)][-1].finished for number in range(3))


def test_requests_that_cannot_be_served_are_refused_at_once(tiny):
    with tiny.engine(pages=4) as engine:
        assert engine.info.max_context_tokens == 64
        with pytest.raises(ContextLengthError, match="70 tokens, and the context holds 64"):
            engine.add(request("a", [5] * 70))
        with pytest.raises(ContextLengthError, match="together 65"):
            engine.add(request("a", [5] * 60, max_tokens=5))
        engine.add(request("a", [5] * 60, max_tokens=4, ignore_eos=True))
        with pytest.raises(RequestError, match="request id 'a' is in use"):
            engine.add(request("a", [5]))
        assert sum(len(o.choices[0].token_ids) for o in drain(engine)["a"]) == 4


def test_without_max_tokens_the_context_is_the_limit(tiny):
    with tiny.engine(pages=3) as engine:
        answer = engine.generate([5] * 10, SamplingParams(ignore_eos=True))[0]
        assert len(answer.choices[0].token_ids) == 38
        assert answer.choices[0].finish_reason == "length"


def test_more_prompts_than_the_queue_holds(tiny):
    with tiny.engine(max_running=4, max_waiting=3) as engine:
        answers = engine.generate([[n] for n in range(40)], SamplingParams(max_tokens=3))
        assert [len(a.choices) for a in answers] == [1] * 40
        assert all(a.choices[0].finish_reason for a in answers)


def test_generate_raises_and_leaves_nothing_behind(tiny):
    with tiny.engine() as engine:
        good, bad = SamplingParams(max_tokens=4), SamplingParams(structure=Structure("regex", "("))
        with pytest.raises(RequestError, match="unclosed group"):
            engine.generate([PROMPT, PROMPT], [good, bad])
        with pytest.raises(RequestError, match="2 prompts came with 1 params"):
            engine.generate([PROMPT, PROMPT], [good])
        assert engine.num_live == 0
        assert engine.generate(PROMPT, good)[0].choices[0].finish_reason


def test_cancel_frees_pages_at_once(tiny):
    with tiny.engine(pages=50) as engine:
        engine.add(request("a", range(3, 60), n=3, max_tokens=500, ignore_eos=True))
        for _ in range(5):
            engine.step()
        assert engine.stats().running == 3
        engine.cancel("a")
        assert engine.cache.counts().used == 0
        assert engine.has_work
        (output,) = engine.step()
        assert output.finished
        assert [c.finish_reason for c in output.choices] == ["cancel"] * 3
        engine.cancel("a")
        engine.cancel("never heard of")
        assert not engine.has_work


@pytest.mark.parametrize("when", ["waiting", "compiling"])
def test_cancel_before_the_first_step(tiny, when):
    with tiny.engine() as engine:
        structure = Structure("regex", "[a-f]{50}") if when == "compiling" else None
        engine.add(request("a", [5, 6], n=2, structure=structure))
        engine.cancel("a")
        assert engine.num_live == 0
        (output,) = engine.step()
        assert [c.finish_reason for c in output.choices] == ["cancel", "cancel"]
        engine.wait(5.0)
        assert engine.step() == []
