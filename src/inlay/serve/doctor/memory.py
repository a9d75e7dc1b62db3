"""Main memory: how much, where it is, and the pages it comes in."""

import re
from dataclasses import dataclass
from pathlib import Path

from inlay.core.cgroup import Limits
from inlay.core.system_files import key_values, parse_list, read_text


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """One node; `distances` to all nodes, 10 is local."""

    node: int
    cpus: str
    total_bytes: int | None
    free_bytes: int | None
    distances: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory as this process may use it.

    Attributes:
        available_bytes: what can be allocated without swapping, within `limit_bytes`.
        limit_bytes: the control group's limit; None where there is none.
        transparent_huge_pages: `always`, `madvise` or `never`.
        huge_pages_free, huge_page_bytes: the reserved kind.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_bytes: int
    transparent_huge_pages: str | None
    huge_pages_total: int
    huge_pages_free: int
    huge_page_bytes: int
    numa_nodes: tuple[NumaNode, ...]


def read_memory(limits: Limits, root: Path = Path("/")) -> Memory:
    """Read sizes and NUMA nodes."""
    info = key_values(read_text(root / "proc/meminfo") or "")
    available = _bytes(info.get("MemAvailable")) or 0
    left = limits.memory_left_bytes
    chosen = re.search(
        r"\[(\w+)\]", read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    )
    return Memory(
        total_bytes=_bytes(info.get("MemTotal")) or 0,
        available_bytes=available if left is None else min(available, left),
        limit_bytes=limits.memory_bytes,
        swap_bytes=_bytes(info.get("SwapTotal")) or 0,
        transparent_huge_pages=chosen[1] if chosen else None,
        huge_pages_total=int(info.get("HugePages_Total", "0")),
        huge_pages_free=int(info.get("HugePages_Free", "0")),
        huge_page_bytes=_bytes(info.get("Hugepagesize")) or 0,
        numa_nodes=tuple(_numa_nodes(root / "sys/devices/system/node")),
    )


def _numa_nodes(directory: Path) -> list[NumaNode]:
    nodes = []
    for number in parse_list(read_text(directory / "online") or ""):
        node = directory / f"node{number}"
        # Lines such as `Node 0 MemTotal: 24119388 kB`.
        text = read_text(node / "meminfo") or ""
        info = key_values("\n".join(line.split(None, 2)[-1] for line in text.splitlines()))
        nodes.append(
            NumaNode(
                node=number,
                cpus=read_text(node / "cpulist") or "",
                total_bytes=_bytes(info.get("MemTotal")),
                free_bytes=_bytes(info.get("MemFree")),
                distances=tuple(int(d) for d in (read_text(node / "distance") or "").split()),
            )
        )
    return nodes


def _bytes(text: str | None) -> int | None:
    """`24119388 kB` in bytes."""
    match = re.match(r"(\d+)\s*kB", text or "")
    return int(match[1]) * 1024 if match else None
