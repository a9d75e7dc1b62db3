"""A migration as text for people and as JSON for programs."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inlay.serve.migrate.rows import Fate, Finding
from inlay.serve.migrate.translate import Migration

# Raised when a field changes its meaning or goes; new fields do not raise it.
SCHEMA = 1

_WIDTH = 96
_FLAG_WIDTH = 46
_TITLES = {
    Fate.LINE: "On the line",
    Fate.NEEDLESS: "No longer needed",
    Fate.ELSEWHERE: "Said elsewhere",
    Fate.NOT_YET: "Not yet, and what Inlay does instead",
    Fate.UNKNOWN: "Not known to inlay migrate",
}


def as_dict(migration: Migration) -> dict[str, Any]:
    """All of it, with stable field names."""
    line = migration.line
    return {
        "schema": SCHEMA,
        "program": migration.program.name,
        "line": line.text(literal=migration.literal),
        "environment": dict(line.environment),
        "before": list(line.before),
        "arguments": list(line.arguments),
        "flags": [
            {
                "flag": finding.flag or None,
                "fate": finding.fate.value,
                "becomes": list(finding.becomes),
                "reason": finding.reason,
            }
            for finding in migration.findings
        ],
        "note": migration.program.note or None,
    }


def print_report(console: Console, migration: Migration) -> None:
    """The line first, so that it can be copied, then what became of every flag."""
    console.out(migration.line.text(width=_WIDTH, literal=migration.literal), highlight=False)
    for fate, title in _TITLES.items():
        findings = [finding for finding in migration.findings if finding.fate is fate]
        if findings:
            console.print()
            console.print(Text(title, style="bold"))
            console.print(_table(findings))
    if migration.program.note:
        console.print()
        console.print(Text(migration.program.note))


def _table(findings: list[Finding]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=_FLAG_WIDTH)
    grid.add_column(overflow="fold", style="dim")
    for finding in findings:
        lines = [finding.flag] if finding.flag else []
        lines += [f"  -> {becomes}" for becomes in finding.becomes]
        grid.add_row(Text("\n".join(lines)), Text(finding.reason))
    return grid
