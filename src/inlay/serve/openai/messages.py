"""Chat messages: checked, and brought into the form that chat templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inlay.core.errors import RequestError
from inlay.serve.parsers import Dialect

_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise_messages(
    messages: Sequence[Mapping[str, Any]] | None, dialect: Dialect
) -> list[dict[str, Any]]:
    """Check the messages of a chat and rewrite them for its template.

    Text parts become one text, `developer` becomes `system` where the template knows no such
    role, and arguments of earlier tool calls become objects where the template writes them as
    JSON itself. Keys that are not ours stay as they are.

    Raises:
        RequestError: a message is not of the protocol's form; the message names the place.
    """
    if not messages:
        raise RequestError("messages is empty: a chat needs at least one message", "messages")
    return [_message(i, message, dialect) for i, message in enumerate(messages)]


def _message(index: int, message: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
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
        made["tool_calls"] = _tool_calls(where, calls, dialect)
    content = made.get("content")
    if content is None:
        if role != "assistant":
            raise RequestError(f"{where}.content is missing", f"{where}.content")
        made["content"] = ""
    else:
        made["content"] = _text(f"{where}.content", content)
    return made


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


def _tool_calls(where: str, calls: object, dialect: Dialect) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    made = []
    for i, call in enumerate(calls):
        at = f"{where}.tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at}.function.name is missing", at)
        arguments = function.get("arguments")
        made.append(
            {
                **call,
                "type": "function",
                "function": {**function, "arguments": _arguments(at, arguments, dialect)},
            }
        )
    return made


def _arguments(where: str, arguments: object, dialect: Dialect) -> object:
    if not dialect.arguments_as_json:
        if isinstance(arguments, str):
            return arguments
        return msgspec.json.encode({} if arguments is None else arguments).decode()
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(f"{where}.function.arguments is not valid JSON", where) from None
