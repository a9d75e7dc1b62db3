"""What `Service` tells its users while a chat request runs: the HTTP routes and the chat page.

A stream is one `ChatStart`, then `ChatDelta`s (one per generated token and choice, more only
where a token completes several pieces of tool calls), then one `ChatEnd`. Failures are raised.
"""

import msgspec

from inlay.core.messages import RequestTimes, RequestTrace, TokenLogprob


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of one tool call: first its id and name, then pieces of its arguments.

    Attributes:
        call: position of the call in its choice, from 0.
        id, name: set on the first delta of the call only.
        arguments: next piece of the arguments' JSON text.
    """

    call: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a request.

    Attributes:
        cached_tokens: how many of the prompt came from the prefix cache.
        tier_tokens: how many of these were loaded, by tier; the rest was on the device.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    tier_tokens: dict[str, int] | None = None

    def to_openai(self) -> dict[str, object]:
        """The `usage` object of the OpenAI protocol; `tier_tokens` is an addition of Inlay."""
        details: dict[str, object] = {"cached_tokens": self.cached_tokens}
        if self.tier_tokens:
            details["tier_tokens"] = self.tier_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": details,
        }


class ChatStart(msgspec.Struct, frozen=True, kw_only=True):
    """The request was taken on: sent with its first token.

    Attributes:
        request_id: name of the answer, also in `ChatEnd`'s trace and the logs.
        prompt_tokens: of the prompt as the model sees it.
        choices: how many choices follow.
        cached_tokens, tier_tokens: see `Usage`.
    """

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    choices: int
    tier_tokens: dict[str, int] | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one token added to one choice; all texts may be empty.

    Attributes:
        index: the choice.
        content: new text of the answer.
        reasoning: new text of the thinking before the answer.
        tool_call: a new piece of a tool call.
        token_ids: the tokens behind it; empty for second and later pieces of one token.
        logprobs: one per token when asked for.
        finish_reason: on the last delta of a choice: `stop`, `length` or `tool_calls`.
        stop_reason: the stop text or token id that ended the choice.
    """

    index: int
    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The request is complete."""

    usage: Usage
    times: RequestTimes | None = None
    trace: RequestTrace | None = None


ChatEvent = ChatStart | ChatDelta | ChatEnd
