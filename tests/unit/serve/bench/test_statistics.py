import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ConfigError
from inlay.serve.bench.records import RequestRecord
from inlay.serve.bench.statistics import (
    Slo,
    parse_slo,
    peak_concurrency,
    percentile,
    spread,
    summarise,
)


def record(index: int, sent_s: float, times: list[float], **fields: object) -> RequestRecord:
    found = RequestRecord(index=index, due_s=sent_s, sent_s=sent_s, token_times_s=times)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.sampled_from([0, 1, 50, 90, 95, 99, 100]),
)
def test_percentiles_agree_with_numpy(values: list[float], percent: int) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_spread() -> None:
    found = spread([random.Random(1).gauss(5, 2) for _ in range(1)] * 3)
    assert found is not None and found.mean == pytest.approx(found.max)
    found = spread(list(range(1, 101)))
    assert found is not None
    assert (found.count, found.mean, found.median, found.max) == (100, 50.5, 50.5, 100)
    assert found.p90 == pytest.approx(90.1) and found.p99 == pytest.approx(99.01)
    assert spread([]) is None


def test_times_of_a_request() -> None:
    found = record(0, 1.0, [1.5, 1.6, 1.9], output_tokens=5)
    assert found.ttft_s == pytest.approx(0.5)
    assert found.e2e_s == pytest.approx(0.9)
    assert found.tpot_s == pytest.approx(0.4 / 4)  # by tokens, not by events
    assert found.itl_s == pytest.approx([0.1, 0.3])
    assert record(0, 0.0, [0.1], output_tokens=1).tpot_s is None


def test_summary() -> None:
    records = [
        record(0, 10.0, [10.5, 11.0], prompt_tokens=8, output_tokens=2, cached_tokens=4),
        record(1, 10.5, [11.0, 12.0], prompt_tokens=2, output_tokens=2),
        record(2, 11.0, [], error="refused"),
    ]
    summary = summarise(records, Slo(e2e_s=1.2))
    assert (summary.requests, summary.failed) == (3, 1)
    assert summary.duration_s == pytest.approx(2.0)
    assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (10, 4, 4)
    assert summary.request_rps == pytest.approx(1.0)
    assert summary.total_tps == pytest.approx(7.0)
    assert summary.concurrency == pytest.approx((1.0 + 1.5) / 2)
    assert summary.peak_concurrency == 2
    assert summary.goodput_rps == pytest.approx(0.5)
    assert summary.goodput_fraction == pytest.approx(1 / 3)
    assert summary.output_tokens_from == "usage"
    assert summary.retokenised_tokens is None


def test_summary_of_nothing() -> None:
    summary = summarise([record(0, 1.0, [], error="no")], None)
    assert summary.failed == 1 and summary.output_tps == 0 and summary.ttft_s is None
    assert summary.goodput_rps is None


def test_a_request_must_meet_every_limit() -> None:
    found = record(0, 0.0, [0.2, 0.3, 0.4], output_tokens=3)
    assert Slo(ttft_s=0.2, tpot_s=0.11, e2e_s=0.4).met_by(found)
    assert not Slo(ttft_s=0.19, tpot_s=0.11, e2e_s=0.4).met_by(found)
    assert not Slo(tpot_s=0.05).met_by(found)
    assert Slo(tpot_s=0.05).met_by(record(0, 0.0, [0.2], output_tokens=1))
    assert not Slo().met_by(record(0, 0.0, [], error="x"))


def test_ends_free_their_place_before_starts_take_it() -> None:
    assert peak_concurrency([record(0, 0.0, [1.0]), record(1, 1.0, [2.0])]) == 1


def test_slo_text() -> None:
    assert parse_slo("ttft=500ms, tpot=.05,e2e=10s") == Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=10)
    for wrong in ("ttft", "ttft=0", "itl=1", "ttft=1h", "ttft=-1"):
        with pytest.raises(ConfigError, match="for example"):
            parse_slo(wrong)


def test_streamed_events_of_all_kinds() -> None:
    found = RequestRecord(index=0, due_s=0.0, sent_s=1.0)
    for number, data in enumerate(
        [
            b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
            b'{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}',
            b'{"choices":[{"index":0,"delta":{"content":"a"}}]}',
            b'{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}',
            b'{"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}',
            b'{"choices":[{"index":0,"text":""}]}',
            b'{"choices":[{"index":0,"delta":{"content":""}}]}',
            b'{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}',
            b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}',
            b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}',
            b"[DONE]",
        ]
    ):
        found.on_event(data, 2.0 + number)
    assert found.text == "hma{b"
    assert found.token_times_s == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert (found.prompt_tokens, found.output_tokens, found.finish_reason) == (3, 4, "length")


def test_a_last_token_without_text_is_counted_when_usage_tells() -> None:
    for tokens, expected in ((2, 2), (1, 1), (3, 1)):
        found = RequestRecord(index=0, due_s=0.0)
        found.on_event(b'{"choices":[{"index":0,"text":"a"}]}', 1.0)
        found.on_event(b'{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}', 2.0)
        usage = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % tokens
        found.on_event(usage, 3.0)
        assert len(found.token_times_s) == expected


def test_an_error_event_fails_the_request() -> None:
    found = RequestRecord(index=0, due_s=0.0)
    found.on_event(b'{"error":{"message":"the engine died","code":500}}', 1.0)
    assert found.error == "the engine died" and not found.ok
