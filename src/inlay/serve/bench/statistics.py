"""Figures from records: throughput, percentiles, goodput. Pure: no clock, no output."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inlay.core.errors import ConfigError
from inlay.serve.bench.records import RequestRecord

_SLO_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3}


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Limits that a request must meet, all of them, to count for goodput. Seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        """Whether an answered request kept every limit; a single token has no TPOT to miss."""
        tpot_s = record.tpot_s
        return record.ok and all(
            limit is None or value is None or value <= limit
            for limit, value in (
                (self.ttft_s, record.ttft_s),
                (self.tpot_s, tpot_s),
                (self.e2e_s, record.e2e_s),
            )
        )


def parse_slo(text: str) -> Slo:
    """Read `ttft=500ms,tpot=0.05,e2e=10s`; numbers without a unit are seconds.

    Raises:
        ConfigError: another name, or a value that is no positive time.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(s|ms)?", value.strip())
        if name not in ("ttft", "tpot", "e2e") or match is None or float(match[1]) <= 0:
            raise ConfigError(
                f"--slo {part.strip()}: write ttft=, tpot= or e2e= with a time above 0, "
                "for example ttft=500ms,tpot=0.05,e2e=10s"
            )
        limits[f"{name}_s"] = float(match[1]) * _SLO_UNITS[match[2] or ""]
    return Slo(**limits)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a set of values is distributed. Percentiles interpolate linearly, as numpy's do."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` % of `ordered` (ascending, not empty) lie."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread | None:
    """Summary of values; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        median=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures of one run.

    Attributes:
        duration_s: first sending to last token.
        prompt_tokens, output_tokens: as the server counted them (see `output_tokens_from`).
        retokenised_tokens: the answers' text tokenised again; None without a tokenizer.
        concurrency: mean number of requests in flight: sum of E2E / duration.
        goodput_rps: requests per second that met the SLOs; None where none were given.
        send_lag_s: how much later than planned requests were sent: the client's own delay, or
            waiting for `--concurrency`.
    """

    requests: int
    failed: int
    duration_s: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    output_tokens_from: str
    retokenised_tokens: int | None
    request_rps: float
    input_tps: float
    output_tps: float
    total_tps: float
    peak_concurrency: int
    concurrency: float
    goodput_rps: float | None
    goodput_fraction: float | None
    e2e_s: Spread | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    send_lag_s: Spread | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarise(records: Sequence[RequestRecord], slo: Slo | None) -> Summary:
    """Figures of a run. Failed requests count only as failed (and against goodput)."""
    done = [record for record in records if record.ok]
    start_s = min((record.sent_s for record in records if record.sent_s), default=0.0)
    end_s = max((record.token_times_s[-1] for record in done), default=start_s)
    duration_s = end_s - start_s
    prompt_tokens = sum(record.prompt_tokens or 0 for record in done)
    output_tokens = sum(record.counted_tokens for record in done)
    good = None if slo is None else sum(slo.met_by(record) for record in done)

    def rate(amount: float) -> float:
        return amount / duration_s if duration_s > 0 else 0.0

    return Summary(
        requests=len(records),
        failed=len(records) - len(done),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=_total(record.cached_tokens for record in done),
        output_tokens=output_tokens,
        output_tokens_from=_source(done),
        retokenised_tokens=_total(record.retokenised_tokens for record in done),
        request_rps=rate(len(done)),
        input_tps=rate(prompt_tokens),
        output_tps=rate(output_tokens),
        total_tps=rate(prompt_tokens + output_tokens),
        peak_concurrency=peak_concurrency(done),
        concurrency=rate(math.fsum(record.e2e_s for record in done)),
        goodput_rps=None if good is None else rate(good),
        goodput_fraction=None if good is None else good / max(len(records), 1),
        e2e_s=spread([record.e2e_s for record in done]),
        ttft_s=spread([record.ttft_s for record in done]),
        tpot_s=spread([tpot for record in done if (tpot := record.tpot_s) is not None]),
        itl_s=spread([gap for record in done for gap in record.itl_s]),
        send_lag_s=spread([record.sent_s - record.due_s for record in done]),
    )


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests in flight at one time."""
    changes = [(record.sent_s, 1) for record in records]
    changes += [(record.token_times_s[-1], -1) for record in records]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak


def _total(counts: Any) -> int | None:
    """Sum of counts; None where no request had one."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _source(records: Sequence[RequestRecord]) -> str:
    """Where output token counts come from."""
    if all(record.output_tokens is not None for record in records):
        return "usage"
    if all(record.retokenised_tokens is not None for record in records):
        return "tokenizer"
    return "mixed" if any(record.output_tokens is not None for record in records) else "events"
