"""What a master counts as Prometheus metrics, read when they are asked for."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from inlay.core import metrics as names
from inlay.store.survey import NodeState, Survey

ROLES = ("master", "standby")


class MasterCollector(Collector):
    """The store's metrics of `inlay.core.metrics`, of the master in this process.

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
                counter = CounterMetricFamily(metric.name, metric.help)
                counter.add_metric((), value)
                yield counter
            else:
                yield _gauge(metric, {(): value})


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


def _gauge(metric: names.Metric, values: dict[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
