"""The picture of a cluster at a time, as data: what `/cluster/status` answers.

One engine behind a server has the same picture with one instance. What is not known is null.
"""

from typing import Literal

import msgspec

HIT_TIERS = ("device", "host", "disk", "store")
"""Where prompt tokens were found, the nearest first."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of a duration, over the window; null where there was none."""

    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    count: int = 0


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One instance.

    Attributes:
        state: `ready`, `draining`, `starting`, `loading`, or why it is not used, in words.
        run: of its process, hex.
        weight_version: of the weights that compute its new requests; empty: its first ones.
        requests: of this dispatcher that are there.
        waiting, running, receiving, prefill_tokens, context_tokens, pages_*: as in `LoadReport`.
        page_bytes: of a page's KV.
        num_blocks: reusable ones that the dispatcher knows of.
        prefill_tokens_per_s: while prompts were computed, over the window.
        decode_step_s: mean of steps that had no prompt tokens, over the window.
        query_tokens, hit_tokens: prompt tokens looked up, and found by tier, since its start.
        loaded_bytes, written_bytes: of KV, from and to the tiers behind the device.
        tier_failures: calls of these tiers that failed, and blocks that did not come.
        preemptions: times that a request gave up its pages and started over.
        retries: requests of this dispatcher that went on elsewhere, by why.
        busy: choices there by slot of history.
    """

    name: str
    role: str
    state: str
    run: str = ""
    host: str = ""
    model: str = ""
    device: str = ""
    requests: int = 0
    waiting: int = 0
    running: int = 0
    receiving: int = 0
    max_running: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    page_bytes: int = 0
    num_blocks: int | None = None
    prefill_tokens_per_s: float | None = None
    decode_step_s: float | None = None
    query_tokens: int = 0
    hit_tokens: dict[str, int] = {}
    loaded_bytes: int = 0
    written_bytes: int = 0
    tier_failures: int = 0
    preemptions: int = 0
    retries: dict[str, int] = {}
    busy: list[float] = []
    weight_version: str = ""

    @property
    def pages_used(self) -> int:
        """That requests hold."""
        return self.pages_total - self.pages_free - self.pages_cached


class ClassStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one class of objectives, over the window.

    Attributes:
        ttft_slo_s, itl_slo_s, tbt_slo_s: the objectives; null where there is none.
        finished, good, refused: requests; `good` kept all objectives.
        goodput_per_s: of good ones.
        impossible: which objectives no instance can keep, not even one that is idle.
        ttft_p50_s, ...: percentiles by slot of history.
    """

    name: str
    ttft_slo_s: float | None
    itl_slo_s: float | None
    tbt_slo_s: float | None
    ttft: Percentiles
    itl: Percentiles
    tbt: Percentiles
    finished: int
    good: int
    refused: int
    goodput_per_s: float
    impossible: str
    ttft_p50_s: list[float | None]
    ttft_p99_s: list[float | None]
    itl_p50_s: list[float | None]
    itl_p99_s: list[float | None]


class RefusalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was not taken."""

    request: str
    age_s: float
    code: str
    reason: str
    retry_after_s: float | None


class TrafficStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What clients asked for and had.

    Attributes:
        in_flight: requests that are not over.
        waiting_for_instance: of them, while no instance takes requests.
        requests_per_s, output_tokens_per_s: over the window.
        prompt_tokens, hit_tokens: of prompts, and found in caches by tier, over the window.
        refused, failed: by code, over the window.
        refused_total, failed_total, requests_total: since the start.
        retries: requests that went on elsewhere since the start, by why.
        refusals: the latest, the newest first.
    """

    in_flight: int
    waiting_for_instance: int = 0
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    hit_tokens: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]
    requests_total: int
    refused_total: int
    failed_total: int
    retries: dict[str, int] = {}
    refusals: list[RefusalStatus] = []


class HistoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in each slot of time, the oldest first; the last one is not over.

    Attributes:
        slot_s: how long one is.
        requests, refused: how many came, and were not taken.
        prompt_tokens, hit_tokens: of prompts, and found in caches by tier.
    """

    slot_s: float
    requests: list[float]
    refused: list[float]
    prompt_tokens: list[float]
    hit_tokens: dict[str, list[float]]


class RouteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One way that the bytes can take; as in `core.messages.KvRoute`."""

    transport: str
    state: str
    reason: str
    size_bytes: int
    retries: int
    bandwidth_gbs: float | None


class PathStatus(msgspec.Struct, frozen=True, kw_only=True):
    """KV of prompts from the instance that computes them to the one that decodes.

    Attributes:
        prompts: that were to go there.
        size_bytes: of the pages that were asked for.
        lost: of these prompts, those that did not come and were computed again.
        last_s: from the request for the KV to the first output, the latest time.
        age_s: since that.
        routes: of the transfer engine of `source`, whoever's prompts it sent.
    """

    source: str
    target: str
    prompts: int
    size_bytes: int
    lost: int
    last_s: float | None
    age_s: float | None
    routes: list[RouteStatus] = []


class DecisionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request went, or why not; `/debug/decisions` has the candidates.

    Attributes:
        outcome: `whole`, `split` or `refused`.
        reused_blocks: leading blocks that need not be computed.
        ttft_s: predicted, of which `wait_s` in a queue and `work_s` computing.
        measured_ttft_s: from the decision to the first token; null before.
    """

    request: str
    age_s: float
    policy: str
    outcome: Literal["whole", "split", "refused"]
    prefill: str | None
    decode: str | None
    num_tokens: int
    reused_blocks: int
    ttft_s: float
    wait_s: float
    work_s: float
    tbt_s: float
    refusal: str | None
    measured_ttft_s: float | None


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that the dispatcher knows of.

    Attributes:
        different_blocks: each counted once, on however many instances it is.
        blocks: of all instances together.
        expected_blocks: that are taken to be there soon.
        memory_bytes: of the index.
    """

    different_blocks: int
    blocks: int
    expected_blocks: int
    memory_bytes: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        taken_s: when, in seconds of Unix time.
        server: `dispatcher`, or `engine` where one serves alone.
        policy: that chooses instances; empty where there is one.
        window_s: of everything that is said to be over the window.
        page_tokens: tokens of a page.
    """

    taken_s: float
    server: Literal["dispatcher", "engine"]
    model: str
    policy: str
    window_s: float
    page_tokens: int
    instances: list[InstanceStatus]
    traffic: TrafficStatus
    classes: list[ClassStatus]
    history: HistoryStatus
    paths: list[PathStatus]
    decisions: list[DecisionStatus]
    index: IndexStatus | None
