"""Definitions of the metrics that a dispatcher exports besides a server's; as in `core.metrics`."""

from inlay.core.metrics import Metric, MetricKind


def _cluster(name: str, kind: MetricKind, help: str, *labels: str) -> Metric:
    return Metric(name=f"inlay_{name}", kind=kind, help=help, labels=labels)


INSTANCE_READY = _cluster(
    "instance_ready", "gauge", "1: the instance takes requests of this dispatcher.", "instance"
)
INSTANCE_REQUESTS = _cluster(
    "instance_requests", "gauge", "Requests of this dispatcher that are there.", "instance"
)
INSTANCE_CHOICES = _cluster(
    "instance_choices",
    "gauge",
    "Choices there, of all dispatchers: waiting, running, or receiving KV.",
    "instance",
    "state",
)
INSTANCE_PREFILL_TOKENS = _cluster(
    "instance_prefill_tokens", "gauge", "Prompt tokens still to be computed there.", "instance"
)
INSTANCE_CONTEXT_TOKENS = _cluster(
    "instance_context_tokens", "gauge", "Tokens in the contexts that decode there.", "instance"
)
INSTANCE_PAGES = _cluster(
    "instance_pages", "gauge", "Pages there, free, cached or used.", "instance", "state"
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
    "instance",
    "reason",
)
KV_LOST = _cluster(
    "dispatch_kv_lost",
    "counter",
    "Prompts computed where they are decoded, since those computed elsewhere did not come.",
)
