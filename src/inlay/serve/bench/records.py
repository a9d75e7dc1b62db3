"""One record per request: when things happened and what came back.

Times are `time.perf_counter()` seconds. The definitions are those of docs/metrics.md:
TTFT = sending to first token, ITL = each gap between consecutive token events, TPOT = (last -
first) / (output tokens - 1), E2E = sending to last token.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec


class _Function(msgspec.Struct):
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    """The fields of a streamed event that matter here; msgspec skips all others unread."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class RequestRecord:
    """What one request did.

    Attributes:
        due_s, sent_s: when the load plan wanted it sent, and when it was.
        token_times_s: arrival of every event that carried a token.
        output_tokens: the server's count; None where it reports none.
        finished_s: when the stream was complete.
        silent_end_s: arrival of an end without text; see `_take_usage`.
        error: why there is no answer.
    """

    index: int
    due_s: float
    sent_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    retokenised_tokens: int | None = None
    finish_reason: str | None = None
    finished_s: float = 0.0
    error: str | None = None
    silent_end_s: float | None = None

    def on_event(self, data: bytes, now_s: float) -> None:
        """Take one server-sent event."""
        if data == b"[DONE]":
            return
        event = _DECODER.decode(data)
        if event.error is not None:
            error = event.error
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)
            return
        text, is_token = "", False
        for choice in event.choices:
            added = _text_of(choice)
            text += added
            is_token = is_token or bool(added) or _is_silent_token(choice)
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self.silent_end_s = None if added else now_s
        if is_token:
            self.token_times_s.append(now_s)
            self.texts.append(text)
        if event.usage is not None:
            self._take_usage(event.usage)

    def _take_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        # Some servers end with an event of its own, others with that of the last token, which may
        # have no text (an end token). The count tells which: one token more than events so far.
        if self.silent_end_s is not None and self.output_tokens == len(self.token_times_s) + 1:
            self.token_times_s.append(self.silent_end_s)
            self.silent_end_s = None
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    @property
    def ok(self) -> bool:
        """Answered in full, with at least one token."""
        return self.error is None and bool(self.token_times_s)

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.texts)

    @property
    def counted_tokens(self) -> int:
        """Output tokens: the server's count, else the retokenised one, else the events."""
        for count in (self.output_tokens, self.retokenised_tokens):
            if count is not None:
                return count
        return len(self.token_times_s)

    @property
    def ttft_s(self) -> float:
        """Sending to first token."""
        return self.token_times_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """Sending to last token."""
        return self.token_times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (output tokens - 1); None for a single token."""
        if self.counted_tokens < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.counted_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between consecutive token events."""
        times = self.token_times_s
        return [late - early for early, late in zip(times, times[1:], strict=False)]


def _is_silent_token(choice: _Choice) -> bool:
    """Whether an event without text stands for a token.

    Special tokens and parts of a character have no text of their own, and servers send an event
    for them all the same. Events that only open a message or only end it are no tokens.
    """
    if choice.finish_reason is not None:
        return False
    if choice.delta is None:
        return choice.text == ""
    return choice.delta.content == "" and choice.delta.role is None


def _text_of(choice: _Choice) -> str:
    """Everything a choice's event adds: text, content, thinking, tool arguments."""
    if choice.delta is None:
        return choice.text or ""
    delta = choice.delta
    parts = [delta.content, delta.reasoning_content or delta.reasoning]
    for call in delta.tool_calls or []:
        parts.append(call.function.arguments if call.function else None)
    return "".join(part for part in parts if part)
