"""Lines of a prompt file as requests.

Two forms. JSONL: every line an object with `prompt` (taken as it is) or `messages` (a chat), any
sampling field of the OpenAI API, and whatever else the caller wants to find again under `id`.
Plain text: every line that is not empty is a prompt; it goes through the chat template if the
model has one, unless `raw`. The first line that is not empty decides which form a file has.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from inlay.core.errors import InlayError, RequestError
from inlay.core.records import parse_record
from inlay.serve.openai.protocol import ChatRequest, CompletionRequest, decode_body

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
# Fields that only make sense over HTTP, or that change the form of the result.
_REFUSED = ("stream", "stream_options", "echo", "best_of", "suffix", "logprobs", "n")


@dataclass(frozen=True)
class Job:
    """One line: its request, or the error that its text is.

    Attributes:
        index: position among the lines that are not empty, from 0.
        line: line number in the file, from 1.
        tag: the line's own `id`, given back with the result.
    """

    index: int
    line: int
    request: ChatRequest | CompletionRequest | None = None
    tag: Any = None
    error: InlayError | None = None


def read_jobs(
    lines: Iterable[str], defaults: dict[str, Any], *, raw: bool, has_template: bool
) -> Iterator[Job]:
    """Turn lines into jobs, one by one.

    Args:
        defaults: sampling fields for lines that do not set them.
        raw: plain lines are completed as they are.
        has_template: the model can chat.
    """
    as_json: bool | None = None
    index = 0
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if number == 1:
            text = text.removeprefix("\ufeff")  # a byte-order mark
        if not text.strip():
            continue
        if as_json is None:
            as_json = _is_object(text)
        try:
            _check_utf8(text)
            fields, tag = _json_fields(text) if as_json else (_plain(text, raw, has_template), None)
            yield Job(index, number, _request({**defaults, **fields}), tag)
        except InlayError as error:
            yield Job(index, number, error=error)
        index += 1


def _check_utf8(text: str) -> None:
    """Refuse a line with bytes that are not UTF-8; Python reads them as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"not UTF-8 at character {error.start + 1} of the line") from None


def _is_object(text: str) -> bool:
    try:
        parse_record(text)
    except ValueError:
        return False
    return True


def _plain(text: str, raw: bool, has_template: bool) -> dict[str, Any]:
    if raw or not has_template:
        return {"prompt": text}
    return {"messages": [{"role": "user", "content": text}]}


def _json_fields(text: str) -> tuple[dict[str, Any], Any]:
    """A line's fields, and its `id` apart.

    Raises:
        RequestError: no object, a field that is not supported, or an unknown one; a misspelt field
            would be ignored otherwise.
    """
    try:
        fields = parse_record(text)
    except ValueError as error:
        raise RequestError(f"{error}: write an object with `prompt` or `messages`") from None
    tag = fields.pop("id", None)
    if ("prompt" in fields) == ("messages" in fields):
        raise RequestError("must have either `prompt` or `messages`")
    kind = ChatRequest if "messages" in fields else CompletionRequest
    known = [name for name in kind.__struct_fields__ if name not in _REFUSED]
    for name in fields:
        if name in _REFUSED:
            raise RequestError(f"{name} is not supported here", name)
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RequestError(f"unknown field {name!r}{hint}", name)
    return fields, tag


def _request(fields: dict[str, Any]) -> ChatRequest | CompletionRequest:
    text = json.dumps(fields).encode()
    if "messages" in fields:
        return decode_body(text, _CHAT)
    ids = fields["prompt"]
    one_list = isinstance(ids, list) and all(isinstance(item, int) for item in ids)
    if not isinstance(ids, str) and not one_list:
        raise RequestError("prompt must be one text or one list of token ids", "prompt")
    return decode_body(text, _COMPLETION)
