"""Applies sampled tokens to choices and collects what a step has to say to each request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inlay.core.errors import EngineError, InlayError, RequestError
from inlay.core.failures import failure_output
from inlay.core.messages import (
    ChoiceDelta,
    FinishReason,
    RequestOutput,
    RequestTimes,
    RequestTrace,
    TokenLogprob,
)
from inlay.engine.live import Choice, LiveRequest


@dataclass(frozen=True, slots=True)
class _End:
    reason: FinishReason
    cause: int | str | None = None


def advance(choice: Choice, token_id: int, logprob: TokenLogprob | None) -> ChoiceDelta:
    """Append a token to a choice; sets `choice.finish_reason` if it was the last one.

    A token that ends the choice counts as output but has no text.
    """
    request = choice.request
    choice.output.append(token_id)
    choice.sampler.add(token_id)
    grammar = choice.grammar
    if grammar is not None:
        grammar.consume(token_id)
    count = len(choice.output)
    text = ""
    end: _End | None = None
    if token_id in request.end_ids:
        end = _End("stop", token_id if token_id in request.params.stop_token_ids else None)
    else:
        text, stop = choice.text.push(token_id, count >= request.params.min_tokens)
        if stop is not None:
            end = _End("stop", stop)
        elif grammar is not None and grammar.stopped:
            end = _End("stop")
        elif count >= request.max_tokens:
            end = _End("length")
    if end is not None and not isinstance(end.cause, str):
        rest, stop = choice.text.end()
        text += rest
        if stop is not None:
            end = _End("stop", stop)
    return _delta(choice, text, (token_id,), (logprob,) if logprob is not None else None, end)


def replay(choice: Choice, token_ids: Sequence[int]) -> None:
    """Bring a choice to where another instance left it: its tokens count, and are not put out.

    Raises:
        RequestError: they end the choice, so nothing is left to do.
    """
    for token_id in token_ids:
        advance(choice, token_id, None)
        if choice.finish_reason is not None:
            raise RequestError(
                f"the {len(token_ids)} tokens that choice {choice.index} has produced end it: "
                "there is nothing to go on with"
            )


def end_without_token(choice: Choice, reason: FinishReason) -> ChoiceDelta:
    """End a choice that gets no token any more."""
    text, stop = choice.text.end()
    end = _End(reason) if stop is None else _End("stop", stop)
    return _delta(choice, text, (), None, end)


def _delta(
    choice: Choice,
    text: str,
    token_ids: tuple[int, ...],
    logprobs: tuple[TokenLogprob, ...] | None,
    end: _End | None,
) -> ChoiceDelta:
    if end is None:
        return ChoiceDelta(index=choice.index, text=text, token_ids=token_ids, logprobs=logprobs)
    choice.finish_reason = end.reason
    return ChoiceDelta(
        index=choice.index,
        text=text,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=end.reason,
        stop_reason=end.cause,
    )


def impossible(choice: Choice) -> InlayError | None:
    """Why no token could be sampled; None if the choice's grammar is complete and just ends."""
    if choice.grammar is not None:
        if choice.grammar.error:
            return EngineError(f"the grammar cannot go on: {choice.grammar.error}")
        if choice.grammar.complete:
            return None
        return EngineError(
            "no token of the vocabulary can continue the grammar: check logit_bias and the grammar"
        )
    return EngineError(
        "the model's logits are not finite numbers: its weights may be damaged, or logit_bias "
        "forbids every token"
    )


class StepOutputs:
    """Outputs gathered since they were last taken, one per request."""

    def __init__(self) -> None:
        self._deltas: dict[LiveRequest, list[ChoiceDelta]] = {}
        self._done: list[RequestOutput] = []

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._deltas or self._done)

    def add(self, request: LiveRequest, delta: ChoiceDelta) -> None:
        """Something happened to a choice."""
        deltas = self._deltas.get(request)
        if deltas is None:
            self._deltas[request] = [delta]
        else:
            deltas.append(delta)

    def fail(self, request_id: str, error: InlayError, request: LiveRequest | None = None) -> None:
        """A request ends with an error; what it had to say in this step is dropped."""
        if request is not None:
            self._deltas.pop(request, None)
        self._done.append(failure_output(request_id, error))

    def take(
        self,
        now_s: float,
        lost: Callable[[LiveRequest, Exception], None],
        version_of: Callable[[LiveRequest], str],
    ) -> list[RequestOutput]:
        """All outputs, and forget them; calls `lost` for each request whose output has a bug.

        Args:
            version_of: the weights that compute a request.
        """
        outputs: list[RequestOutput] = []
        all_deltas, self._deltas = self._deltas, {}
        for request, deltas in all_deltas.items():
            try:
                outputs.append(_output(request, tuple(deltas), now_s, version_of))
            except Exception as error:
                lost(request, error)
        done, self._done = self._done, []
        return done + outputs


def _output(
    request: LiveRequest,
    deltas: tuple[ChoiceDelta, ...],
    now_s: float,
    version_of: Callable[[LiveRequest], str],
) -> RequestOutput:
    if request.first_token_s is None:
        request.first_token_s = now_s
    if request.announced and request.unfinished:
        return RequestOutput(request_id=request.request_id, choices=deltas)
    first = not request.announced
    request.announced = True
    finished = request.unfinished == 0
    prompt_logprobs = request.prompt_logprobs if first else None
    return RequestOutput(
        request_id=request.request_id,
        choices=deltas,
        prompt_tokens=len(request.prompt) if first else None,
        cached_tokens=request.cached_tokens if first else None,
        tier_tokens=request.tier_tokens if first and request.tier_tokens else None,
        prompt_logprobs=tuple(prompt_logprobs) if prompt_logprobs is not None else None,
        finished=finished,
        times=_times(request, now_s) if finished else None,
        trace=_trace(request) if finished and request.message.trace else None,
        weight_version=version_of(request),
    )


def _times(request: LiveRequest, now_s: float) -> RequestTimes:
    scheduled_s = now_s if request.scheduled_s is None else request.scheduled_s
    return RequestTimes(
        arrival_s=request.message.arrival_s,
        scheduled_s=scheduled_s,
        first_token_s=now_s if request.first_token_s is None else request.first_token_s,
        finished_s=now_s,
    )


def _trace(request: LiveRequest) -> RequestTrace:
    counts_LE = request.expert_counts_LE
    return RequestTrace(
        expert_counts_LE=[] if counts_LE is None else counts_LE.tolist(),
        pages_reused=request.pages_reused,
        pages_used=request.pages_used,
        preemptions=request.preemptions,
        tier_tokens=request.tier_tokens,
    )
