"""Counts what happens to requests, and writes it in the Prometheus text form."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
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
from inlay.serve.counts import Count, Distribution

DONE = "done"
"""The outcome of an update of weights that are in place."""


class ServerMetrics:
    """All metrics of one server.

    Args:
        info: the engine's.
        model: the served model's name, a label of the aliases.
    """

    def __init__(self, info: EngineInfo, model: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._counts = {
            metric.name: Count(metric)
            for metric in names.SERVER_METRICS
            if metric.kind == "counter"
        }
        self._distributions = {
            metric.name: Distribution(metric)
            for metric in names.SERVER_METRICS
            if metric.kind == "histogram"
        }
        self._engine = _EngineCollector(info)
        self._collectors: list[Collector] = [
            _Counted([*self._counts.values(), *self._distributions.values()]),
            self._engine,
        ]
        self._model = model
        self._info = info

    def add(self, collector: Collector) -> None:
        """Export further families."""
        self._collectors.append(collector)

    def track(self, arrival_s: float) -> "RequestTracker":
        """Follow one request from now on."""
        return RequestTracker(self._counts, self._distributions, self._clock, arrival_s)

    def answered(self, status: int) -> None:
        """Count an answer of a generating route."""
        self._counts[names.HTTP_REQUESTS.name].add(labels=(str(status),))

    def weights_updated(self, outcome: str, seconds: float, pulled_bytes: int) -> None:
        """Count an update of weights. `seconds` counts where it is done."""
        self._counts[names.WEIGHT_UPDATES.name].add(labels=(outcome,))
        self._counts[names.WEIGHT_BYTES.name].add(pulled_bytes)
        if outcome == DONE:
            self._distributions[names.WEIGHT_UPDATE.name].add(seconds)

    def render(self, stats: EngineStats | None, progress: LoadProgress) -> bytes:
        """The text that `/metrics` answers; `stats` is None when the engine is gone."""
        self._engine.stats, self._engine.progress = stats, progress
        families = [family for collector in self._collectors for family in collector.collect()]
        registry = CollectorRegistry()
        registry.register(_Families(families))
        labels = {"model_name": self._model, "engine": "0"}
        registry.register(_Families([*_aliases(families, labels, self._info)]))
        return generate_latest(registry)


class RequestTracker:
    """Times and tokens of one request, observed as its outputs pass by."""

    def __init__(
        self,
        counts: dict[str, Count],
        distributions: dict[str, Distribution],
        clock: Clock,
        arrival_s: float,
    ) -> None:
        self._counts = counts
        self._distributions = distributions
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
            self._counts[names.PROMPT_TOKENS.name].add(output.prompt_tokens)
            self._counts[names.CACHED_TOKENS.name].add(output.cached_tokens or 0)
        last_s = self._last_s
        for delta in output.choices:
            count = len(delta.token_ids)
            if count:
                before_s = last_s.get(delta.index)
                if before_s is not None:
                    self._distributions[names.ITL.name].add((now_s - before_s) / count, count)
                elif self._first_s is None:
                    self._first_s = now_s
                    self._distributions[names.TTFT.name].add(now_s - self._arrival_s)
                last_s[delta.index] = now_s
                self._generated += count
            if delta.finish_reason is not None:
                self._counts[names.FINISHED.name].add(labels=(delta.finish_reason,))
        if output.finished and output.error is None:
            self._finished(output, now_s)

    def _finished(self, output: RequestOutput, now_s: float) -> None:
        distributions = self._distributions
        distributions[names.E2E.name].add(now_s - self._arrival_s)
        distributions[names.REQUEST_PROMPT_TOKENS.name].add(self._prompt_tokens)
        distributions[names.REQUEST_GENERATED_TOKENS.name].add(self._generated)
        per_choice = self._generated / max(1, len(self._last_s))
        if self._first_s is not None and per_choice > 1:
            distributions[names.TPOT.name].add((now_s - self._first_s) / (per_choice - 1))
        if output.times is not None:
            queued_s = max(0.0, output.times.scheduled_s - output.times.arrival_s)
            distributions[names.QUEUE.name].add(queued_s)

    def close(self) -> None:
        """The request is over, in whatever way."""
        self._counts[names.GENERATED_TOKENS.name].add(self._generated)
        self._generated = 0


class _EngineCollector(Collector):
    """Families made of the engine's numbers at the time of asking."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self.stats: EngineStats | None = None
        self.progress: LoadProgress | None = None

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


class _Counted(Collector):
    """What is counted here."""

    def __init__(self, counted: Sequence[Count | Distribution]) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Family]:
        for one in self._counted:
            yield one.family()


class _Families(Collector):
    """Families that are there already."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _aliases(
    families: Sequence[Family], labels: dict[str, str], info: EngineInfo
) -> Iterator[Family]:
    """The same values again, under the names that routers for other engines read."""
    by_name = {metric.name: metric for metric in (*names.SERVER_METRICS, *names.ENGINE_METRICS)}
    for family in families:
        metric = by_name.get(family.name)
        for alias in metric.aliases if metric is not None else ():
            assert metric is not None
            yield _renamed(family, alias, metric, labels)
    config = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Size of the KV cache in vLLM's words.",
        labels=[*labels, "block_size", "num_gpu_blocks", "cache_dtype"],
    )
    sizes = [str(info.page_tokens), str(info.num_pages), info.kv_dtype]
    config.add_metric([*labels.values(), *sizes], 1)
    yield config
    lora = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters in vLLM's words; which of them are in use is not told.",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    lora.add_metric(["0", "", ""], 0)
    yield lora


def _renamed(family: Family, alias: str, metric: names.Metric, common: dict[str, str]) -> Family:
    made = Family(alias, family.documentation, family.type)
    for sample in family.samples:
        labels = {
            (metric.alias_label if name in metric.labels else "") or name: value
            for name, value in sample.labels.items()
        }
        made.add_sample(
            alias + sample.name.removeprefix(family.name), {**common, **labels}, sample.value
        )
    return made


F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def empty_family(kind: type[F], metric: names.Metric) -> F:
    """A family of a metric with labels, to which values are added."""
    return kind(metric.name, metric.help, labels=metric.labels)


def _gauge(metric: names.Metric, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, value=value)
