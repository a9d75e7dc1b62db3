"""Decisions as they are made, and why one was made so."""

from html import escape
from typing import Any

from inlay.cluster.status import ClusterStatus, DecisionStatus
from inlay.serve.dashboard import numbers
from inlay.serve.dashboard.charts import empty

_SHOWN = 14
_NOT_TERMS = ("instance", "chosen")


def decisions(status: ClusterStatus, chosen: str | None) -> str:
    """The latest ones, each to be clicked.

    Args:
        chosen: request whose decision is explained beside it.
    """
    if status.server == "engine":
        return empty("One engine: there is nothing to choose from. `inlay up` starts several.")
    if not status.decisions:
        return empty("No request has come yet.")
    rows = "".join(
        _row(one, status.page_tokens, one.request == chosen) for one in status.decisions[:_SHOWN]
    )
    return (
        "<table class=picked><thead><tr><th>Request</th><th>Age</th><th>Where</th><th>Prompt</th>"
        '<th title="Prompt tokens that need not be computed there">Reused</th>'
        '<th title="Until the first token: predicted">TTFT expected</th>'
        '<th title="Until the first token: from the decision on">Measured</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _row(one: DecisionStatus, page_tokens: int, chosen: bool) -> str:
    reused = one.reused_blocks * page_tokens
    mark = ' class="chosen"' if chosen else ""
    expected = numbers.NONE if one.outcome == "refused" else numbers.duration(one.ttft_s)
    return (
        f'<tr data-request="{escape(one.request)}"{mark}><th><button type="button" '
        f'aria-label="Why: {escape(one.request)}">{escape(_short(one.request))}</button></th>'
        f"<td>{numbers.ago(one.age_s)}</td><td>{_where(one)}</td>"
        f"<td>{numbers.count(one.num_tokens)} <small>tok</small></td>"
        f"<td>{numbers.share(reused, one.num_tokens)}</td>"
        f"<td>{expected}</td><td>{numbers.duration(one.measured_ttft_s)}</td></tr>"
    )


def _short(request_id: str) -> str:
    return request_id if len(request_id) <= 22 else f"{request_id[:13]}…{request_id[-6:]}"


def _where(one: DecisionStatus) -> str:
    if one.outcome == "refused":
        return '<span class="late">refused</span>'
    prefill, decode = escape(one.prefill or "gone"), escape(one.decode or "gone")
    return decode if one.outcome == "whole" else f"{prefill} → {decode}"


def explanation(entry: dict[str, Any] | None, page_tokens: int) -> str:
    """Why this instance: what was compared, the best first.

    Args:
        entry: as `DecisionLog.describe` has it; None if it is forgotten.
    """
    if entry is None:
        return empty("This decision is not remembered any more: later ones took its place.")
    return f"<p>{_sentence(entry, page_tokens)}</p>{_candidates(entry['candidates'])}"


def _sentence(entry: dict[str, Any], page_tokens: int) -> str:
    tokens = f"{entry['num_tokens']:,} tokens"
    policy = escape(entry["policy"])
    if entry["refusal"] is not None:
        return (
            f"A prompt of {tokens} was refused: {escape(entry['refusal'])}. Come back in "
            f"{numbers.duration(entry['retry_after_s'])}."
        )
    prefill, decode = (escape(entry[key] or "?") for key in ("prefill", "decode"))
    where = (
        f"all of it to <b>{decode}</b>"
        if entry["outcome"] == "whole"
        else f"its prompt to <b>{prefill}</b> and its output to <b>{decode}</b>"
    )
    reused = entry["reused_blocks"] * page_tokens
    return (
        f"<b>{policy}</b> sent a prompt of {tokens}, {where}: {reused:,} tokens need not be "
        f"computed there. Expected until the first token: {numbers.duration(entry['ttft_s'])} "
        f"({numbers.duration(entry['wait_s'])} in the queue, {numbers.duration(entry['work_s'])} "
        f"computing), then {numbers.duration(entry['tbt_s'])} between tokens at worst."
    )


def _candidates(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return empty("This policy compares nothing.")
    terms = [name for name in rows[0] if name not in _NOT_TERMS]
    head = "".join(f"<th>{escape(_title(name))}</th>" for name in terms)
    body = "".join(
        f"<tr{' class=chosen' if row['chosen'] else ''}><th>{escape(row['instance'])}"
        + ("<small> chosen</small>" if row["chosen"] else "")
        + "</th>"
        + "".join(f"<td>{_term(name, row[name])}</td>" for name in terms)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr><th>Candidate</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _title(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _term(name: str, value: float | None) -> str:
    if value is None:
        return numbers.NONE
    if name.endswith("_s") and value >= 0:
        return numbers.duration(value)
    return f"{value:,.4g}"
