"""The metrics of a dispatcher: its numbers at the time of asking."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from inlay.cluster.dispatcher import Dispatcher
from inlay.core import cluster_metrics as names
from inlay.core.metrics import Metric

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


class ClusterCollector(Collector):
    """See the module."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def describe(self) -> Iterable[Family]:
        """Nothing: the families are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families."""
        yield from self._instances()
        log = self._dispatcher.chooser.log
        decisions = _family(CounterMetricFamily, names.DECISIONS)
        for (policy, outcome), count in log.outcomes.items():
            decisions.add_metric([policy, outcome], count)
        yield decisions
        retries = _family(CounterMetricFamily, names.RETRIES)
        for labels, count in self._dispatcher.retries.items():
            retries.add_metric(labels, count)
        yield retries
        for metric, value in (
            (names.REUSED_TOKENS, self._dispatcher.reused_tokens),
            (names.KV_LOST, self._dispatcher.kv_lost),
        ):
            yield CounterMetricFamily(metric.name, metric.help, value=value)

    def _instances(self) -> Iterator[Family]:
        families = {
            metric.name: _family(GaugeMetricFamily, metric)
            for metric in (
                names.INSTANCE_READY,
                names.INSTANCE_REQUESTS,
                names.INSTANCE_CHOICES,
                names.INSTANCE_PREFILL_TOKENS,
                names.INSTANCE_CONTEXT_TOKENS,
                names.INSTANCE_PAGES,
            )
        }

        def add(metric: Metric, value: float, *labels: str) -> None:
            families[metric.name].add_metric(labels, value)

        instances = self._dispatcher.instances
        for name in instances.names:
            instance = instances.find(name)
            ready = instance is not None and instance.takes_requests
            add(names.INSTANCE_READY, int(ready), name)
            if instance is None:
                continue
            add(names.INSTANCE_REQUESTS, len(instance.attempts), name)
            load = instance.report
            if load is None:
                continue
            for state in ("waiting", "running", "receiving"):
                add(names.INSTANCE_CHOICES, getattr(load, state), name, state)
            add(names.INSTANCE_PREFILL_TOKENS, load.prefill_tokens, name)
            add(names.INSTANCE_CONTEXT_TOKENS, load.context_tokens, name)
            used = load.pages_total - load.pages_free - load.pages_cached
            add(names.INSTANCE_PAGES, load.pages_free, name, "free")
            add(names.INSTANCE_PAGES, load.pages_cached, name, "cached")
            add(names.INSTANCE_PAGES, used, name, "used")
        yield from families.values()


def _family(kind: type[F], metric: Metric) -> F:
    return kind(metric.name, metric.help, labels=metric.labels)
