"""Requests and choices while the engine works on them: data only."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from inlay.cache import BlockNames, Outgoing, PageHold, Prefetch
from inlay.core.messages import FinishReason, GenerateRequest, SamplingParams, TokenLogprob
from inlay.engine.sampling import ChoiceSampler
from inlay.engine.structure import GrammarMask
from inlay.engine.text_output import TextOutput

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights

ChoiceState = Literal["pending", "receiving", "waiting", "running", "sending", "paused", "finished"]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request between arrival and its last output.

    Attributes:
        order: arrival number; breaks ties.
        round: among those of all tenants, see `engine.rounds`; None before it is queued.
        seed: of its draws.
        max_tokens: output limit per choice, resolved against the context.
        end_ids: tokens that end a choice.
        prompt: token ids of the prompt.
        unfinished: choices that have no finish reason yet.
        prompt_logprobs: collected so far; entry 0 is None.
        expert_counts_LE: tokens per expert, when traced.
        announced: whether an output has carried the prompt's counts.
        cached_tokens: prompt tokens that need not be computed; those of `tier_tokens`, which
            were loaded, and those that were on the device.
        counted_tokens: how many of `cached_tokens` the engine's totals have.
        adapter: what is added to the model's weights; None: nothing.
        weights: number of the weights that compute it, see `engine.weight_updates`.
        mixed: some of its KV is of other weights than these; nobody else may use its blocks.
    """

    message: GenerateRequest
    order: int
    seed: int
    max_tokens: int
    end_ids: frozenset[int]
    unfinished: int
    round: int | None = None
    choices: list["Choice"] = field(default_factory=list)
    scheduled_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    tier_tokens: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    pages_reused: int = 0
    pages_used: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    prompt: list[int] = field(init=False)
    expert_counts_LE: npt.NDArray[np.int64] | None = None
    announced: bool = False
    counted_tokens: int = 0
    adapter: "AdapterWeights | None" = None
    weights: int = 0
    mixed: bool = False

    def __post_init__(self) -> None:
        self.prompt = self.message.token_ids

    @property
    def names_depend_on(self) -> tuple[str, str, str]:
        """What, besides tokens, its blocks are named by: salt, adapter's content, weights (empty:
        those that compute it).
        """
        adapter = "" if self.adapter is None else self.adapter.fingerprint
        return self.message.cache_salt, adapter, self.message.kv_weights if self.mixed else ""

    def spared(self, num_tokens: int) -> None:
        """Tokens need not be computed. What a preemption threw away is no hit."""
        if not self.preemptions:
            self.cached_tokens += num_tokens

    def loaded(self, tier_tokens: dict[str, int]) -> None:
        """Tokens came from tiers behind the device."""
        if not self.preemptions:
            for tier, count in tier_tokens.items():
                self.tier_tokens[tier] = self.tier_tokens.get(tier, 0) + count

    @property
    def request_id(self) -> str:
        """The caller's name of the request."""
        return self.message.request_id

    @property
    def params(self) -> SamplingParams:
        """How to sample."""
        return self.message.params

    @property
    def tenant(self) -> str:
        """On whose account it is."""
        return self.message.cache_salt


@dataclass(slots=True, eq=False)
class Choice:
    """One output of a request: what the scheduler schedules.

    Attributes:
        state: `pending` while its grammar is compiled, or the prompt is being computed by the
            first choice of its request; `receiving` while another instance computes its prompt;
            then `waiting` and `running`, perhaps several times; `sending` when it is computed for
            another instance; `paused` until somebody resumes it.
        computed: leading tokens whose KV is in the pages of `hold`.
        traced: leading tokens counted in the request's expert counts.
        hold: pages, while running; while waiting, those that another instance has filled.
        names: block names of prompt and output, kept over preemptions.
        prefetch: what is loaded for it, as long as more may come.
        outgoing: where its KV goes, if it is computed for another instance.
        expected_tokens: that it will find in the cache, as `engine.load` saw it; None: not asked.
        fork: choices that start when this one's prompt is computed (n > 1).
    """

    request: LiveRequest
    index: int
    sampler: ChoiceSampler
    text: TextOutput
    names: BlockNames
    grammar: GrammarMask | None = None
    output: list[int] = field(default_factory=list)
    state: ChoiceState = "pending"
    computed: int = 0
    traced: int = 0
    hold: PageHold | None = None
    prefetch: Prefetch | None = None
    outgoing: Outgoing | None = None
    expected_tokens: int | None = None
    fork: list["Choice"] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def sort_key(self) -> tuple[int, int, float, int, int]:
        """Who runs first: priority, round, then arrival; of one request the lower choice."""
        request = self.request
        message = request.message
        return (message.priority, request.round or 0, message.arrival_s, request.order, self.index)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def slots(self) -> int:
        """Choices that run once this one does."""
        return 1 + len(self.fork)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids of prompt and output in start..stop."""
        prompt = self.request.prompt
        size = len(prompt)
        if stop <= size:
            return prompt[start:stop]
        if start >= size:
            return self.output[start - size : stop - size]
        return prompt[start:] + self.output[: stop - size]

    def name_blocks(self, num_tokens: int, page_tokens: int) -> None:
        """Make sure that the full blocks of the first `num_tokens` have names."""
        names = self.names
        if num_tokens - names.num_tokens >= page_tokens:
            names.extend(self.tokens(names.num_tokens, num_tokens))
