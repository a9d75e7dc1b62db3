"""How a deployment or a server is, as a table for people."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inlay.cluster.control import ProcessStatus, Status
from inlay.cluster.status import ClusterStatus
from inlay.core.errors import EndpointError

_FIRST = "first"  # weights have a name once they were replaced
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
    versions = any(one.weight_version for one in found.processes)
    machines = any(one.where for one in found.processes)
    names = ["process", "state", "for", "role", "pid", "starts", "address"]
    for name in [*names, *["weights"] * versions, *["machine"] * machines]:
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
            *([Text(_weights(one))] if versions else []),
            *([Text(one.where)] if machines else []),
        )
    notes = [Text(f"{one.name} {one.note}") for one in found.processes if one.note]
    refused = [
        Text(f"{one.name} is refused: {one.refused}") for one in found.processes if one.refused
    ]
    return Group(head, table, *notes, *refused)


def server_table(url: str, body: bytes) -> RenderableType:
    """What is served at an address, and a row for each instance behind it.

    Args:
        body: what its `/cluster/status` answered.

    Raises:
        EndpointError: that is none of Inlay's.
    """
    try:
        found = msgspec.json.decode(body, type=ClusterStatus)
    except msgspec.MsgspecError as error:
        raise EndpointError(f"{url}/cluster/status is not what Inlay answers: {error}") from None
    head = Text(no_wrap=True, overflow="ignore")
    head.append(found.model, style="bold")
    head.append(" is served at ")
    head.append(url, style="bold")
    table = Table(box=None, pad_edge=False)
    for name in ("instance", "state", "role", "requests", "weights", "device"):
        right = name == "requests"
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for one in found.instances:
        table.add_row(
            Text(one.name),
            Text(one.state, style=_STYLES.get(one.state, "red")),
            one.role,
            str(one.requests),
            Text(one.weight_version or _FIRST),
            Text(one.device),
        )
    return Group(head, table)


def _weights(one: ProcessStatus) -> str:
    return (one.weight_version or _FIRST) if one.kind == "instance" else "-"


def duration(seconds: float) -> str:
    """`4 s`, `12 min`, `3 h` or `2 d`."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"
