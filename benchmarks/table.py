"""`python -m benchmarks table`: docs/benchmarks.md, every measured line of the accepted records.

The page follows from the records and the case files, but for the last column: the commits since a
record grow with every commit, so they are those of the moment when the page was written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.case import load_declaration
from benchmarks.compare import line_name
from benchmarks.history import NoHistoryError, read_history
from benchmarks.machine import ROOT
from benchmarks.record import accepted_records
from benchmarks.stale import record_ages

PAGE = ROOT / "docs" / "benchmarks.md"
COLUMNS = (
    "measurement", "value", "of the limit", "beside the best peer", "target", "kind", "date",
    "commits since",
)  # fmt: skip
Record = Mapping[str, Any]

INTRODUCTION = """\
# All measured lines

Written by `python -m benchmarks table` from the [accepted records](../benchmarks/results); how they
are taken: [benchmarks](../benchmarks/README.md). Do not edit it.

A line is what one case measured on one kind of processor. *Of the limit* is the share of what the
machine allows, *beside the best peer* how many times as good as the strongest other system, both
measured in the same run; more is better in both. A target without a verdict had no peer to be
judged by. *Commits since* counts those that touched what the case measures between the record and
the last writing of this page; `python -m benchmarks stale` counts them now.
"""


def write_table() -> int:
    """Write the page and say where. Returns the exit status, 0.

    Where commits cannot be counted, the last column stays empty, and the reason is printed.
    """
    counts = {}
    try:
        counts = {one.name: one.count for one in record_ages(read_history())}
    except NoHistoryError as error:
        print(f"commits are not counted here: {error}")
    PAGE.write_text(page_text(accepted_records(), counts), "utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def page_text(records: Sequence[Record], counts: Mapping[str, str]) -> str:
    """The page.

    Args:
        counts: commits since, by case and kind; those that are not in it stay empty.
    """
    by_case = {case: list(of) for case, of in groupby(records, lambda record: record["case"])}
    parts = [INTRODUCTION, *_contents(by_case)]
    for area, cases in groupby(by_case, _area):
        parts.append(f"## {area}\n")
        for case in cases:
            parts += _section(case, by_case[case], counts)
    return "\n".join(parts).rstrip() + "\n"


def without_counts(page: str) -> str:
    """A page with the last column of its lines empty, to compare what does not age."""
    return re.sub(r"^(\| `.*\| )\d*( \|)$", r"\1\2", page, flags=re.MULTILINE)


def escaped(text: str) -> str:
    """A text as Markdown shows it, inside a table too; inside a word `_` means itself."""
    return re.sub(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """A text as code inside a table, where a bar would end the cell."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = f" {text} " if "`" in text else text
    return fence + " ".join(inner.split("\n")).replace("|", "\\|") + fence


def _contents(by_case: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    yield "| case | lines | targets met | missed | not judged | kinds of processor |"
    yield "|---|---|---|---|---|---|"
    for case, records in by_case.items():
        entries = [entry for record in records for entry in record["measurements"]]
        verdicts = [entry["met"] for entry in entries if "target" in entry]
        counts = [str(verdicts.count(verdict)) for verdict in (True, False, None)]
        kinds = ", ".join(code(record["kind"]) for record in records)
        link = f"[{escaped(case)}](#{_anchor(case)})"
        yield _row([link, str(len(entries)), *counts, kinds])
    yield ""


def _section(case: str, records: Sequence[Record], counts: Mapping[str, str]) -> Iterator[str]:
    yield f"### {case}\n"
    yield f"{escaped(load_declaration(case)['about'])}.\n"
    for record in records:
        about = record["machine"]
        link = f"[{code(record['kind'])}](../benchmarks/results/{case}/{record['kind']}.json)"
        yield (
            f"- {link}: {escaped(about['cpu'])}, {about['cores']} cores, "
            f"{about['memory_gib']:g} GiB, load {about['load_1m']:g} before"
        )
    yield ""
    yield _row(COLUMNS)
    yield "|" + "---|" * len(COLUMNS)
    lines = [(entry, record) for record in records for entry in record["measurements"]]
    order = {name: at for at, name in enumerate(dict.fromkeys(line_name(one) for one, _ in lines))}
    for entry, record in sorted(lines, key=lambda line: order[line_name(line[0])]):
        count = counts.get(f"{case}/{record['kind']}", "")
        yield _row([*_cells(entry), code(record["kind"]), record["date"][:10], count])
    yield ""


def _cells(entry: Mapping[str, Any]) -> list[str]:
    """The columns of a measurement before its record's."""
    simulated = " (simulated)" if entry.get("simulated") else ""
    value = "no result"
    if entry["value"] is not None:
        value = f"{_number(entry['value'])} {escaped(entry['unit'])}"
    limit = peer = ""
    if "of_limit" in entry:
        limit = f"{_percent(entry['of_limit'])} of {escaped(entry['limit']['name'])}"
    if ratios := entry.get("of_peer"):
        best = min(ratios, key=lambda name: ratios[name])
        peer = f"{_number(ratios[best])}x {escaped(best)}"
    return [code(line_name(entry)) + simulated, value, limit, peer, _target(entry)]


def _target(entry: Mapping[str, Any]) -> str:
    if "target" not in entry:
        return ""
    verdict = {True: "met", False: "**missed**", None: "not judged"}[entry["met"]]
    wanted = (f"{name} {_wanted(value)}".rstrip() for name, value in entry["target"].items())
    return f"{verdict}: {', '.join(map(code, wanted))}"


def _wanted(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_number(one)}" for name, one in value.items())
    return _number(value)


def _number(value: float) -> str:
    """With as many digits as a record has, and thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 0 < abs(value) < 100 else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _area(case: str) -> str:
    return case.split("/")[0]


def _anchor(case: str) -> str:
    """As pages of repositories name a heading."""
    return case.replace("/", "")
