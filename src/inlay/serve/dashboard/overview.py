"""The row of large numbers at the top, and the charts below it."""

from html import escape

from inlay.cluster.status import HIT_TIERS, ClassStatus, ClusterStatus, Percentiles
from inlay.serve.dashboard import numbers
from inlay.serve.dashboard.charts import Line, bars, empty, lines


def tiles(status: ClusterStatus) -> str:
    """What clients have, over the window."""
    traffic = status.traffic
    finished = sum(one.finished for one in status.classes)
    good = sum(one.good for one in status.classes)
    goodput_per_s = sum(one.goodput_per_s for one in status.classes)
    hits = sum(traffic.hit_tokens.values())
    refused, window = sum(traffic.refused.values()), f"last {status.window_s:.0f} s"
    main = _main(status)
    running = sum(one.running for one in status.instances)
    waiting = sum(one.waiting for one in status.instances) + traffic.waiting_for_instance
    cells = [
        _tile(
            "Requests",
            numbers.rate(traffic.requests_per_s, "/s"),
            f"{numbers.rate(traffic.output_tokens_per_s, 'tok/s')} written",
            f"Requests that came per second, {window}; {traffic.requests_total:,} since the start",
        ),
        _tile(
            "In flight",
            numbers.count(traffic.in_flight),
            f"{running:,} running, {waiting:,} waiting",
            "Requests that have come and are not over; below: choices at the instances",
        ),
        _latency("TTFT", "p90", main, window) if main else _no_latency("TTFT"),
        _latency("ITL", "p99", main, window) if main else _no_latency("ITL"),
        _tile(
            "Within objectives",
            numbers.share(good, finished),
            f"goodput {numbers.rate(goodput_per_s, '/s')}",
            f"Finished requests that kept all objectives of their class, {window}",
            late=finished > 0 and good < 0.9 * finished,
        ),
        _tile(
            "Cache hits",
            numbers.share(hits, traffic.prompt_tokens),
            f"of {numbers.count(traffic.prompt_tokens)} prompt tokens",
            f"Prompt tokens whose keys and values were there already, {window}",
        ),
        _tile(
            "Refused",
            numbers.count(refused),
            f"{traffic.refused_total:,} since the start",
            f"Requests that were not taken, {window}",
            late=refused > 0,
        ),
    ]
    return "".join(cells)


def charts(status: ClusterStatus) -> str:
    """TTFT, ITL, requests and cache hits over the last minutes."""
    history, main = status.history, _main(status)
    slot_s = history.slot_s
    computed = [
        max(0.0, tokens - sum(history.hit_tokens[tier][at] for tier in HIT_TIERS))
        for at, tokens in enumerate(history.prompt_tokens)
    ]
    taken = [
        max(0.0, came - refused)
        for came, refused in zip(history.requests, history.refused, strict=True)
    ]
    tiers = [tier for tier in HIT_TIERS if tier == "device" or any(history.hit_tokens[tier])]
    hit_lines = [Line(name=tier, values=history.hit_tokens[tier]) for tier in tiers]
    return "".join(
        (
            _latency_chart("Time to first token", "ttft", main, slot_s),
            _latency_chart("Gap between tokens", "itl", main, slot_s),
            _card(
                "Requests",
                "per 6 s",
                (("taken", "taken"), ("refused", "refused")),
                bars(
                    [
                        Line(name="taken", values=taken),
                        Line(name="refused", values=history.refused),
                    ],
                    slot_s=slot_s,
                ),
            ),
            _card(
                "Prompt tokens",
                "per 6 s, by where they were",
                (*((tier, tier) for tier in tiers), ("computed", "computed")),
                bars([*hit_lines, Line(name="computed", values=computed)], slot_s=slot_s),
            ),
        )
    )


def classes(status: ClusterStatus) -> str:
    """One row per class of objectives, if there is more than one, or an objective at all."""
    shown = [one for one in status.classes if one.finished or one.ttft.count or one.refused]
    if not shown:
        return empty("No request has finished in the last minute.")
    rows = []
    for one in shown:
        cells = (
            f'<th class="late" title="{escape(one.impossible)}">{escape(one.name)}</th>'
            if one.impossible
            else f"<th>{escape(one.name)}</th>",
            *_against(one.ttft, one.ttft.p90_s, one.ttft_slo_s),
            *_against(one.itl, one.itl.p99_s, one.itl_slo_s),
            *_against(one.tbt, one.tbt.p90_s, one.tbt_slo_s),
            f"<td>{one.finished:,}</td><td>{numbers.share(one.good, one.finished)}</td>",
            f"<td>{numbers.rate(one.goodput_per_s, '/s')}</td><td>{one.refused:,}</td>",
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        "<table><thead><tr><th>Class</th>"
        "<th>TTFT p50</th><th>p90</th><th>Objective</th>"
        "<th>ITL p50</th><th>p99</th><th>Objective</th>"
        '<th title="Mean of the longest tenth of a request\'s gaps">TBT p50</th><th>p90</th>'
        "<th>Objective</th>"
        "<th>Finished</th><th>Kept</th><th>Goodput</th><th>Refused</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _main(status: ClusterStatus) -> ClassStatus | None:
    """The class that most requests are of."""
    return max(status.classes, key=lambda one: one.ttft.count, default=None)


def _against(spread: Percentiles, judged_s: float | None, slo_s: float | None) -> tuple[str, ...]:
    late = judged_s is not None and slo_s is not None and judged_s > slo_s
    mark = ' class="late"' if late else ""
    return (
        f"<td>{numbers.duration(spread.p50_s)}</td>",
        f"<td{mark}>{numbers.duration(judged_s)}</td>",
        f"<td>{numbers.duration(slo_s)}</td>",
    )


def _tile(label: str, value: str, below: str, meaning: str, late: bool = False) -> str:
    mark = " late" if late else ""
    return (
        f'<div class="tile{mark}" title="{escape(meaning)}"><span>{label}</span><b>{value}</b>'
        f"<small>{below}</small></div>"
    )


def _latency(label: str, percentile: str, of: ClassStatus, window: str) -> str:
    spread, slo_s = (of.ttft, of.ttft_slo_s) if label == "TTFT" else (of.itl, of.itl_slo_s)
    value_s = spread.p90_s if percentile == "p90" else spread.p99_s
    below = "no objective" if slo_s is None else f"objective {numbers.duration(slo_s)}"
    what = "arrival to first token" if label == "TTFT" else "each gap between tokens"
    median = "none" if spread.p50_s is None else f"p50 is {spread.p50_s * 1e3:.1f} ms"
    meaning = f"{what}, {percentile} of class {of.name}, {window}: {median}"
    late = value_s is not None and slo_s is not None and value_s > slo_s
    return _tile(f"{label} {percentile}", numbers.duration(value_s), below, meaning, late)


def _no_latency(label: str) -> str:
    return _tile(label, numbers.NONE, "no request yet", "No request has come yet")


def _latency_chart(title: str, kind: str, of: ClassStatus | None, slot_s: float) -> str:
    keys: tuple[tuple[str, str], ...] = (("p50", "p50"), ("p99", "p99"))
    if of is None:
        return _card(title, "", keys, empty("No request yet."))
    slo_s = of.ttft_slo_s if kind == "ttft" else of.itl_slo_s
    if slo_s is not None:
        keys = (*keys, ("objective", f"objective {numbers.duration(slo_s)}"))
    drawn = [Line(name=p, values=getattr(of, f"{kind}_{p}_s")) for p in ("p50", "p99")]
    return _card(title, f"class {of.name}", keys, lines(drawn, slot_s=slot_s, objective=slo_s))


def _card(title: str, note: str, keys: tuple[tuple[str, str], ...], body: str) -> str:
    legend = "".join(f'<li><i class="{name}"></i>{words}</li>' for name, words in keys)
    return (
        f'<section class="panel"><h2>{title} <small>{escape(note)}</small></h2>'
        f'{body}<ul class="legend">{legend}</ul></section>'
    )
