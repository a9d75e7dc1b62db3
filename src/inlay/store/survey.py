"""State and counts of a store, as its master tells them."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """One node.

    Attributes:
        ready: it was heard lately and has told the master of all its records.
        draining: its objects are moved elsewhere.
        silent_ms: since it was heard.
        fragmentation: share of its free memory outside the largest free range.
    """

    name: str
    host: str
    address: str
    failure_domain: str
    ready: bool
    draining: bool
    silent_ms: int
    memory_bytes: int
    memory_used_bytes: int
    disk_bytes: int
    disk_used_bytes: int
    fragmentation: float


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A store at one moment.

    Attributes:
        recovering: the master still learns what nodes hold.
        counters: by the names of `inlay.core.store_metrics.STORE_COUNTS`.
    """

    epoch: int
    recovering: bool
    objects: int
    counters: dict[str, int]
    nodes: tuple[NodeState, ...]

    @property
    def hit_rate(self) -> float | None:
        """Keys that were there of those that clients looked for; None before the first."""
        count = self.counters.get
        found = count("exists_found", 0) + count("located", 0)
        asked = count("exists_keys", 0) + count("located", 0) + count("missed", 0)
        return found / asked if asked else None


def read_survey(told: dict[str, Any]) -> Survey:
    """A survey from plain values."""
    return msgspec.convert(told, Survey)
