from inlay.core.instance_messages import StepSample
from inlay.engine.load import step_sample, work_ahead
from inlay.engine.scheduler import Chunk
from tests.support.scheduler_bench import Bench


def _ahead(bench):
    requests = {choice.request: None for choice in bench.choices if choice.state != "finished"}
    return work_ahead(requests, bench.cache)


def test_what_is_ahead_of_running_and_waiting_choices():
    bench = Bench(pages=64, max_running=1)
    bench.request(range(40), output=3)
    bench.request(range(100, 130), output=1)
    assert _ahead(bench).prefill_tokens == 70
    bench.step()
    ahead = _ahead(bench)
    assert (ahead.prefill_tokens, ahead.context_tokens) == (70 - 16, 0)
    bench.step()
    bench.step()
    ahead = _ahead(bench)
    assert (ahead.prefill_tokens, ahead.context_tokens) == (30, 41)


def test_what_the_cache_has_is_not_ahead():
    bench = Bench(pages=64)
    bench.request(range(40), output=1)
    bench.run()
    bench.request(range(40), output=1)
    left = _ahead(bench).prefill_tokens
    assert 0 < left <= 8
    bench.step()
    assert _ahead(bench).prefill_tokens == 0


def test_a_sample_tells_decodes_from_prefills():
    bench = Bench(pages=64)
    bench.request(range(40), output=3)
    (choice,) = bench.choices
    chunks = [
        Chunk(choice, 0, 4, False),  # 1 + 2 + 3 + 4 pairs
        Chunk(choice, 10, 11, False),  # the rest of a budget, no decode
        Chunk(choice, 20, 21, True),
        Chunk(choice, 30, 31, True),
    ]
    assert step_sample(chunks, 0.5) == StepSample(5, 10 + 11, 2, 21 + 31, 0.5)
