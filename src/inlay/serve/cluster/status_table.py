"""How a deployment is, as a table for people."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inlay.cluster.control import Status

_STYLES = {
    "ready": "green", "starting": "yellow", "draining": "yellow", "refused": "red", "gone": "red",
}  # fmt: skip


def status_table(found: Status) -> RenderableType:
    """What is served where, and a row for each process."""
    head = Text(no_wrap=True, overflow="ignore")
    head.append(found.deployment, style="bold")
    head.append(f" serves {found.model} at ")
    head.append(found.url, style="bold")
    head.append(f", up {duration(found.uptime_s)}, supervisor {found.pid}")
    table = Table(box=None, pad_edge=False)
    machines = any(one.where for one in found.processes)
    names = ["process", "state", "for", "role", "pid", "starts", "address"]
    for name in [*names, "machine"] if machines else names:
        right = name in ("for", "pid", "starts")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for one in found.processes:
        state = "refused" if one.refused else one.state
        table.add_row(
            Text(one.name),
            Text(state, style=_STYLES[state]),
            duration(one.since_s),
            one.role or one.kind,
            str(one.pid or "-"),
            str(one.run),
            Text(one.address.rpartition("/")[2]),
            *([Text(one.where)] if machines else []),
        )
    notes = [Text(f"{one.name} {one.note}") for one in found.processes if one.note]
    refused = [
        Text(f"{one.name} is refused: {one.refused}") for one in found.processes if one.refused
    ]
    return Group(head, table, *notes, *refused)


def duration(seconds: float) -> str:
    """`4 s`, `12 min`, `3 h` or `2 d`."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"
