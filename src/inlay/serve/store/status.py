"""A store's state as a table for people."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inlay.core.units import format_bytes
from inlay.store.survey import NodeState, Survey


class StatusTable:
    """Tables of surveys; rates are between one and the next."""

    def __init__(self) -> None:
        self._before: tuple[float, Survey] | None = None

    def render(self, found: Survey, master: str, now_s: float) -> RenderableType:
        """The table; `now_s` is when the survey was taken."""
        head = Text()
        head.append(f"master {master}", style="bold")
        head.append(f", epoch {found.epoch}")
        if found.recovering:
            head.append(", learning what nodes hold", style="yellow")
        rate = found.hit_rate
        figures = [f"{found.objects} objects"]
        figures.append("hit rate -" if rate is None else f"hit rate {100 * rate:.1f} %")
        figures += self._rates(found, now_s)
        if evicted := found.counters.get("evicted"):
            figures.append(f"{evicted} evicted")
        self._before = (now_s, found)
        if not found.nodes:
            hint = f"no node: start one with inlay store node --master {master} --memory 4GiB"
            return Group(head, Text(", ".join(figures)), Text(hint, style="yellow"))
        return Group(head, Text(", ".join(figures)), _nodes(found.nodes))

    def _rates(self, found: Survey, now_s: float) -> list[str]:
        """Puts and look-ups in a second, where the same master was asked before."""
        if self._before is None or self._before[1].epoch != found.epoch:
            return []
        seconds, then = now_s - self._before[0], self._before[1].counters
        if seconds <= 0:
            return []

        def rate(*names: str) -> float:
            return sum(found.counters.get(n, 0) - then.get(n, 0) for n in names) / seconds

        looked = rate("exists_keys", "located", "missed")
        return [f"{rate('committed'):.0f} puts/s", f"{looked:.0f} look-ups/s"]


def _nodes(nodes: tuple[NodeState, ...]) -> Table:
    table = Table(box=None, pad_edge=False)  # so that addresses have room in 80 columns
    for name in ("node", "state", "memory", "used", "disk", "used", "fragmented", "address"):
        left = name in ("node", "state", "address")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for node in sorted(nodes, key=lambda one: one.name):
        table.add_row(
            node.name,
            _state(node),
            format_bytes(node.memory_bytes),
            _share(node.memory_used_bytes, node.memory_bytes),
            format_bytes(node.disk_bytes) if node.disk_bytes else "-",
            _share(node.disk_used_bytes, node.disk_bytes),
            f"{100 * node.fragmentation:.1f} %",
            node.address or "this host only",
        )
    return table


def _state(node: NodeState) -> Text:
    if not node.ready:
        return Text(f"silent {node.silent_ms / 1000:.1f} s", style="red")
    if node.draining:
        return Text("draining", style="yellow")
    return Text("ready", style="green")


def _share(used: int, total: int) -> str:
    return f"{100 * used / total:.1f} %" if total else "-"
