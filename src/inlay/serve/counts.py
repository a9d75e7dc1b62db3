"""What is counted as requests pass, and made into Prometheus' families when somebody asks.

The client library's own counters cost ten times as much for each event: locks, checks of labels.
All calls come from one thread.
"""

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from inlay.core.metrics import Metric


class Count:
    """A number that only grows, for each combination of labels that was seen."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._values: dict[tuple[str, ...], float] = {} if metric.labels else {(): 0.0}

    def add(self, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """So many more."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def family(self) -> CounterMetricFamily:
        """For an answer."""
        metric = self._metric
        made = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in self._values.items():
            made.add_metric(labels, value)
        return made


class Distribution:
    """How many values there were up to each bound, and their sum."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._bounds = (*metric.buckets, float("inf"))
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """There was this value, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self) -> HistogramMetricFamily:
        """For an answer."""
        names = map(floatToGoString, self._bounds)
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return HistogramMetricFamily(
            self._metric.name, self._metric.help, buckets=buckets, sum_value=self._sum
        )
