"""What a run comes to: times and goodput of its records. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.cluster.load import refused
from inlay.cluster.slo import SloClass, meets, tbt_s
from inlay.serve.bench.records import RequestRecord


def times(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Mean and P99 of TTFT in seconds, from when a request was due, and prompt tokens hit."""
    ttfts_s = [ttft_s(record) for record in records]
    return {
        "hit_tokens": float(sum(record.cached_tokens or 0 for record in records)),
        "mean_ttft_s": float(np.mean(ttfts_s)),
        "p99_ttft_s": float(np.percentile(ttfts_s, 99)),
    }


def ttft_s(record: RequestRecord) -> float:
    """From when a request was due, so that a client that is late hides nothing."""
    return record.token_times_s[0] - record.due_s


def p99_itl_s(records: Sequence[RequestRecord]) -> float:
    """Of all gaps between tokens of all records together."""
    return float(np.percentile([gap for record in records for gap in record.itl_s], 99))


def objectives(records: Sequence[RequestRecord], times_p90: float) -> SloClass:
    """What may take so many times the 90th percentile that these records, of no load, show."""
    return SloClass(
        name="default",
        ttft_s=times_p90 * float(np.percentile([ttft_s(record) for record in records], 90)),
        tbt_s=times_p90 * float(np.percentile([tbt_s(record.itl_s) for record in records], 90)),
    )


def goodput(records: Sequence[RequestRecord], slo: SloClass) -> float:
    """Requests a second that kept their objectives, over the time in which they were due."""
    kept = sum(record.ok and meets(slo, ttft_s(record), record.itl_s) for record in records)
    return kept / span_s(records)


def span_s(records: Sequence[RequestRecord]) -> float:
    """From the first request's time to the last one's, and one mean gap."""
    first_s, last_s = records[0].due_s, records[-1].due_s
    return (last_s - first_s) * len(records) / (len(records) - 1)


def throughput(records: Sequence[RequestRecord]) -> float:
    """Requests a second from the first one's time to the last answer's end."""
    return len(records) / (max(record.finished_s for record in records) - records[0].due_s)


def refused_share(records: Sequence[RequestRecord]) -> float:
    """Of all requests, those that admission did not take."""
    return sum(map(refused, records)) / len(records)


def in_turns(names: Sequence[str], repeat: int) -> list[str]:
    """The names, begun at another one each time, so that none is always first."""
    first = repeat % len(names)
    return [*names[first:], *names[:first]]


def by_name(runs: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """One figure of several runs."""
    return [run[name] for run in runs]
