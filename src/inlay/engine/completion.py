"""Whole answers, for scripts: what `Engine.generate` returns."""

from dataclasses import dataclass, field

from inlay.core.errors import InlayError
from inlay.core.failures import error_of
from inlay.core.messages import (
    FinishReason,
    RequestOutput,
    RequestTimes,
    RequestTrace,
    TokenLogprob,
)


@dataclass(kw_only=True)
class CompletionChoice:
    """One of the n outputs of a prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(kw_only=True)
class Completion:
    """The answer to one prompt.

    Attributes:
        cached_tokens: prompt tokens taken from the prefix cache.
        error: why the request failed, else None.
    """

    request_id: str
    choices: list[CompletionChoice]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: InlayError | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    def add(self, output: RequestOutput) -> None:
        """Append what one step added."""
        if output.prompt_tokens is not None:
            self.prompt_tokens = output.prompt_tokens
            self.cached_tokens = output.cached_tokens or 0
            self.prompt_logprobs = output.prompt_logprobs
        for delta in output.choices:
            choice = self.choices[delta.index]
            choice.text += delta.text
            choice.token_ids += delta.token_ids
            if delta.logprobs is not None:
                choice.logprobs = [*(choice.logprobs or []), *delta.logprobs]
            if delta.finish_reason is not None:
                choice.finish_reason = delta.finish_reason
                choice.stop_reason = delta.stop_reason
        if output.finished:
            self.error = error_of(output)
            self.times, self.trace = output.times, output.trace
