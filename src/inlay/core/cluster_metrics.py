"""Definitions of the metrics that a dispatcher exports besides a server's; as in `core.metrics`."""

from inlay.core.metrics import Metric, MetricKind

INSTANCE = "instance_name"
"""A label: Prometheus has an `instance` of its own, the address that it asked."""


def _cluster(name: str, kind: MetricKind, help: str, *labels: str) -> Metric:
    return Metric(name=f"inlay_{name}", kind=kind, help=help, labels=labels)


INSTANCE_READY = _cluster(
    "instance_ready", "gauge", "1: the instance takes requests of this dispatcher.", INSTANCE
)
INSTANCE_REQUESTS = _cluster(
    "instance_requests", "gauge", "Requests of this dispatcher that are there.", INSTANCE
)
INSTANCE_CHOICES = _cluster(
    "instance_choices",
    "gauge",
    "Choices there, of all dispatchers: waiting, running, or receiving KV.",
    INSTANCE,
    "state",
)
INSTANCE_PREFILL_TOKENS = _cluster(
    "instance_prefill_tokens", "gauge", "Prompt tokens still to be computed there.", INSTANCE
)
INSTANCE_CONTEXT_TOKENS = _cluster(
    "instance_context_tokens", "gauge", "Tokens in the contexts that decode there.", INSTANCE
)
INSTANCE_PAGES = _cluster(
    "instance_pages", "gauge", "Pages there, free, cached or used.", INSTANCE, "state"
)
INSTANCE_WEIGHTS = _cluster(
    "instance_weights",
    "gauge",
    "1, labelled with the version of weights that the instance has; empty: its first ones.",
    INSTANCE,
    "version",
)
DECISIONS = _cluster(
    "dispatch_decisions",
    "counter",
    "Choices of instances: for the whole request, split in two, or refused.",
    "policy",
    "outcome",
)
REUSED_TOKENS = _cluster(
    "dispatch_reused_tokens",
    "counter",
    "Prompt tokens that chosen instances were taken to have in their caches.",
)
RETRIES = _cluster(
    "dispatch_retries",
    "counter",
    "Requests that went on elsewhere, by where they had been and why.",
    INSTANCE,
    "reason",
)
KV_LOST = _cluster(
    "dispatch_kv_lost",
    "counter",
    "Prompts computed where they are decoded, since those computed elsewhere did not come.",
)
COPIED_BLOCKS = _cluster(
    "dispatch_copied_blocks",
    "counter",
    "Blocks that an instance got from another since they were wanted there.",
)
COPIES_FAILED = _cluster("dispatch_copies_failed", "counter", "Copies of blocks that did not come.")
INSTANCE_BLOCKS = _cluster(
    "instance_blocks", "gauge", "Reusable blocks there that this dispatcher knows of.", INSTANCE
)
INSTANCE_PREFILL_SPEED = _cluster(
    "instance_prefill_tokens_per_second",
    "gauge",
    "Prompt tokens computed per second of steps that had any, over the last minute.",
    INSTANCE,
)
INSTANCE_DECODE_STEP = _cluster(
    "instance_decode_step_seconds",
    "gauge",
    "Mean of steps without prompt tokens, over the last minute.",
    INSTANCE,
)
INDEX_BLOCKS = _cluster(
    "dispatch_index_blocks", "gauge", "Different blocks that this dispatcher knows of."
)
INDEX_BYTES = _cluster("dispatch_index_bytes", "gauge", "Memory of its prefix index.")
PATH_PROMPTS = _cluster(
    "kv_path_prompts",
    "counter",
    "Prompts computed by one instance whose keys and values another one asked for.",
    "source",
    "target",
)
PATH_BYTES = _cluster(
    "kv_path_bytes", "counter", "Bytes of the pages that were asked for.", "source", "target"
)
PATH_LOST = _cluster(
    "kv_path_lost", "counter", "Of these prompts, those that did not come.", "source", "target"
)
