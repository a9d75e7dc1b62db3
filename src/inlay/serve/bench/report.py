"""The report of a load run: a table for people, a dict for machines."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inlay.serve.bench.load import ClientLoad
from inlay.serve.bench.records import RequestRecord
from inlay.serve.bench.statistics import Slo, Spread, Summary

_PERCENTILES = ("mean", "median", "p90", "p95", "p99", "max")


def print_report(
    console: Console, summary: Summary, client: ClientLoad, slo: Slo | None, title: str
) -> None:
    """Write the figures of a run."""
    console.print(Text(f"\n{title}", style="bold"), soft_wrap=True)
    console.print(_totals(summary))
    console.print(_latencies(summary))
    if slo is not None:
        console.print(_goodput(summary, slo), soft_wrap=True)
    style = "yellow" if client.is_bottleneck else "dim"
    console.print(_client(client), style=style, soft_wrap=True)


def _totals(summary: Summary) -> Table:
    """Counts and throughput."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column()
    peak = summary.peak_concurrency
    rows: list[tuple[str, str, str]] = [
        ("successful requests", f"{summary.requests - summary.failed}", ""),
        ("failed requests", f"{summary.failed}", ""),
        ("duration", f"{summary.duration_s:.2f}", "s"),
        ("input tokens", f"{summary.prompt_tokens}", _cached(summary)),
        ("output tokens", f"{summary.output_tokens}", f"(from {summary.output_tokens_from})"),
        ("output tokens, retokenised", _or_dash(summary.retokenised_tokens), ""),
        ("request throughput", f"{summary.request_rps:.2f}", "requests/s"),
        ("input throughput", f"{summary.input_tps:.1f}", "tokens/s"),
        ("output throughput", f"{summary.output_tps:.1f}", "tokens/s"),
        ("total throughput", f"{summary.total_tps:.1f}", "tokens/s"),
        (
            "achieved concurrency",
            f"{summary.concurrency:.2f}",
            f"(peak {peak})",
        ),
    ]
    for row in rows:
        grid.add_row(*row)
    return grid


def _latencies(summary: Summary) -> Table:
    """E2E, TTFT, TPOT, ITL in milliseconds."""
    table = Table("milliseconds", *(name.replace("p", "P") for name in _PERCENTILES))
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "E2E": summary.e2e_s,
        "TTFT": summary.ttft_s,
        "TPOT": summary.tpot_s,
        "ITL": summary.itl_s,
    }
    for name, spread in rows.items():
        table.add_row(name, *_milliseconds(spread))
    return table


def _milliseconds(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(_PERCENTILES)
    return [f"{getattr(spread, name) * 1e3:.2f}" for name in _PERCENTILES]


def _goodput(summary: Summary, slo: Slo) -> str:
    limits = ", ".join(
        f"{name} <= {limit:g} s"
        for name, limit in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
        if limit is not None
    )
    return (
        f"goodput  [bold]{summary.goodput_rps or 0:.2f}[/bold] requests/s: "
        f"{(summary.goodput_fraction or 0) * 100:.1f} % of all requests met {limits}"
    )


def _client(client: ClientLoad) -> str:
    text = (
        f"client: {client.events_per_s:.0f} events/s received of at least "
        f"{client.capacity_events_per_s:.0f} possible, {client.cpu_fraction * 100:.0f} % of one "
        f"core, timers late by {client.loop_lag_p99_s * 1e3:.1f} ms (P99)"
    )
    if client.is_bottleneck:
        text += "\nThe client was near its own limit: the figures may be its own, not the server's."
    return text


def _cached(summary: Summary) -> str:
    return "" if summary.cached_tokens is None else f"({summary.cached_tokens} from the cache)"


def _or_dash(count: int | None) -> str:
    return "-" if count is None else str(count)


def request_dict(record: RequestRecord, start_s: float) -> dict[str, Any]:
    """One request for JSON; times in seconds after the first sending."""
    found: dict[str, Any] = {
        "index": record.index,
        "sent_s": round(record.sent_s - start_s, 6),
        "error": record.error,
    }
    if record.ok:
        found |= {
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.counted_tokens,
            "retokenised_tokens": record.retokenised_tokens,
            "finish_reason": record.finish_reason,
            "ttft_s": round(record.ttft_s, 6),
            "e2e_s": round(record.e2e_s, 6),
            "tpot_s": None if record.tpot_s is None else round(record.tpot_s, 6),
            "itl_s": [round(gap, 6) for gap in record.itl_s],
        }
    return found
