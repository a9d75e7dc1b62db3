"""Live requests of a dispatcher, and their attempts at instances: data, and what outputs do to it.

A request may be tried at one instance after the other. Its record keeps the tokens that the client
has had, so that the next attempt goes on behind them, and makes one stream of all attempts.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from inlay.core.errors import InlayError
from inlay.core.messages import GenerateRequest, RequestOutput, RequestTimes, ResumeKv

if TYPE_CHECKING:
    from inlay.cluster.decision import Decision, RequestView
    from inlay.cluster.instance import Instance
    from inlay.cluster.kv_paths import Moving


@dataclass(frozen=True, slots=True)
class Setback:
    """Why an attempt ended before its request did.

    Attributes:
        error: what to tell the client if there is no other try.
        why: `lost` with its instance, `refused` for want of room, `preempted` for others that are
            more urgent, `weights`: the instance has others than those that it was sent for,
            `paused` as somebody asked, or `failed`, so that another try makes no sense.
    """

    error: InlayError
    why: Literal["lost", "refused", "preempted", "weights", "paused", "failed"]


@dataclass(slots=True, eq=False)
class Attempt:
    """A request at one instance, or two of them.

    Attributes:
        wire_id: its id there, no other attempt's of this dispatcher.
        decision: where it goes, and why; None of a copy of blocks.
        request: as the decision saw it; None of a copy.
        decode: who answers.
        prefill: who computes the prompt for it, until that has ended; else None.
        events: outputs of `decode`, as they come.
        moving: its KV, once that was asked for.
        begun: whether an output has come.
        over: nothing more will come of it.
        complete: all of its outputs have come.
        output_tokens: of the request, once that is finished.
    """

    wire_id: str
    decision: "Decision | None"
    decode: "Instance"
    prefill: "Instance | None"
    request: "RequestView | None" = None
    events: "asyncio.Queue[RequestOutput | Setback]" = field(default_factory=asyncio.Queue)
    moving: "Moving | None" = None
    begun: bool = False
    over: bool = False
    complete: bool = False
    output_tokens: int | None = None


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request between arrival and its last output.

    Attributes:
        message: as it came, with a seed, and the weights that it is for.
        digests: of the prompt's full blocks under these, 16 bytes each, joined.
        output_tokens: that the client has had, of all choices.
        produced: tokens of each choice that the client has had; None once the choice is finished.
        announced: whether an output has carried the prompt's counts.
        setbacks: why attempts ended before the request did.
        refused_by: runs of instances that would not take it.
        first_token_s: when it came.
        copied: whether blocks were copied for it.
        attempt: where it is now; None while it is nowhere.
        paused: until somebody resumes it.
        paused_by: version of the weights that had computed it, as its handle says; None: it has
            none.
        resumed: as what it goes on from, until it is sent again; None: nobody paused it.
    """

    message: GenerateRequest
    produced: list[list[int] | None]
    digests: bytes = b""
    output_tokens: int = 0
    announced: bool = False
    setbacks: list[Setback] = field(default_factory=list)
    refused_by: set[str] = field(default_factory=set)
    first_token_s: float | None = None
    copied: bool = False
    attempt: Attempt | None = None
    paused: asyncio.Event | None = None
    paused_by: str | None = None
    resumed: ResumeKv | None = None

    @property
    def num_tokens(self) -> int:
        """Of the prompt and the longest output so far."""
        return self.message.num_tokens + max(
            (len(tokens) for tokens in self.produced if tokens is not None), default=0
        )

    @property
    def tries(self) -> int:
        """Attempts that failed; one that made room for others, for example, did not."""
        return sum(setback.why in ("lost", "refused") for setback in self.setbacks)

    @property
    def refusal(self) -> InlayError:
        """Why the last instance that had no room has refused it."""
        return next(one.error for one in reversed(self.setbacks) if one.why == "refused")

    def pause(self) -> None:
        """Be sent nowhere until `resume`."""
        self.paused = self.paused or asyncio.Event()

    def resume(self, kv: ResumeKv) -> None:
        """Go on: with KV of older weights, too, or with such of the newest alone."""
        if self.paused is not None:
            self.resumed = kv
            self.refused_by.clear()
            self.paused.set()
            self.paused = self.paused_by = None

    @property
    def divisible(self) -> bool:
        """Whether one instance may compute the prompt and another one the output."""
        params = self.message.params
        begun = len(self.produced) > 1 and self.output_tokens > 0
        return params.prompt_logprobs is None and self.num_tokens > 1 and not begun

    def remaining(self, wire_id: str, now_s: float) -> GenerateRequest:
        """What is left to do of it, for an instance."""
        produced = self.produced
        begun = any(tokens is None or tokens for tokens in produced)
        return msgspec.structs.replace(
            self.message,
            request_id=wire_id,
            produced=tuple(None if p is None else tuple(p) for p in produced) if begun else (),
            age_s=max(0.0, now_s - self.message.arrival_s),
        )

    def took(self, output: RequestOutput, now_s: float) -> RequestOutput:
        """Take note of an output; returns what the client is to see of it."""
        produced = self.produced
        for delta in output.choices:
            tokens = produced[delta.index]
            self.output_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                produced[delta.index] = None
            elif tokens is not None:
                tokens.extend(delta.token_ids)
        if self.first_token_s is None and output.choices:
            self.first_token_s = now_s
        times = output.times
        if times is not None and self.setbacks and self.first_token_s is not None:
            times = _joined(times, self.first_token_s)
        first = not self.announced
        self.announced = True
        return msgspec.structs.replace(
            output,
            request_id=self.message.request_id,
            prompt_tokens=output.prompt_tokens if first else None,
            cached_tokens=output.cached_tokens if first else None,
            prompt_logprobs=output.prompt_logprobs if first else None,
            tier_tokens=output.tier_tokens if first else None,
            times=times,
        )


def _joined(times: RequestTimes, first_token_s: float) -> RequestTimes:
    """Times of a last attempt, for all of the request: it began before its first token came."""
    return msgspec.structs.replace(
        times,
        scheduled_s=min(times.scheduled_s, first_token_s),
        first_token_s=min(times.first_token_s, first_token_s),
    )
