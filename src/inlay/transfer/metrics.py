"""Engines' counts as Prometheus metrics, read when they are asked for."""

import weakref
from collections.abc import Iterable, Iterator
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

from inlay.core import metrics as names
from inlay.core.errors import EngineClosedError
from inlay.transfer.engine import TransferEngine
from inlay.transfer.paths import PathInfo

STATES = ("ready", "paused", "closed")

Labels = tuple[str, ...]


class TransferCollector(Collector):
    """The transfer metrics of `inlay.core.metrics`, of these engines together.

    A registry takes one: `registry.register(TransferCollector(engine))`. Engines are not kept; of
    a closed one nothing is told. Counts of a peer begin again when it is connected to again.

    Cost: counts are kept in native code; Python runs when it is scraped.
    """

    def __init__(self, *engines: TransferEngine) -> None:
        self._engines = [weakref.ref(engine) for engine in engines]

    def describe(self) -> Iterable[Family]:
        """Nothing: what there is depends on the paths."""
        return []

    def collect(self) -> Iterator[Family]:
        """The families, from the engines as they are now."""
        paths: list[PathInfo] = []
        refused: dict[Labels, float] = {}
        fenced_lanes = 0
        for engine in filter(None, (ref() for ref in self._engines)):
            try:
                paths += engine.paths()
                counts = engine.port_counts()
            except EngineClosedError:
                continue
            for reason, count in counts.refused.items():
                _add(refused, (reason,), count)
            fenced_lanes += counts.fenced_lanes
        yield from _path_families(paths)
        yield _counter(names.TRANSFER_REFUSED, refused)
        yield _counter(names.TRANSFER_FENCED, {(): fenced_lanes})


def _path_families(paths: list[PathInfo]) -> Iterator[Family]:
    moved: dict[Labels, float] = {}
    inflight: dict[Labels, float] = {}
    errors_s: dict[Labels, float] = {}
    retries: dict[Labels, float] = {}
    latencies: dict[Labels, tuple[list[int], float]] = {}
    states: dict[Labels, str] = {}
    for path in paths:
        key = (path.peer, path.transport)
        _add(moved, (*key, "read"), path.read_bytes)
        _add(moved, (*key, "write"), path.written_bytes)
        _add(inflight, key, path.inflight_bytes)
        _add(errors_s, key, path.error_sum_s)
        for reason, count in path.retries.items():
            _add(retries, (*key, reason), count)
        counts, sum_s = latencies.get(key, ([0] * len(path.latencies), 0.0))
        total = [a + b for a, b in zip(counts, path.latencies, strict=True)]
        latencies[key] = (total, sum_s + path.latency_sum_s)
        # A peer that was lost and its next connection have paths of the same name.
        if path.state != "closed" or (*key, path.name) not in states:
            states[(*key, path.name)] = path.state
    yield _counter(names.TRANSFER_BYTES, moved)
    yield _gauge(names.TRANSFER_INFLIGHT, inflight)
    yield _histogram(names.TRANSFER_LATENCY, latencies)
    yield _counter(names.TRANSFER_PREDICTION_ERROR, errors_s)
    yield _counter(names.TRANSFER_RETRIES, retries)
    of_states: dict[Labels, float] = {
        (*path, state): state == now for path, now in states.items() for state in STATES
    }
    yield _gauge(names.TRANSFER_PATH_STATE, of_states)


def _add(values: dict[Labels, float], labels: Labels, value: float) -> None:
    values[labels] = values.get(labels, 0) + value


def _counter(metric: names.Metric, values: dict[Labels, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(metric: names.Metric, values: dict[Labels, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(
    metric: names.Metric, values: dict[Labels, tuple[list[int], float]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, (counts, sum_s) in values.items():
        family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), sum_s)
    return family
