"""The metrics of a dispatcher: its numbers at the time of asking."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from inlay.cluster.dispatcher import Dispatcher
from inlay.cluster.picture import WINDOW_S
from inlay.core import cluster_metrics as names
from inlay.core.clock import Clock
from inlay.core.metrics import Metric
from inlay.serve.metrics import empty_family

_SPEEDS = (names.INSTANCE_PREFILL_SPEED, names.INSTANCE_DECODE_STEP)


class ClusterCollector(Collector):
    """See the module."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def describe(self) -> Iterable[Family]:
        """Nothing: the families are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families."""
        yield from self._instances()
        log = self._dispatcher.chooser.log
        decisions = empty_family(CounterMetricFamily, names.DECISIONS)
        for (policy, outcome), count in log.outcomes.items():
            decisions.add_metric([policy, outcome], count)
        yield decisions
        retries = empty_family(CounterMetricFamily, names.RETRIES)
        for labels, count in self._dispatcher.retries.items():
            retries.add_metric(labels, count)
        yield retries
        for metric, value in (
            (names.REUSED_TOKENS, self._dispatcher.reused_tokens),
            (names.KV_LOST, self._dispatcher.kv_lost),
            (names.COPIED_BLOCKS, self._dispatcher.copies.copied_blocks),
            (names.COPIES_FAILED, self._dispatcher.copies.failed),
        ):
            yield CounterMetricFamily(metric.name, metric.help, value=value)
        yield from self._index()
        yield from self._paths()

    def _index(self) -> Iterator[Family]:
        index = self._dispatcher.chooser.index
        for metric, value in (
            (names.INDEX_BLOCKS, len(index)),
            (names.INDEX_BYTES, index.memory_bytes()),
        ):
            yield GaugeMetricFamily(metric.name, metric.help, value=value)

    def _paths(self) -> Iterator[Family]:
        families = [
            (empty_family(CounterMetricFamily, metric), field)
            for metric, field in (
                (names.PATH_PROMPTS, "prompts"),
                (names.PATH_BYTES, "size_bytes"),
                (names.PATH_LOST, "lost"),
            )
        ]
        for pair, path in self._dispatcher.kv_paths.known.items():
            for family, field in families:
                family.add_metric(pair, getattr(path, field))
        yield from (family for family, _ in families)

    def _instances(self) -> Iterator[Family]:
        families = {
            metric.name: empty_family(GaugeMetricFamily, metric)
            for metric in (
                names.INSTANCE_READY,
                names.INSTANCE_WEIGHTS,
                names.INSTANCE_REQUESTS,
                names.INSTANCE_CHOICES,
                names.INSTANCE_PREFILL_TOKENS,
                names.INSTANCE_CONTEXT_TOKENS,
                names.INSTANCE_PAGES,
                names.INSTANCE_BLOCKS,
                names.INSTANCE_PREFILL_SPEED,
                names.INSTANCE_DECODE_STEP,
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
            if instance.info is not None:
                add(names.INSTANCE_WEIGHTS, 1, name, instance.info.weights.version)
            add(names.INSTANCE_REQUESTS, len(instance.attempts), name)
            if instance.slot is not None:
                blocks = self._dispatcher.chooser.index.num_blocks(instance.slot)
                add(names.INSTANCE_BLOCKS, blocks, name)
            speeds = instances.loads.speeds(name, self._clock.now(), WINDOW_S)
            for metric, speed in zip(_SPEEDS, speeds, strict=True):
                if speed is not None:
                    add(metric, speed, name)
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
