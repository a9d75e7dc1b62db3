"""Definitions of the metrics that Inlay's servers export, as data.

What each one measures is said in its help text; `docs/metrics.md` defines the symbols. Aliases
are the names under which request routers written for vLLM look for the same numbers.
"""

from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["counter", "gauge", "histogram", "info"]

SECONDS_FINE = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 2.5, 5.0,
)  # fmt: skip
SECONDS_COARSE = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: counters are exported with `_total` appended.
        labels: label names.
        buckets: upper bounds of a histogram.
        aliases: further names with the same values; `alias_label` renames the one label there.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    aliases: tuple[str, ...] = ()
    alias_label: str = ""


TTFT = Metric(
    name="inlay_time_to_first_token_seconds",
    kind="histogram",
    help="From a request's arrival at the server to its first token.",
    buckets=SECONDS_COARSE,
    aliases=("vllm:time_to_first_token_seconds",),
)
ITL = Metric(
    name="inlay_inter_token_latency_seconds",
    kind="histogram",
    help="Each gap between consecutive tokens of a choice.",
    buckets=SECONDS_FINE,
    aliases=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
TPOT = Metric(
    name="inlay_time_per_output_token_seconds",
    kind="histogram",
    help="(last - first token time) / (output tokens - 1), one value per request.",
    buckets=SECONDS_FINE,
    aliases=("vllm:request_time_per_output_token_seconds",),
)
E2E = Metric(
    name="inlay_request_seconds",
    kind="histogram",
    help="From a request's arrival at the server to its last token.",
    buckets=SECONDS_COARSE,
    aliases=("vllm:e2e_request_latency_seconds",),
)
QUEUE = Metric(
    name="inlay_queue_seconds",
    kind="histogram",
    help="From a request's arrival at the server to its first step in the engine.",
    buckets=SECONDS_COARSE,
    aliases=("vllm:request_queue_time_seconds",),
)
REQUEST_PROMPT_TOKENS = Metric(
    name="inlay_request_prompt_tokens",
    kind="histogram",
    help="Prompt tokens of each finished request.",
    buckets=TOKENS,
    aliases=("vllm:request_prompt_tokens",),
)
REQUEST_GENERATED_TOKENS = Metric(
    name="inlay_request_generated_tokens",
    kind="histogram",
    help="Generated tokens of each finished request, all its choices together.",
    buckets=TOKENS,
    aliases=("vllm:request_generation_tokens",),
)
PROMPT_TOKENS = Metric(
    name="inlay_prompt_tokens",
    kind="counter",
    help="Prompt tokens of the requests that were taken on.",
    aliases=("vllm:prompt_tokens",),
)
CACHED_TOKENS = Metric(
    name="inlay_cached_prompt_tokens",
    kind="counter",
    help="Prompt tokens among them whose KV came from the prefix cache.",
    aliases=("vllm:prompt_tokens_cached",),
)
GENERATED_TOKENS = Metric(
    name="inlay_generated_tokens",
    kind="counter",
    help="Tokens generated.",
    aliases=("vllm:generation_tokens",),
)
FINISHED = Metric(
    name="inlay_requests_finished",
    kind="counter",
    help="Choices that ended on their own, by reason (stop, length).",
    labels=("reason",),
    aliases=("vllm:request_success",),
    alias_label="finished_reason",
)
HTTP_REQUESTS = Metric(
    name="inlay_http_requests",
    kind="counter",
    help="Requests to the generating routes by the status they were answered with; "
    "499 means that the client went away first.",
    labels=("status",),
)
WEIGHT_UPDATES = Metric(
    name="inlay_weight_updates",
    kind="counter",
    help="Updates of the weights that are served, by what came of them: done, or an error's code.",
    labels=("outcome",),
)
WEIGHT_UPDATE = Metric(
    name="inlay_weight_update_seconds",
    kind="histogram",
    help="From a wish for other weights until they are in place, pulling them included.",
    buckets=SECONDS_COARSE,
)
WEIGHT_BYTES = Metric(
    name="inlay_weight_pulled_bytes",
    kind="counter",
    help="Bytes of weights that came from publishers and from other servers.",
)
REFUSED = Metric(
    name="inlay_requests_refused",
    kind="counter",
    help="Requests that were not taken for now, by error code.",
    labels=("code",),
)
FAILED = Metric(
    name="inlay_requests_failed",
    kind="counter",
    help="Requests that ended with an error, by its code.",
    labels=("code",),
)
SLO_REQUESTS = Metric(
    name="inlay_slo_requests",
    kind="counter",
    help="Finished requests by class, and whether they kept all its objectives (kept, missed).",
    labels=("class", "outcome"),
)
SLO_OBJECTIVE = Metric(
    name="inlay_slo_objective_seconds",
    kind="gauge",
    help="Objectives of each class that there were requests of (ttft, itl, tbt).",
    labels=("class", "objective"),
)
RUNNING = Metric(
    name="inlay_requests_running",
    kind="gauge",
    help="Requests in the engine's batch.",
    aliases=("vllm:num_requests_running",),
)
WAITING = Metric(
    name="inlay_requests_waiting",
    kind="gauge",
    help="Requests in the engine's queue.",
    aliases=("vllm:num_requests_waiting",),
)
PAGES = Metric(
    name="inlay_pages",
    kind="gauge",
    help="KV pages by state: free, cached (reusable, nobody uses them now), used.",
    labels=("state",),
)
PAGE_USAGE = Metric(
    name="inlay_page_usage_ratio",
    kind="gauge",
    help="Part of the KV pages that running requests hold, 0..1.",
    aliases=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)
PREFIX_QUERIES = Metric(
    name="inlay_prefix_cache_query_tokens",
    kind="counter",
    help="Prompt tokens looked up in the prefix cache.",
    aliases=("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
)
PREFIX_HITS = Metric(
    name="inlay_prefix_cache_hit_tokens",
    kind="counter",
    help="Prompt tokens found in the prefix cache.",
    aliases=("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
)
PREEMPTIONS = Metric(
    name="inlay_preemptions",
    kind="counter",
    help="Times a request had to give up its pages and start over.",
    aliases=("vllm:num_preemptions",),
)
TIER_HITS = Metric(
    name="inlay_tier_hit_tokens",
    kind="counter",
    help="Prompt tokens found in the prefix cache that were loaded, by tier (host, disk, store).",
    labels=("tier",),
)
TIER_LOADED = Metric(
    name="inlay_tier_loaded_bytes",
    kind="counter",
    help="Bytes of KV pages that were loaded from the tiers behind the device.",
)
TIER_WRITTEN = Metric(
    name="inlay_tier_written_bytes",
    kind="counter",
    help="Bytes of KV pages that were copied to the tiers behind the device.",
)
TIER_CUT = Metric(
    name="inlay_tier_cut_tokens",
    kind="counter",
    help="Tokens computed although a tier had them, because that was quicker than their load.",
)
TIER_FAILURES = Metric(
    name="inlay_tier_failures",
    kind="counter",
    help="Calls of the tiers that failed, and blocks that were to be loaded and did not come.",
)
EXPERT_ACTIVATIONS = Metric(
    name="inlay_expert_activations",
    kind="counter",
    help="Experts that tokens chose while they decoded, by who computed them (device, host).",
    labels=("place",),
)
EXPERTS_MOVED = Metric(
    name="inlay_experts_moved",
    kind="counter",
    help="Experts that came to a device's memory because tokens chose them often.",
)
TIER_LOST = Metric(
    name="inlay_tier_lost_blocks",
    kind="counter",
    help="Blocks whose pages were needed before they were copied to a tier.",
)
STEPS = Metric(name="inlay_engine_steps", kind="counter", help="Steps of the engine.")
STEP_BUSY = Metric(
    name="inlay_engine_busy_seconds", kind="counter", help="Time the engine spent in steps."
)
ENGINE_UP = Metric(
    name="inlay_engine_up", kind="gauge", help="1 while the engine's process runs, else 0."
)
WEIGHTS = Metric(
    name="inlay_weights_bytes", kind="gauge", help="Bytes of the weights, as they are held."
)
WEIGHTS_LOADED = Metric(
    name="inlay_weights_loaded_bytes",
    kind="gauge",
    help="Bytes of the weights that are in memory; the others follow while requests are served.",
)
ENGINE_INFO = Metric(
    name="inlay_engine",
    kind="info",
    help="What the engine serves and with what.",
    labels=(
        "model",
        "architecture",
        "weight_format",
        "device",
        "isa",
        "kv_dtype",
        "placement",
        "deferred",
    ),
)

TRANSFER_BYTES = Metric(
    name="inlay_transfer_bytes",
    kind="counter",
    help="Bytes of complete slices that this engine asked for, by op (read, write).",
    labels=("peer", "transport", "op"),
)
TRANSFER_INFLIGHT = Metric(
    name="inlay_transfer_inflight_bytes",
    kind="gauge",
    help="Bytes of slices that paths have and that are not over.",
    labels=("peer", "transport"),
)
TRANSFER_LATENCY = Metric(
    name="inlay_transfer_latency_seconds",
    kind="histogram",
    help="From a slice's post to a path to its completion.",
    labels=("peer", "transport"),
    buckets=tuple((1 << i) / 1e6 for i in range(25)),
)
TRANSFER_PREDICTION_ERROR = Metric(
    name="inlay_transfer_prediction_error_seconds",
    kind="counter",
    help="Sum of |latency - predicted latency| of complete slices.",
    labels=("peer", "transport"),
)
TRANSFER_RETRIES = Metric(
    name="inlay_transfer_retries",
    kind="counter",
    help="Slices that had to be posted again, by why.",
    labels=("peer", "transport", "reason"),
)
TRANSFER_PATH_STATE = Metric(
    name="inlay_transfer_path_state",
    kind="gauge",
    help="1 for the state that a path is in (ready, paused, closed), 0 for the others.",
    labels=("peer", "transport", "path", "state"),
)
TRANSFER_REFUSED = Metric(
    name="inlay_transfer_refused_connections",
    kind="counter",
    help="Connections to the engine's port that ended without proof of the token, by reason.",
    labels=("reason",),
)
TRANSFER_FENCED = Metric(
    name="inlay_transfer_fenced_lanes",
    kind="counter",
    help="Connections of initiators that the engine shut so that nothing more lands by them.",
)

SERVER_METRICS = (
    TTFT,
    ITL,
    TPOT,
    E2E,
    QUEUE,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATED_TOKENS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATED_TOKENS,
    FINISHED,
    HTTP_REQUESTS,
    WEIGHT_UPDATES,
    WEIGHT_UPDATE,
    WEIGHT_BYTES,
)
"""Metrics that the HTTP process counts itself."""

FIGURES_METRICS = (REFUSED, FAILED, SLO_REQUESTS, SLO_OBJECTIVE)
"""Those that it reads from its figures when they are asked for."""

ENGINE_METRICS = (
    RUNNING,
    WAITING,
    PAGES,
    PAGE_USAGE,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PREEMPTIONS,
    EXPERT_ACTIVATIONS,
    EXPERTS_MOVED,
    TIER_HITS,
    TIER_LOADED,
    TIER_WRITTEN,
    TIER_CUT,
    TIER_FAILURES,
    TIER_LOST,
    STEPS,
    STEP_BUSY,
    ENGINE_UP,
    WEIGHTS,
    WEIGHTS_LOADED,
    ENGINE_INFO,
)
"""Metrics read from the engine when they are asked for."""

TRANSFER_METRICS = (
    TRANSFER_BYTES,
    TRANSFER_INFLIGHT,
    TRANSFER_LATENCY,
    TRANSFER_PREDICTION_ERROR,
    TRANSFER_RETRIES,
    TRANSFER_PATH_STATE,
    TRANSFER_REFUSED,
    TRANSFER_FENCED,
)
"""Metrics of transfer engines, read from them when they are asked for."""
