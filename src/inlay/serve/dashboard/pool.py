"""The pages of all instances as a map, what moves between them, and what was refused."""

from html import escape

from inlay.cluster.status import HIT_TIERS, ClusterStatus, InstanceStatus, PathStatus, RouteStatus
from inlay.serve.dashboard import numbers
from inlay.serve.dashboard.charts import empty

_CELLS = 64


def pool(status: ClusterStatus) -> str:
    """The pages of all instances, each cell the same share of its instance's."""
    known = [one for one in status.instances if one.pages_total]
    if not known:
        return empty("No instance has reported its pages yet.")
    rows = []
    for one in known:
        used = round(_CELLS * one.pages_used / one.pages_total)
        kept = min(_CELLS - used, round(_CELLS * one.pages_cached / one.pages_total))
        cells = '<i class="used"></i>' * used + '<i class="kept"></i>' * kept
        cells += '<i class="free"></i>' * (_CELLS - used - kept)
        held = (one.pages_total - one.pages_free) * one.page_bytes
        total = one.pages_total * one.page_bytes
        rows.append(
            f'<div class="map-row"><b>{escape(one.name)}</b><div class="map">{cells}</div>'
            f"<small>{numbers.size(held)} of {numbers.size(total)}</small></div>"
        )
    legend = (
        '<ul class="legend"><li><i class="used"></i>used by requests</li>'
        '<li><i class="kept"></i>kept for reuse</li><li><i class="free"></i>free</li></ul>'
    )
    return "".join(rows) + legend + _copies(status) + _tiers(known)


def _copies(status: ClusterStatus) -> str:
    index = status.index
    if index is None or not index.different_blocks:
        return ""
    return (
        f"<p>The dispatcher knows <b>{index.different_blocks:,}</b> different blocks of "
        f"{status.page_tokens} tokens, on <b>{index.blocks / index.different_blocks:.2f}</b> "
        f"instances each, in {numbers.size(index.memory_bytes)} of memory.</p>"
    )


def _tiers(known: list[InstanceStatus]) -> str:
    """What came from behind the device."""
    loaded = sum(one.loaded_bytes for one in known)
    written = sum(one.written_bytes for one in known)
    failures = sum(one.tier_failures for one in known)
    by_tier = {tier: sum(one.hit_tokens.get(tier, 0) for one in known) for tier in HIT_TIERS}
    total = sum(by_tier.values())
    parts = "".join(
        f'<li><i class="{tier}"></i>{tier} <b>{numbers.share(by_tier[tier], total)}</b></li>'
        for tier in HIT_TIERS
        if by_tier[tier]
    )
    where = f'<ul class="legend" title="Of all hits since the start">hits in {parts}</ul>'
    if not loaded and not written:
        return (where if total else "") + (
            '<p class="quiet">No tiers behind the device have been used.</p>'
        )
    lost = f", <b class=late>{failures:,} failures</b>" if failures else ""
    return where + (
        f"<p>Tiers behind the device: {numbers.size(loaded)} loaded, {numbers.size(written)} "
        f"written{lost}.</p>"
    )


def paths(status: ClusterStatus) -> str:
    """Where keys and values went from instance to instance, whether they came, and by what."""
    if not status.paths:
        if status.server == "engine":
            return empty("One engine: keys and values stay where they are.")
        return empty("No prompt was computed by one instance for another one yet.")
    rows = "".join(_path(path) for path in status.paths)
    return (
        '<table><thead><tr><th>Path</th><th title="What the transfer engine sends by, and the '
        'bandwidth that it expects">By</th><th>Prompts</th><th>KV</th>'
        '<th title="From the request for the KV to the first output">Latest</th>'
        "<th>Lost</th><th>Used</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _path(path: PathStatus) -> str:
    mark = ' class="late"' if path.lost else ""
    used = numbers.NONE if path.age_s is None else numbers.ago(path.age_s)
    by = "<br>".join(_route(route) for route in path.routes) or numbers.NONE
    return (
        f'<tr><th><span class="dot {_health(path)}"></span>{escape(path.source)} → '
        f"{escape(path.target)}</th><td>{by}</td><td>{path.prompts:,}</td>"
        f"<td>{numbers.size(path.size_bytes)}</td><td>{numbers.duration(path.last_s)}</td>"
        f"<td{mark}>{path.lost:,}</td><td>{used}</td></tr>"
    )


def _health(path: PathStatus) -> str:
    """Bad: nothing can go; soon: not all came, or not all ways are there."""
    ready = [route.state == "ready" for route in path.routes]
    if (path.lost and path.lost == path.prompts) or (ready and not any(ready)):
        return "bad"
    return "soon" if path.lost or not all(ready) else "good"


def _route(route: RouteStatus) -> str:
    if route.state != "ready":
        return f'<span class="late">{escape(route.transport)} {escape(route.reason)}</span>'
    speed = "" if route.bandwidth_gbs is None else f" {route.bandwidth_gbs:.2g} GB/s"
    again = f', <span class="late">{route.retries:,} again</span>' if route.retries else ""
    return f"{escape(route.transport)}<small>{speed}{again}</small>"


def refusals(status: ClusterStatus) -> str:
    """Why requests were not taken."""
    traffic = status.traffic
    if not traffic.refusals:
        return empty("No request was refused.")
    codes = "".join(
        f"<li><b>{count:,}</b> {escape(code)}</li>" for code, count in traffic.refused.items()
    )
    counted = f'<ul class="legend">{codes}</ul>' if codes else empty("None in the last minute.")
    rows = "".join(
        f'<li><small>{numbers.ago(one.age_s)}</small> <span title="{escape(one.request)}">'
        f"{escape(one.reason)}</span>"
        + (f" <small>come back in {one.retry_after_s:.0f} s</small>" if one.retry_after_s else "")
        + "</li>"
        for one in traffic.refusals[:6]
    )
    return f'{counted}<ul class="latest">{rows}</ul>'
