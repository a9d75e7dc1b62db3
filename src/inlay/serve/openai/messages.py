"""Chat messages: checked, and brought into the form that chat templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inlay.core.errors import RequestError
from inlay.serve.openai.message_form import MessageForm
from inlay.serve.openai.written_tools import as_user_messages
from inlay.serve.parsers import Dialect

_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise_messages(
    messages: Sequence[Mapping[str, Any]] | None, dialect: Dialect, form: MessageForm
) -> list[dict[str, Any]]:
    """Check the messages of a chat and rewrite them for its template.

    Text parts become one text, `developer` becomes `system` where the template knows no such
    role, and earlier tool calls take the form that reaches the model: where the template writes
    none, they become text. Keys that are not ours stay as they are.

    Raises:
        RequestError: a message is not of the protocol's form; the message names the place.
    """
    if not messages:
        raise RequestError("messages is empty: a chat needs at least one message", "messages")
    made = [_message(i, message, dialect, form) for i, message in enumerate(messages)]
    return made if form.shows_results else as_user_messages(made)


def _message(
    index: int, message: Mapping[str, Any], dialect: Dialect, form: MessageForm
) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in _ROLES:
        raise RequestError(
            f"{where}.role is {role!r}: it must be one of {', '.join(_ROLES)}", f"{where}.role"
        )
    made = {key: value for key, value in message.items() if value is not None}
    if role == "developer" and not dialect.developer_role:
        made["role"] = "system"
    calls = made.get("tool_calls")
    if not calls:
        made.pop("tool_calls", None)
    elif role == "assistant":
        made["tool_calls"] = _tool_calls(where, calls, form)
    if "tool_call_id" in made:
        made["tool_call_id"] = form.call_id(made["tool_call_id"])
    content = made.get("content")
    if content is None:
        if role != "assistant":
            raise RequestError(f"{where}.content is missing", f"{where}.content")
        made["content"] = ""
    else:
        made["content"] = _text(f"{where}.content", content)
    if role == "assistant" and calls:
        return _with_calls(where, made, dialect, form)
    return made


def _with_calls(
    where: str, message: dict[str, Any], dialect: Dialect, form: MessageForm
) -> dict[str, Any]:
    """A message with its calls where the template shows them, else in its text."""
    content = message["content"]
    if form.shows_calls_with_content if content else form.shows_calls:
        return message if content else {**message, "content": form.empty_content}
    writing = dialect.notation.writing
    if writing is None:
        return message
    calls = [call["function"] for call in message["tool_calls"]]
    arguments = [_object(where, call["arguments"]) for call in calls]
    text = writing.calls(list(zip((call["name"] for call in calls), arguments, strict=True)))
    made = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**made, "content": f"{content}\n{text}" if content else text}


def _text(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of parts", where)
    return "\n".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise RequestError(f'{where} must be an object such as {{"type":"text","text":...}}', where)
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise RequestError(
            f"{where} is of type {kind!r}: this model reads text only, in parts of type 'text'",
            where,
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a text", where)
    return text


def _tool_calls(where: str, calls: object, form: MessageForm) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    made = []
    for i, call in enumerate(calls):
        at = f"{where}.tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at}.function.name is missing", at)
        arguments = function.get("arguments")
        if form.arguments_as_json:
            arguments = _object(at, arguments)
        elif not isinstance(arguments, str):
            arguments = msgspec.json.encode({} if arguments is None else arguments).decode()
        made.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
        if "id" in call:
            made[-1]["id"] = form.call_id(call["id"])
    return made


def _object(where: str, arguments: object) -> object:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(f"{where}.function.arguments is not valid JSON", where) from None
