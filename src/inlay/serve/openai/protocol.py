"""Request bodies as typed structs, and how a body that does not fit is explained.

Unknown fields are ignored, and `null` means the default, as clients of OpenAI servers expect.
Types are checked here; ranges and combinations where the values are used.
"""

import re
from typing import Any, TypeVar

import msgspec

from inlay.core.errors import RequestError


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that `/v1/completions` and `/v1/chat/completions` share.

    Fields that OpenAI does not know follow vLLM's names and meanings.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    service_tier: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None


class CompletionRequest(GenerationBody, kw_only=True):
    """The body of `/v1/completions`.

    Attributes:
        prompt: unread: a long list of token ids takes its reader longer than all other fields do.
    """

    prompt: msgspec.Raw = msgspec.Raw(b"null")
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class ChatRequest(GenerationBody, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of `/tokenize`: a prompt, or messages as in a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[int] | None = None


T = TypeVar("T")

_AT = re.compile(r"(?P<why>.*?) - at `\$(?P<path>[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
_KINDS = {"str": "a text", "int": "an integer", "float": "a number", "bool": "true or false"}
_KINDS |= {"array": "a list", "object": "an object", "null": "null"}


def decode_body(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Read a JSON body into the decoder's type.

    Raises:
        RequestError: the body is no JSON, or a field has the wrong type; the message names the
            field and the value it had.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(body, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is not valid JSON: it is nested too deeply") from None


def _explain(body: bytes, text: str) -> RequestError:
    match = _AT.match(text)
    if match is None:
        return RequestError(f"the body has the wrong form: {_in_words(text)}")
    path = match["path"].lstrip(".")
    value = _value_at(body, match["path"])
    shown = "" if value is None else f" ({_short(value)})"
    return RequestError(f"{path}: {_in_words(match['why'])}{shown}", param=path)


def _in_words(why: str) -> str:
    found = re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", why)
    if found is None:
        return why[:1].lower() + why[1:]
    wanted = [kind for kind in found[1].split(" | ") if kind != "null"]
    names = " or ".join(_KINDS.get(kind, kind) for kind in wanted)
    return f"must be {names}, but is {_KINDS.get(found[2], found[2])}"


def _value_at(body: bytes, path: str) -> object:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        try:
            value = value[step["key"]] if step["key"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError):
            return None
        position = step.end()
    return value


def _short(value: object, limit: int = 80) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= limit else text[:limit] + "..."
