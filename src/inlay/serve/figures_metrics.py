"""Metrics made of a server's figures: what became of requests, by class of objectives."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from inlay.cluster.figures import Figures
from inlay.core import metrics as names
from inlay.serve.metrics import empty_family

_OBJECTIVES = ("ttft", "itl", "tbt")


class FiguresCollector(Collector):
    """See the module."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Family]:
        """Nothing: the families are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families."""
        totals = self._figures.tally.totals
        for metric, kind in ((names.REFUSED, "refused:"), (names.FAILED, "failed:")):
            family = empty_family(CounterMetricFamily, metric)
            for key, count in totals.items():
                if key.startswith(kind):
                    family.add_metric([key.removeprefix(kind)], count)
            yield family
        judged = empty_family(CounterMetricFamily, names.SLO_REQUESTS)
        objectives = empty_family(GaugeMetricFamily, names.SLO_OBJECTIVE)
        for name, of_class in self._figures.classes.items():
            kept = totals.get(f"good:{name}", 0.0)
            judged.add_metric([name, "kept"], kept)
            judged.add_metric([name, "missed"], totals.get(f"finished:{name}", 0.0) - kept)
            for objective in _OBJECTIVES:
                seconds = getattr(of_class.slo, f"{objective}_s")
                if seconds < float("inf"):
                    objectives.add_metric([name, objective], seconds)
        yield judged
        yield objectives
