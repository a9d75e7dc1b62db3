import json
import math
import time

import pytest

from inlay.core.errors import ConfigError
from inlay.serve.bench.load import LoadConfig, arrival_times, measure_capacity, run_load
from inlay.serve.bench.statistics import summarise
from inlay.serve.openai_client import OpenAIClient
from tests.unit.serve.bench.fake_openai import FakeOpenAI, serving

PATH = "/v1/completions"


def bodies(count: int, tokens: int = 4) -> list[dict[str, object]]:
    return [{"prompt": f"p {i}", "max_tokens": tokens, "stream": True} for i in range(count)]


def test_arrivals_are_poisson() -> None:
    times = arrival_times(LoadConfig(request_rate=50, seed=3), 4000)
    gaps = [late - early for early, late in zip(times, times[1:], strict=False)]
    assert times[0] == 0 and min(gaps) >= 0
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.02, rel=0.1)
    assert deviation == pytest.approx(mean, rel=0.1)  # the mark of an exponential
    assert times == arrival_times(LoadConfig(request_rate=50, seed=3), 4000)


def test_an_infinite_rate_sends_at_once() -> None:
    assert arrival_times(LoadConfig(), 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "fields", [{"request_rate": 0}, {"request_rate": math.nan}, {"concurrency": 0}]
)
def test_limits(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LoadConfig(**fields)  # type: ignore[arg-type]


async def test_concurrency_is_held_and_times_are_those_of_the_server() -> None:
    with serving(FakeOpenAI(first_s=0.05, gap_s=0.02)) as fake:
        start_s = time.monotonic()
        client = OpenAIClient(fake.url)
        records, load = await run_load(client, PATH, bodies(9), LoadConfig(concurrency=3))
        await client.close()
        took_s = time.monotonic() - start_s
    assert fake.peak == 3
    summary = summarise(records, None)
    assert summary.failed == 0 and summary.output_tokens == 36
    assert summary.peak_concurrency == 3 and 1 < summary.concurrency <= 3
    assert summary.ttft_s is not None and summary.tpot_s is not None
    # Never less than the server takes. What a busy machine adds is in all times: three rounds, one
    # after the other, of a first token and three more each.
    assert summary.ttft_s.median >= 0.05 and summary.tpot_s.median >= 0.015
    assert summary.ttft_s.median + 3 * summary.tpot_s.median <= took_s / 2
    assert 0 < load.cpu_fraction < 1 and load.events_per_s > 0


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    with serving(FakeOpenAI(answer_after=10)) as fake:
        client = OpenAIClient(fake.url)
        records, _ = await run_load(client, PATH, bodies(10), LoadConfig(request_rate=100))
        await client.close()
    assert fake.peak == 10
    assert all(record.sent_s >= record.due_s for record in records)


async def test_failures_are_recorded_and_the_rest_goes_on() -> None:
    seen = []
    with serving(FakeOpenAI(fail_every=3)) as fake:
        client = OpenAIClient(fake.url)
        records, _ = await run_load(
            client, PATH, bodies(6), LoadConfig(concurrency=1), lambda record: seen.append(record)
        )
        await client.close()
    errors = [record.error for record in records]
    assert errors == [None, None, "HTTP 503: the queue is full"] * 2
    assert len(seen) == 6


async def test_the_client_takes_many_events() -> None:
    """An event costs the processor at most a hundred times what parsing its JSON costs just now."""
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": " word"}}], "id": "x" * 100})
    costs = []
    for _ in range(3):
        start_s = time.process_time()
        assert await measure_capacity(3000) > 0
        took_s = time.process_time() - start_s
        start_s = time.process_time()
        for _ in range(3000):
            json.loads(event)
        costs.append(took_s / (time.process_time() - start_s))
    assert min(costs) < 100
