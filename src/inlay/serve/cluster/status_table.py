"""How a deployment is, as a table for people."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inlay.cluster.control import ProcessStatus, Status

_STYLES = {"ready": "green", "starting": "yellow", "draining": "yellow", "gone": "red"}


def status_table(found: Status) -> RenderableType:
    """What is served where, and a row for each process."""
    head = Text(no_wrap=True, overflow="ignore")
    head.append(found.deployment, style="bold")
    head.append(f" serves {found.model} at ")
    head.append(found.url, style="bold")
    head.append(f", up {duration(found.uptime_s)}, supervisor {found.pid}")
    table = Table(box=None, pad_edge=False)
    for name in ("process", "state", "for", "role", "pid", "starts", "address", ""):
        right = name in ("for", "pid", "starts")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for one in found.processes:
        table.add_row(
            Text(one.name),
            Text(one.state, style=_STYLES[one.state]),
            duration(one.since_s),
            one.role or one.kind,
            str(one.pid or "-"),
            str(one.run),
            Text(one.address.removeprefix("tcp://")),
            Text(_note(one)),
        )
    return Group(head, table)


def duration(seconds: float) -> str:
    """`4 s`, `12 min`, `3 h` or `2 d`."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def _note(one: ProcessStatus) -> str:
    where = f"on {one.where}" if one.where else ""
    return ", ".join(part for part in (where, one.note) if part)
