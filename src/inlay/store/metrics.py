"""What masters, nodes and clients count as Prometheus metrics, read when they are asked for."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from inlay.core import store_metrics as names
from inlay.core.errors import StoreError
from inlay.core.metrics import Metric
from inlay.store.figures import DiskFigures
from inlay.store.store import Store
from inlay.store.survey import NodeState, Survey

ROLES = ("master", "standby")
_CLIENT_COUNTS = {
    names.STORE_CLIENT_ABSENT: "absent",
    names.STORE_CLIENT_READ: "read",
    names.STORE_CLIENT_READ_BYTES: "read_bytes",
    names.STORE_CLIENT_AGAIN: "again",
    names.STORE_CLIENT_DAMAGED: "damaged",
    names.STORE_CLIENT_STORED: "stored",
    names.STORE_CLIENT_STORED_BYTES: "stored_bytes",
    names.STORE_CLIENT_KEPT: "kept",
}


class MasterCollector(Collector):
    """The store's metrics of `inlay.core.store_metrics`, of the master in this process.

    Args:
        survey: the state now, or None while this process is no master.

    Cost: one question to the master's thread for each scrape.
    """

    def __init__(self, survey: Callable[[], Survey | None]) -> None:
        self._survey = survey

    def describe(self) -> Iterable[Family]:
        """Nothing: what there is depends on the role."""
        return []

    def collect(self) -> Iterator[Family]:
        """The families, from the master as it is now."""
        found = self._survey()
        role = "standby" if found is None else "master"
        yield _gauge(names.STORE_ROLE, {(each,): each == role for each in ROLES})
        if found is None:
            return
        yield _gauge(names.STORE_EPOCH, {(): found.epoch})
        yield _gauge(names.STORE_RECOVERING, {(): found.recovering})
        yield _gauge(names.STORE_OBJECTS, {(): found.objects})
        yield from _node_families(found.nodes)
        for metric in names.STORE_COUNTS:
            value = found.counters.get(metric.name.removeprefix("inlay_store_"), 0)
            if metric.kind == "counter":
                yield _counter(metric, {(): value})
            else:
                yield _gauge(metric, {(): value})


class NodeCollector(Collector):
    """The metrics of the node `name` in this process: what its master knows of it, and its disk.

    Args:
        survey: the store's state, or None where no master tells it.
        disk: of the node, None without one.

    Cost: one question to the master and one walk over the disk's index for each scrape.
    """

    def __init__(
        self,
        name: str,
        survey: Callable[[], Survey | None],
        disk: Callable[[], DiskFigures | None],
    ) -> None:
        self._name = name
        self._survey = survey
        self._disk = disk

    def describe(self) -> Iterable[Family]:
        """Nothing: what there is depends on the node."""
        return []

    def collect(self) -> Iterator[Family]:
        """The families, from the node as it is now."""
        found = self._survey()
        if found is not None:
            own = [node for node in found.nodes if node.name == self._name]
            # One that was lost is remembered for a while beside the one that took its name.
            yield from _node_families(sorted(own, key=lambda node: node.ready)[-1:])
        disk = self._disk()
        if disk is not None:
            yield from _disk_families(self._name, disk)


class ClientCollector(Collector):
    """The metrics of the clients of these stores, in this process, together.

    A registry takes one: `registry.register(ClientCollector(store))`. Stores are not kept; what
    one counted is no longer told when it is gone.

    Cost: counts are kept in native code; Python runs when it is scraped.
    """

    def __init__(self, *stores: Store) -> None:
        self._stores = [weakref.ref(store) for store in stores]

    def describe(self) -> Iterable[Family]:
        """Nothing, so that registering asks no store."""
        return []

    def collect(self) -> Iterator[Family]:
        """The families, from the clients as they are now."""
        total: Counter[str] = Counter()
        for store in filter(None, (ref() for ref in self._stores)):
            with suppress(StoreError):  # it is of the process that this one was forked from
                total.update(asdict(store.figures()))
        yield _counter(
            names.STORE_CLIENT_LOCATIONS,
            {("known",): total["known"], ("asked",): total["asked"]},
        )
        for metric, name in _CLIENT_COUNTS.items():
            yield _counter(metric, {(): total[name]})


def _disk_families(node: str, disk: DiskFigures) -> Iterator[Family]:
    yield _gauge(names.STORE_DISK_OBJECTS, {(node,): disk.objects})
    yield _gauge(names.STORE_DISK_LIVING, {(node,): disk.living_bytes})
    states = {"free": disk.free_extents, "used": disk.extents - disk.free_extents}
    yield _gauge(names.STORE_DISK_EXTENTS, {(node, state): n for state, n in states.items()})
    yield _counter(names.STORE_DISK_DAMAGED, {(node,): disk.damaged})
    ops = {(node, "read"): disk.read, (node, "write"): disk.written}
    yield _counter(names.STORE_DISK_MOVED, {op: one.records for op, one in ops.items()})
    yield _counter(names.STORE_DISK_MOVED_BYTES, {op: one.bytes for op, one in ops.items()})
    yield _counter(names.STORE_DISK_MISSING, {op: one.missing for op, one in ops.items()})
    metric = names.STORE_DISK_SECONDS
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for op, one in ops.items():
        counts = zip(bounds, accumulate(one.calls), strict=True)
        family.add_metric(op, [(bound, float(count)) for bound, count in counts], one.seconds)
    yield family


def _node_families(nodes: Iterable[NodeState]) -> Iterator[Family]:
    nodes = list(nodes)
    yield _gauge(names.STORE_NODE_READY, {(node.name,): node.ready for node in nodes})
    yield _gauge(names.STORE_NODE_SILENT, {(node.name,): node.silent_ms / 1e3 for node in nodes})
    total: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    for node in nodes:
        total[(node.name, "memory")] = node.memory_bytes
        used[(node.name, "memory")] = node.memory_used_bytes
        if node.disk_bytes:
            total[(node.name, "disk")] = node.disk_bytes
            used[(node.name, "disk")] = node.disk_used_bytes
    yield _gauge(names.STORE_NODE_BYTES, total)
    yield _gauge(names.STORE_NODE_USED, used)
    yield _gauge(
        names.STORE_NODE_FRAGMENTATION, {(node.name,): node.fragmentation for node in nodes}
    )


def _counter(metric: Metric, values: dict[tuple[str, ...], float]) -> CounterMetricFamily:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(metric: Metric, values: dict[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
