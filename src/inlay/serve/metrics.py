"""Counts what happens to requests, and writes it in the Prometheus text form."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from inlay.core import metrics as names
from inlay.core.clock import Clock, SystemClock
from inlay.core.messages import TIERS, EngineInfo, EngineStats, LoadProgress, RequestOutput


class ServerMetrics:
    """All metrics of one server, in a registry of its own.

    Args:
        info: the engine's.
        model: the served model's name, a label of the aliases.
    """

    def __init__(self, info: EngineInfo, model: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._registry = CollectorRegistry()
        self._counters = {
            metric.name: Counter(metric.name, metric.help, metric.labels, registry=self._registry)
            for metric in names.SERVER_METRICS
            if metric.kind == "counter"
        }
        self._histograms = {
            metric.name: Histogram(
                metric.name, metric.help, buckets=metric.buckets, registry=self._registry
            )
            for metric in names.SERVER_METRICS
            if metric.kind == "histogram"
        }
        self._engine = _EngineCollector(info)
        self._registry.register(self._engine)
        self._aliases = _AliasCollector(
            _Plain(self._registry), {"model_name": model, "engine": "0"}, info
        )

    def add(self, collector: Collector) -> None:
        """Export further families."""
        self._registry.register(collector)

    def track(self, arrival_s: float) -> "RequestTracker":
        """Follow one request from now on."""
        return RequestTracker(self._counters, self._histograms, self._clock, arrival_s)

    def answered(self, status: int) -> None:
        """Count an answer of a generating route."""
        self._counters[names.HTTP_REQUESTS.name].labels(str(status)).inc()

    def render(self, stats: EngineStats | None, progress: LoadProgress) -> bytes:
        """The text that `/metrics` answers; `stats` is None when the engine is gone."""
        self._engine.stats, self._engine.progress = stats, progress
        registry = CollectorRegistry()
        registry.register(_Plain(self._registry))
        registry.register(self._aliases)
        return generate_latest(registry)


class RequestTracker:
    """Times and tokens of one request, observed as its outputs pass by."""

    def __init__(
        self,
        counters: dict[str, Counter],
        histograms: dict[str, Histogram],
        clock: Clock,
        arrival_s: float,
    ) -> None:
        self._counters = counters
        self._histograms = histograms
        self._observe_itl = histograms[names.ITL.name].observe
        self._clock = clock
        self._arrival_s = arrival_s
        self._first_s: float | None = None
        self._last_s: dict[int, float] = {}
        self._prompt_tokens = 0
        self._generated = 0

    def saw(self, output: RequestOutput) -> None:
        """Take note of one step's output."""
        now_s = self._clock.now()
        if output.prompt_tokens is not None:
            self._prompt_tokens = output.prompt_tokens
            self._counters[names.PROMPT_TOKENS.name].inc(output.prompt_tokens)
            self._counters[names.CACHED_TOKENS.name].inc(output.cached_tokens or 0)
        last_s = self._last_s
        for delta in output.choices:
            count = len(delta.token_ids)
            if count:
                before_s = last_s.get(delta.index)
                if before_s is not None:
                    for _ in range(count):
                        self._observe_itl((now_s - before_s) / count)
                elif self._first_s is None:
                    self._first_s = now_s
                    self._histograms[names.TTFT.name].observe(now_s - self._arrival_s)
                last_s[delta.index] = now_s
                self._generated += count
            if delta.finish_reason is not None:
                self._counters[names.FINISHED.name].labels(delta.finish_reason).inc()
        if output.finished and output.error is None:
            self._finished(output, now_s)

    def _finished(self, output: RequestOutput, now_s: float) -> None:
        histograms = self._histograms
        histograms[names.E2E.name].observe(now_s - self._arrival_s)
        histograms[names.REQUEST_PROMPT_TOKENS.name].observe(self._prompt_tokens)
        histograms[names.REQUEST_GENERATED_TOKENS.name].observe(self._generated)
        per_choice = self._generated / max(1, len(self._last_s))
        if self._first_s is not None and per_choice > 1:
            histograms[names.TPOT.name].observe((now_s - self._first_s) / (per_choice - 1))
        if output.times is not None:
            queued_s = max(0.0, output.times.scheduled_s - output.times.arrival_s)
            histograms[names.QUEUE.name].observe(queued_s)

    def close(self) -> None:
        """The request is over, in whatever way."""
        self._counters[names.GENERATED_TOKENS.name].inc(self._generated)
        self._generated = 0


class _EngineCollector(Collector):
    """Families made of the engine's numbers at the time of asking."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self.stats: EngineStats | None = None
        self.progress: LoadProgress | None = None

    def describe(self) -> Iterable[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        info, stats = self._info, self.stats
        yield _gauge(names.ENGINE_UP, 0 if stats is None else 1)
        about = {
            "model": info.model,
            "architecture": info.architecture,
            "weight_format": info.weight_format,
            "device": info.device,
            "isa": info.isa,
            "kv_dtype": info.kv_dtype,
            "placement": info.placement or info.device,
            "deferred": str(info.deferred),
        }
        yield InfoMetricFamily(names.ENGINE_INFO.name, names.ENGINE_INFO.help, value=about)
        if stats is None:
            return
        if self.progress is not None:
            yield _gauge(names.WEIGHTS, self.progress.total_bytes)
            yield _gauge(names.WEIGHTS_LOADED, self.progress.loaded_bytes)
        used = stats.pages_total - stats.pages_free - stats.pages_cached
        pages = GaugeMetricFamily(names.PAGES.name, names.PAGES.help, labels=names.PAGES.labels)
        for state, count in (
            ("free", stats.pages_free),
            ("cached", stats.pages_cached),
            ("used", used),
        ):
            pages.add_metric([state], count)
        yield pages
        yield _gauge(names.PAGE_USAGE, used / max(1, stats.pages_total))
        yield _gauge(names.RUNNING, stats.running)
        yield _gauge(names.WAITING, stats.waiting)
        hits = CounterMetricFamily(
            names.TIER_HITS.name, names.TIER_HITS.help, labels=names.TIER_HITS.labels
        )
        for tier in TIERS:
            hits.add_metric([tier], stats.tier_hit_tokens.get(tier, 0))
        yield hits
        activations = CounterMetricFamily(
            names.EXPERT_ACTIVATIONS.name,
            names.EXPERT_ACTIVATIONS.help,
            labels=names.EXPERT_ACTIVATIONS.labels,
        )
        for place, count in stats.expert_activations.items():
            activations.add_metric([place], count)
        yield activations
        for metric, value in (
            (names.PREFIX_QUERIES, stats.prefix_query_tokens),
            (names.PREFIX_HITS, stats.prefix_hit_tokens),
            (names.PREEMPTIONS, stats.preemptions),
            (names.TIER_LOADED, stats.tier_loaded_bytes),
            (names.TIER_WRITTEN, stats.tier_written_bytes),
            (names.TIER_CUT, stats.tier_cut_tokens),
            (names.TIER_FAILURES, stats.tier_failures),
            (names.TIER_LOST, stats.tier_lost_blocks),
            (names.EXPERTS_MOVED, stats.experts_moved),
            (names.STEPS, stats.steps),
            (names.STEP_BUSY, stats.step_busy_s),
        ):
            yield CounterMetricFamily(metric.name, metric.help, value=value)


class _Plain(Collector):
    """A registry's families without the time at which each series was made."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class _AliasCollector(Collector):
    """The same values again, under the names that routers for other engines read."""

    def __init__(self, registry: _Plain, labels: dict[str, str], info: EngineInfo) -> None:
        self._registry = registry
        self._labels = labels
        self._info = info
        self._by_name = {
            metric.name: metric for metric in (*names.SERVER_METRICS, *names.ENGINE_METRICS)
        }

    def describe(self) -> Iterable[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            metric = self._by_name.get(family.name)
            for alias in metric.aliases if metric is not None else ():
                assert metric is not None
                yield self._renamed(family, alias, metric)
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Size of the KV cache in vLLM's words.",
            labels=[*self._labels, "block_size", "num_gpu_blocks", "cache_dtype"],
        )
        info = self._info
        sizes = [str(info.page_tokens), str(info.num_pages), info.kv_dtype]
        config.add_metric([*self._labels.values(), *sizes], 1)
        yield config
        lora = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters in use; none are served.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        lora.add_metric(["0", "", ""], 0)
        yield lora

    def _renamed(self, family: Family, alias: str, metric: names.Metric) -> Family:
        made = Family(alias, family.documentation, family.type)
        for sample in family.samples:
            labels = {
                (metric.alias_label if name in metric.labels else "") or name: value
                for name, value in sample.labels.items()
            }
            made.add_sample(
                alias + sample.name.removeprefix(family.name),
                {**self._labels, **labels},
                sample.value,
            )
        return made


F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def empty_family(kind: type[F], metric: names.Metric) -> F:
    """A family of a metric with labels, to which values are added."""
    return kind(metric.name, metric.help, labels=metric.labels)


def _gauge(metric: names.Metric, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, value=value)
