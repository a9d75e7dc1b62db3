"""Workloads, load and figures of the cluster's cases."""

import socketserver
import threading
from collections.abc import Iterator

import pytest

from benchmarks.cluster import figures, workloads
from benchmarks.cluster.load import answered, play, refused
from benchmarks.cluster.workloads import PAGE_TOKENS, Arrival
from inlay.cluster.slo import SloClass
from inlay.serve.bench.records import RequestRecord

EVENTS = (
    b'data: {"choices":[{"text":"a","index":0,"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"text":"b","index":0,"finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":1}}}\n\ndata: [DONE]\n\n',
)


class Streams(socketserver.StreamRequestHandler):
    """Refuses prompts of one token, breaks off at two, and streams to others, in odd pieces."""

    def handle(self) -> None:
        while head := self._head():
            (size,) = [int(line[15:]) for line in head if line[:15] == b"Content-Length:"]
            prompt = self.rfile.read(size).partition(b"[")[2].partition(b"]")[0].split(b",")
            if len(prompt) == 1:
                self.wfile.write(b"HTTP/1.1 429 no\r\nContent-Length: 4\r\n\r\nfull")
                continue
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if len(prompt) == 2:
                return
            stream = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS)
            for start in range(0, len(stream), 50):
                self.wfile.write(stream[start : start + 50])
            self.wfile.write(b"0\r\n\r\n")

    def _head(self) -> list[bytes]:
        """The lines of the next request, none at the end of the connection."""
        lines = []
        while (line := self.rfile.readline()).strip():
            lines.append(line)
        return lines


@pytest.fixture
def url() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Streams) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_answers_refusals_and_broken_streams(url: str) -> None:
    arrivals = [Arrival(0.002 * k, [7] * (1 + k % 4), 2) for k in range(8)]
    records = play(url, arrivals, timeout_s=20)
    assert [record.text for record in records] == ["", "", "ab", "ab"] * 2
    assert [refused(record) for record in records] == [True, False, False, False] * 2
    assert [record.ok for record in records] == [False, False, True, True] * 2
    assert {(record.cached_tokens, record.output_tokens) for record in records if record.ok} == {
        (1, 2)
    }
    for record, arrival in zip(records, arrivals, strict=True):
        assert record.due_s - records[0].due_s == pytest.approx(arrival.time_s)
        assert record.due_s - 0.002 < record.sent_s <= record.finished_s  # timers have milliseconds
    with pytest.raises(RuntimeError, match=r"4 of 8 requests failed: HTTP 429: full"):
        answered(records)


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_a_trace_keeps_whole_sessions_and_what_they_share(name: str) -> None:
    arrivals = workloads.by_name(name, 1, 120, min_turns=2, max_blocks=150)
    assert arrivals == workloads.by_name(name, 1, 120, min_turns=2, max_blocks=150)
    assert 100 <= len(arrivals) <= 120
    assert all(a.time_s <= b.time_s for a, b in zip(arrivals, arrivals[1:], strict=False))
    longest = max(len(arrival.prompt) for arrival in arrivals)
    assert PAGE_TOKENS < longest <= 150 * PAGE_TOKENS
    total = sum(len(arrival.prompt) for arrival in arrivals)
    assert 0.3 * total < workloads.reusable_tokens(arrivals) < total
    pages = workloads.footprint_pages(arrivals)
    assert total - workloads.reusable_tokens(arrivals) >= PAGE_TOKENS * pages


def test_drawn_workloads_share_what_they_say() -> None:
    alone = workloads.no_sharing(0, 50)
    assert workloads.reusable_tokens(alone) == 0
    together = workloads.one_first_block(0, 50, shared_blocks=3)
    assert workloads.reusable_tokens(together) == 49 * 3 * PAGE_TOKENS
    assert workloads.reusable_tokens(workloads.chat(0, 60)) > 0


def test_rates() -> None:
    arrivals = workloads.no_sharing(0, 101)
    assert workloads.at_rate(arrivals, 5.0)[-1].time_s == pytest.approx(20.0)
    assert workloads.at_rate(arrivals, 5.0)[0].time_s == 0.0
    drawn = workloads.poisson(arrivals, 5.0, seed=1)
    assert drawn[0].time_s == 0.0
    assert drawn[-1].time_s == pytest.approx(20.0, rel=0.4)
    assert [one.prompt for one in drawn] == [one.prompt for one in arrivals]


def record(due_s: float, *token_times_s: float, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        index=0,
        due_s=due_s,
        sent_s=due_s + 0.01,
        token_times_s=list(token_times_s),
        cached_tokens=16,
        finished_s=token_times_s[-1] if token_times_s else due_s,
        error=error,
    )


def test_figures() -> None:
    records = [record(0, 0.1, 0.2, 0.3), record(1, 1.3, 1.4, 2.4), record(2, error="HTTP 429: x")]
    assert figures.span_s(records) == pytest.approx(3.0)
    assert figures.refused_share(records) == pytest.approx(1 / 3)
    assert figures.goodput(records, SloClass(ttft_s=0.2, tbt_s=0.2)) == pytest.approx(1 / 3)
    assert figures.goodput(records, SloClass(ttft_s=0.4)) == pytest.approx(2 / 3)
    found = figures.times(records[:2])
    assert found["hit_tokens"] == 32
    assert found["mean_ttft_s"] == pytest.approx(0.2)
    assert figures.throughput(records[:2]) == pytest.approx(2 / 2.4)
    assert figures.p99_itl_s(records[:2]) == pytest.approx(1.0, rel=0.1)
    slo = figures.objectives(records[:1], 3.0)
    assert (slo.ttft_s, slo.tbt_s) == (pytest.approx(0.3), pytest.approx(0.3))
    assert figures.in_turns(["a", "b", "c"], 4) == ["b", "c", "a"]
