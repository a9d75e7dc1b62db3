"""The instances and their load, one row each."""

from html import escape

from inlay.cluster.status import HIT_TIERS, ClusterStatus, InstanceStatus
from inlay.serve.dashboard import numbers
from inlay.serve.dashboard.charts import empty, spark


def instances(status: ClusterStatus) -> str:
    """One row per instance."""
    if not status.instances:
        return empty("No instance is in the roster: the supervisor has not started one yet.")
    head = (
        ("Instance", ""),
        ("Load", "Choices that run, of those that can; below, those that wait for something"),
        ("5 min", "Choices there over the last five minutes"),
        ("To prefill", "Prompt tokens still to be computed"),
        ("In context", "Tokens in the contexts that decode there"),
        ("KV pages", "Used by requests, and kept for prompts that begin alike"),
        ("Prefill", "Prompt tokens computed per second of steps that had any, last minute"),
        ("Decode step", "Mean of steps without prompt tokens, last minute"),
        ("Hits", "Share of prompt tokens found in its cache, since its start"),
        ("Retries", "Requests that had to go on elsewhere, since the dispatcher's start"),
    )
    titles = "".join(f'<th title="{meaning}">{title}</th>' for title, meaning in head)
    rows = "".join(_row(one) for one in status.instances)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"


def _row(one: InstanceStatus) -> str:
    known = one.pages_total > 0
    others = ", ".join(
        f"{count:,} {words}"
        for count, words in ((one.waiting, "waiting"), (one.receiving, "receiving"))
        if count
    )
    load = (
        f"<b>{one.running:,}</b> <small>of {one.max_running:,}</small>"
        f"<small class=under>{others or 'none waiting'}</small>"
        if known
        else numbers.NONE
    )
    pages = (
        f"{_bar(one)}<small class=under>{one.pages_used:,} used, {one.pages_cached:,} kept "
        f"of {one.pages_total:,}</small>"
        if known
        else numbers.NONE
    )
    hits = sum(one.hit_tokens.values())
    by_tier = ", ".join(f"{tier} {one.hit_tokens.get(tier, 0):,}" for tier in HIT_TIERS)
    retries = ", ".join(f"{count:,} {why}" for why, count in one.retries.items())
    cells = (
        load,
        spark(one.busy) if any(one.busy) else '<span class="quiet">idle</span>',
        f"{numbers.count(one.prefill_tokens)} <small>tok</small>" if known else numbers.NONE,
        f"{numbers.count(one.context_tokens)} <small>tok</small>" if known else numbers.NONE,
        pages,
        numbers.rate(one.prefill_tokens_per_s, "tok/s"),
        numbers.duration(one.decode_step_s),
        f'<span title="{by_tier} tokens">{numbers.share(hits, one.query_tokens)}</span>',
        f'<span title="{escape(retries)}">{sum(one.retries.values()):,}</span>',
    )
    weights = one.weight_version and f"weights {one.weight_version}"
    where = " · ".join(escape(word) for word in (one.device, one.host, weights) if word)
    return (
        f'<tr><th><span class="dot {_mood(one.state)}" title="{escape(one.state)}"></span>'
        f'<b>{escape(one.name)}</b> <i class="role {escape(one.role)}">{escape(one.role)}</i>'
        f"<small class=under>{_words(one.state, where)}</small></th>"
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _words(state: str, where: str) -> str:
    return where if state == "ready" and where else escape(state)


def _mood(state: str) -> str:
    if state == "ready":
        return "good"
    return "soon" if state in ("starting", "loading", "draining", "connecting") else "bad"


def _bar(one: InstanceStatus) -> str:
    parts = ((one.pages_used, "used"), (one.pages_cached, "kept"), (one.pages_free, "free"))
    inner = "".join(
        f'<i class="{name}" style="flex-grow:{count}"></i>' for count, name in parts if count
    )
    return f'<div class="bar-of-pages">{inner}</div>'
