"""What front ends, dispatchers and engines say to each other.

Plain msgspec structs, encoded as MessagePack arrays. Unknown trailing fields are ignored, so a
field is only ever added at the end, with a default.
"""

from typing import Literal

import msgspec

from inlay.core.token_ids import TOKEN_BYTES, unpack_token_ids

FinishReason = Literal["stop", "length", "cancel", "error"]
Tier = Literal["host", "disk", "store"]
TIERS: tuple[Tier, ...] = ("host", "disk", "store")
Phase = Literal["both", "prefill", "decode"]
InFlight = Literal["finish", "recompute", "continue"]
ResumeKv = Literal["keep", "recompute"]
StructureKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Structure(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that the output must follow.

    Attributes:
        kind: what `value` is.
        value: JSON text of the schema, the regex, a JSON list of choices, or a lark grammar;
            empty for `json_object`.
    """

    kind: StructureKind
    value: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How the tokens of one request are chosen.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set with at least this probability, in (0, 1].
        min_p: drop tokens less likely than `min_p` times the most likely one, in [0, 1].
        presence_penalty, frequency_penalty: subtracted for tokens of the output so far, -2..2.
        repetition_penalty: divides (multiplies, if negative) logits of seen tokens, in
            (0, 1000].
        logit_bias: added to the logits of these token ids, -100..100.
        stop: texts that end a choice; not part of its text.
        stop_token_ids: token ids that end a choice, besides the model's own.
        max_tokens: output limit per choice; None runs to the end of the context.
        min_tokens: no end of any kind before so many tokens.
        ignore_eos: the model's end tokens do not end a choice.
        seed: of the random draws; None lets the engine choose one.
        n: choices per prompt; they share the prompt's pages.
        logprobs: how many alternatives to report per token; None reports nothing, 0 only the
            chosen token.
        prompt_logprobs: the same for the prompt's tokens.
        structure: a grammar that the output must follow.
        skip_special_tokens: leave special tokens out of the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structure: Structure | None = None
    skip_special_tokens: bool = True


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """A prompt and what to do with it.

    Attributes:
        request_id: unique among the engine's live requests.
        prompt: at least one token, as `core.token_ids` packs them.
        params: how to sample.
        arrival_s: monotonic time of arrival at the front (see `core.clock.SystemClock`).
        priority: lower runs earlier; ties by arrival.
        cache_salt: requests reuse each other's KV only under the same salt.
        trace: also report experts used per layer and pages reused (`RequestTrace`).
        phase: `both`; `prefill`: compute the KV of all tokens but the last, and send it where a
            `KvTarget` says; `decode`: another instance computes that, this one reserves pages for
            it, says where they are, and goes on from there. If it does not come, it computes it.
        produced: output tokens of each choice so far, where another instance has begun; None for a
            choice that is finished. They are not put out again. Empty: nothing has begun.
        age_s: how long ago `arrival_s` was when this was sent, from a machine with another clock;
            None: from this one.
        session: whose turn this is; `PauseSession` and `ResumeSession` name it. Empty: none.
        slo: class of its objectives. Empty: the default one.
        adapter: name of the adapter that it wants. Empty: the model's own weights.
        weights: that are to compute it, as `Namespace.weights` names them; an engine of others
            refuses it with `WeightsConflictError`. Empty: whatever is there.
        kv_weights: it may begin with KV of these others; then nobody else has blocks from it.
            Empty: with KV of those that compute it.
    """

    request_id: str
    prompt: bytes
    params: SamplingParams
    arrival_s: float
    priority: int = 0
    cache_salt: str = ""
    trace: bool = False
    phase: Phase = "both"
    produced: tuple[tuple[int, ...] | None, ...] = ()
    age_s: float | None = None
    session: str = ""
    slo: str = ""
    adapter: str = ""
    weights: str = ""
    kv_weights: str = ""

    @property
    def num_tokens(self) -> int:
        """Of the prompt."""
        return len(self.prompt) // TOKEN_BYTES

    @property
    def token_ids(self) -> list[int]:
        """Of the prompt; made anew each time."""
        return unpack_token_ids(self.prompt)


class CancelRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop a request and free its pages at once. Unknown ids are ignored."""

    request_id: str


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log probability of one token, natural log, before temperature and penalties.

    Attributes:
        top: the most likely alternatives as (token id, logprob), most likely first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one step added to one choice.

    Attributes:
        index: the choice, 0..n-1.
        text: new text; may be empty while a character is incomplete or a stop text may follow.
        token_ids: the new tokens, usually one.
        logprobs: one per new token when asked for.
        finish_reason: set on the last delta of the choice.
        stop_reason: the stop text or token id that ended it.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Monotonic times of a request's life, in seconds."""

    arrival_s: float
    scheduled_s: float
    first_token_s: float
    finished_s: float


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What happened inside, for the curious.

    Attributes:
        expert_counts_LE: how often each expert was chosen, per MoE layer; empty for dense models.
        pages_reused: pages taken from the prefix cache.
        pages_used: pages held at the end.
        preemptions: how often the request had to start over.
        tier_tokens: prompt tokens that were loaded from the tiers behind the device: `host`,
            `disk`, `store`.
    """

    expert_counts_LE: list[list[int]]
    pages_reused: int
    pages_used: int
    preemptions: int
    tier_tokens: dict[str, int] = {}


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What one step added to one request.

    Attributes:
        prompt_tokens, cached_tokens: set on the first output (cached: taken from the prefix
            cache).
        prompt_logprobs: on the first output when asked for; None for the first prompt token.
        finished: no output follows.
        error: message of the `InlayError` that ended the request; `error_code` its code.
        times, trace: on the last output.
        tier_tokens: on the first output, if some of `cached_tokens` were loaded: how many from
            which tier.
        weight_version: on the first output and the last: of the weights that computed it; empty:
            those that were loaded first. None where it is not known.
    """

    request_id: str
    choices: tuple[ChoiceDelta, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finished: bool = False
    error: str | None = None
    error_code: str | None = None
    error_param: str | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    tier_tokens: dict[str, int] | None = None
    weight_version: str | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What an engine serves and with what; fixed while it runs.

    Attributes:
        model: the name or directory it was given.
        architecture: `qwen3_moe`, `llama`, ...
        weight_format: how the weights are held.
        isa: kernel variant on the CPU, or the GPU's name.
        placement: what is where, in words; empty where all of it is on `device`.
        deferred: how many experts of a token that decodes may be added one layer later.
        adapters: those that it was started with, by name the fingerprint of their content.
    """

    model: str
    architecture: str
    parameters: int
    max_context_tokens: int
    vocab_size: int
    layers: int
    moe_layers: int
    experts: int
    experts_per_token: int
    device: str
    weight_format: str
    kv_dtype: str
    isa: str
    page_tokens: int
    num_pages: int
    page_bytes: int
    load_s: float
    placement: str = ""
    deferred: int = 0
    adapters: dict[str, str] = {}


class KvRoute(msgspec.Struct, frozen=True, array_like=True):
    """One path by which an engine sends KV to another one, as `transfer.PathInfo` has it.

    Attributes:
        peer: address of the other one's transfer engine.
        transport: such as "tcp".
        state: `ready`, `paused` or `closed`.
        reason: why it is not ready; else empty.
        size_bytes: that went by it.
        retries: pieces that had to be sent again.
        bandwidth_gbs: expected of the next pieces, in 10^9 bytes per second; None before the first.
    """

    peer: str
    transport: str
    state: str
    reason: str
    size_bytes: int
    retries: int
    bandwidth_gbs: float | None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Gauges and running totals of one engine.

    Attributes:
        pages_cached: pages that hold reusable blocks and nobody uses now.
        prefix_query_tokens, prefix_hit_tokens: prompt tokens looked up / found in the cache.
        tier_hit_tokens: those of them that were loaded, by tier: `host`, `disk`, `store`.
        tier_loaded_bytes, tier_written_bytes: of pages that came from and went to the tiers.
        tier_cut_tokens: tokens computed although a tier had them, because that was quicker.
        tier_failures: calls of the tiers that failed, and blocks that did not come.
        tier_lost_blocks: blocks that gave up their pages before they were copied.
        expert_activations: experts of tokens that decoded, by who computed them: `device`, `host`.
        experts_moved: experts that came to a device because they were used often.
        kv_routes: to other engines, those that it has sent KV to.
        weight_version: of the weights that compute new requests; empty: those that came first.
    """

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    step_busy_s: float = 0.0
    tier_hit_tokens: dict[str, int] = {}
    tier_loaded_bytes: int = 0
    tier_written_bytes: int = 0
    tier_cut_tokens: int = 0
    tier_failures: int = 0
    tier_lost_blocks: int = 0
    expert_activations: dict[str, int] = {}
    experts_moved: int = 0
    kv_routes: tuple[KvRoute, ...] = ()
    weight_version: str = ""


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """How much of the weights is in memory: before `EngineInfo`, each second, and at the end.

    Attributes:
        loaded_bytes, total_bytes: at the end the first is less than the second where memory is
            short and mapped weights stay in their file.
        seconds: from the beginning; to the end, once that is there.
        over: nothing more will come.
    """

    loaded_bytes: int
    total_bytes: int
    seconds: float
    over: bool


class ResetPrefixCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget all cached blocks that no request uses."""


class PauseSession(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A session waits for something else, a tool for example: its blocks may make room for others.

    Answered by `SessionBlocks`.
    """

    session: str


class ResumeSession(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The next turn of a session is near: bring its blocks back. Answered by `SessionBlocks`."""

    session: str


class SessionBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What an engine knows of a session.

    Attributes:
        num_blocks: of its last turn; 0: no turn of it has ended here.
        on_device: how many of them are on the device now.
    """

    session: str
    num_blocks: int
    on_device: int


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Load an adapter from a directory that the engine sees. Answered by `AdapterAnswer`."""

    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget an adapter that no request uses. Answered by `AdapterAnswer`."""

    name: str


class AdapterAnswer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What became of an adapter.

    Attributes:
        code, message: of the `InlayError` that it failed with; empty: it is done.
        fingerprint: of the content of one that was loaded.
    """

    name: str
    code: str = ""
    message: str = ""
    fingerprint: str = ""


class SwapWeights(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Replace the weights between two steps, when they are loaded. Answered by `WeightsSwapped`.

    Attributes:
        directory: holds config.json and weights of the same model.
        version: their name.
        in_flight: what becomes of requests that have begun, see `Engine.swap_weights`.
        asked_s: Unix time when somebody asked for them.
        holders: addresses of those who hold them: an instance that does not see the directory pulls
            them from the first one that answers, and from whom that one knows.
    """

    directory: str
    version: str
    in_flight: InFlight = "finish"
    asked_s: float = 0.0
    holders: tuple[str, ...] = ()


class ServedWeights(msgspec.Struct, frozen=True, array_like=True):
    """Weights that compute new requests, and where they came from.

    Attributes:
        version: empty: those that were loaded first.
        directory: in which they lay, as the one who asked for them sees it.
        asked_s: Unix time when somebody asked for them: of two weights in a deployment, the later
            ones are those that all are to have. 0: those that were loaded first.
        held_at: where others may pull them from this instance; empty: it does not hold them.
    """

    version: str = ""
    directory: str = ""
    asked_s: float = 0.0
    held_at: str = ""


class InstanceWeights(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What an update of a deployment's weights came to at one instance.

    Attributes:
        version: that computes its new requests now.
        seconds: that loading took; 0 where it had them, or did not take them.
        error: why it has not taken the new ones; `error_code` its code.
        made_bytes: as in `WeightsSwapped`.
    """

    name: str
    version: str
    seconds: float = 0.0
    error: str | None = None
    error_code: str | None = None
    made_bytes: int = 0


class WeightsSwapped(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What became of a `SwapWeights`.

    Attributes:
        seconds: that loading took.
        error: why the old ones stay; `error_code` its code.
        made_bytes: memory of the matrices that were made anew; all others are those of before.
        instances: of a deployment, each one; empty: there is one engine.
    """

    version: str
    seconds: float
    error: str | None = None
    error_code: str | None = None
    made_bytes: int = 0
    instances: tuple[InstanceWeights, ...] = ()


class PauseRollouts(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop requests between two steps until `ResumeRollouts`. Answered by `PausedRollouts`.

    Attributes:
        request_ids: as the one who asks names them, or as clients do, whoever sent them; those that
            are not here are left out. None: all that wait or run now.
    """

    request_ids: tuple[str, ...] | None = None


class RolloutHandle(msgspec.Struct, frozen=True, array_like=True):
    """A request that was paused, as it was then; clients have it as `id@version`.

    Attributes:
        version: of the weights that had computed it.
    """

    request_id: str
    version: str

    def __str__(self) -> str:
        return f"{self.request_id}@{self.version}"

    def refusal(self, version: str | None) -> str | None:
        """Why it does not go on, if so.

        Args:
            version: by which it is paused now; None: it is not.
        """
        if version is None:
            return f"{self} is not paused"
        if version != self.version:
            return f"{self} is paused as {RolloutHandle(self.request_id, version)}"
        return None


class ResumeRollouts(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let paused requests go on. Answered by `PausedRollouts` of those that do.

    Attributes:
        handles: with ids as in `PauseRollouts`. None: all that are paused.
        kv: see `Engine.resume_rollouts`.
        only_ask: say which would go on, and let none.
    """

    handles: tuple[RolloutHandle, ...] | None = None
    kv: ResumeKv = "keep"
    only_ask: bool = False


class RolloutChoice(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One choice of a paused request.

    Attributes:
        token_ids: of its output so far.
        blocks: leading blocks whose KV is on the device now; tiers may have more.
    """

    index: int
    token_ids: tuple[int, ...]
    blocks: int


class Rollout(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A request that was paused.

    Attributes:
        version: of the weights that have computed it.
    """

    request_id: str
    prompt_tokens: int = 0
    version: str = ""
    choices: tuple[RolloutChoice, ...] = ()

    @property
    def handle(self) -> RolloutHandle:
        """By which it goes on."""
        return RolloutHandle(self.request_id, self.version)


class PausedRollouts(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """What `PauseRollouts` stopped, or `ResumeRollouts` let go on.

    Attributes:
        refused: why handles do not go on, each in words; then nothing does.
    """

    rollouts: tuple[Rollout, ...] = ()
    refused: tuple[str, ...] = ()


class StatsRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ask for an `EngineStats` now."""


class EngineFailure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine cannot start or go on: an error's code and message."""

    code: str
    message: str


class OutputBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All outputs of one engine step, sent as one message."""

    outputs: tuple[RequestOutput, ...]


ToEngine = (
    GenerateRequest
    | CancelRequest
    | ResetPrefixCache
    | StatsRequest
    | PauseSession
    | ResumeSession
    | LoadAdapter
    | UnloadAdapter
    | SwapWeights
    | PauseRollouts
    | ResumeRollouts
)
FromEngine = (
    OutputBatch
    | EngineInfo
    | EngineStats
    | EngineFailure
    | LoadProgress
    | SessionBlocks
    | AdapterAnswer
    | WeightsSwapped
    | PausedRollouts
)
