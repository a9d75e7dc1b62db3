"""Conversations out of records, by the format that dataset_info.json names.

A conversation is in OpenAI's form, whatever format it came in: messages with role and content,
perhaps an opening system message, then prompts (a user's message, or results of tools) and
responses (of the assistant, perhaps calls of tools) in turn. The last message is a response.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import DataError
from inlay.core.records import Record, Records
from inlay.tune.data.sources import Source

Message = dict[str, Any]

_SHOWN = 80  # characters of a bad record


@dataclass(frozen=True)
class Conversation:
    """One sample, before it is text.

    Attributes:
        messages: in OpenAI's form.
        tools: schemas of functions that the assistant may call.
        records: where it comes from.
        row: its number there.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    records: Records
    row: int

    @property
    def place(self) -> str:
        """File and line of the record."""
        return self.records.place(self.row)

    @property
    def system(self) -> str:
        """The opening system message's text; empty where there is none."""
        first = self.messages[0]
        return str(first["content"]) if first["role"] == "system" else ""

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages without the opening system message."""
        return self.messages[1:] if self.messages[0]["role"] == "system" else self.messages


def read_conversations(
    records: Records, source: Source, rows: Sequence[int], *, skip_bad: bool = False
) -> tuple[list[Conversation], list[str]]:
    """Conversations of some records, and a line on those that were left out, if any were.

    Args:
        records: of one file.
        source: the dataset they belong to.
        rows: numbers of those to take, in this order.
        skip_bad: leave records out that lack a column or are no conversation.

    Raises:
        DataError: there are such and they are not left out, or there are no others; with the place
            of the first, how it begins, what is wrong with it, and how many more there are.
    """
    for name in sorted(source.named):
        if not any(name in record for record in records.rows):
            has = ", ".join(records.rows[0])
            raise DataError(
                f"{records.file}: no record has the column {name}, which dataset_info.json names "
                f"for {source.name}: the first has {has}"
            )
    convert = _FORMATS[source.formatting]
    found: list[Conversation] = []
    first: tuple[int, str] | None = None
    num_bad = 0
    for row in rows:
        try:
            messages, tools = convert(records.rows[row], source)
            _check_turns(messages)
            _check_characters(messages, tools)
        except _BadRecord as error:
            first = first or (row, str(error))
            num_bad += 1
            continue
        found.append(Conversation(tuple(messages), tuple(tools), records, row))
    if first is None:
        return found, []
    said = f"{records.place(first[0])}: {first[1]} (it begins {_begin(records.rows[first[0]])})"
    if skip_bad and found:
        return found, [
            f"{num_bad} of {len(rows)} records of {records.file} are left out, the first is {said}"
        ]
    others = f"; {num_bad - 1} more records have errors" if num_bad > 1 else ""
    remedy = "" if skip_bad else "; skip_bad_records=true leaves such out"
    raise DataError(f"{said}{others}{remedy}")


def _begin(record: Record) -> str:
    """The first few words of a record, by which it is found in its file."""
    text = json.dumps(record, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class _BadRecord(Exception):
    """What is wrong with a record, without its place."""


_Read = tuple[list[Message], list[Mapping[str, Any]]]


def _alpaca(record: Record, source: Source) -> _Read:
    columns = source.columns
    messages = _system(_text(record, columns, "system", optional=True))
    for number, pair in enumerate(_history(record, columns), 1):
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
            raise _BadRecord(
                f"column {columns['history']}, turn {number}: must be a pair of texts, of user and "
                "assistant"
            )
        if not all(isinstance(text, str) and text.strip() for text in pair):
            raise _BadRecord(f"column {columns['history']}, turn {number}: has an empty text")
        messages += [_message("user", pair[0]), _message("assistant", pair[1])]
    asked = [
        _text(record, columns, "prompt"),
        _text(record, columns, "query", optional=True),
    ]
    prompt = "\n".join(text for text in asked if text)
    if not prompt.strip():
        raise _BadRecord(f"column {columns.get('prompt')}: is empty: a sample needs a prompt")
    answer = _text(record, columns, "response")
    if not answer.strip():
        raise _BadRecord(
            f"column {columns['response']}: is empty: a sample needs a response to learn"
        )
    return [*messages, _message("user", prompt), _message("assistant", answer)], _tools(
        record, columns
    )


def _history(record: Record, columns: Mapping[str, str]) -> Sequence[Any]:
    name = columns.get("history")
    found = record.get(name) if name else None
    if isinstance(found, str) and found.strip():  # as CSV has it
        found = _json(found, f"column {name}")
    if not found:
        return ()
    if not isinstance(found, (list, tuple)):
        raise _BadRecord(f"column {name}: must be a list of [user, assistant]")
    return found


def _chat(record: Record, source: Source) -> _Read:
    columns, tags = source.columns, source.tags
    name = _column(record, columns, "messages")
    given = record[name]
    if isinstance(given, str):  # as CSV has it
        given = _json(given, f"column {name}")
    if not isinstance(given, (list, tuple)) or not given:
        raise _BadRecord(f"column {name}: must be a list of messages")
    roles = {
        tags["user_tag"]: "user",
        tags["assistant_tag"]: "assistant",
        tags["observation_tag"]: "tool",
        tags["function_tag"]: "call",
        tags["system_tag"]: "system",
    }
    messages: list[Message] = []
    for number, item in enumerate(given, 1):
        where = f"column {name}, message {number}"
        if not isinstance(item, Mapping):
            raise _BadRecord(f"{where}: must be an object with {tags['role_tag']}")
        said = item.get(tags["role_tag"])
        role = roles.get(said) if isinstance(said, str) else None
        if role is None:
            raise _BadRecord(
                f"{where}: {tags['role_tag']} is {said!r}: must be one of {', '.join(roles)}"
            )
        messages.append(_chat_message(role, item, tags["content_tag"], where))
    _number_calls(messages)
    if messages[0]["role"] != "system":
        messages = _system(_text(record, columns, "system", optional=True)) + messages
    elif not messages[0]["content"]:
        del messages[0]
    return messages, _tools(record, columns)


def _chat_message(role: str, item: Mapping[str, Any], content_tag: str, where: str) -> Message:
    content = item.get(content_tag)
    if isinstance(content, (list, tuple)):
        content = _joined_parts(content, where)
    if role == "call":
        if not isinstance(content, str):
            raise _BadRecord(f"{where}: {content_tag} must be the JSON text of calls")
        return _calls("", _json(content, f"{where}, {content_tag}"), where)
    if role == "assistant" and item.get("tool_calls"):
        return _calls(content or "", item["tool_calls"], where)
    if content is None and content_tag not in item:
        raise _BadRecord(f"{where}: has no {content_tag}")
    if not isinstance(content, str):
        raise _BadRecord(f"{where}: {content_tag} must be text")
    if not content.strip() and role in ("user", "assistant"):
        raise _BadRecord(f"{where}: {content_tag} is empty")
    return _message(role, content)


def _joined_parts(parts: Sequence[Any], where: str) -> str:
    """The text of a message in parts, as OpenAI has them."""
    if any(not isinstance(part, Mapping) or part.get("type") != "text" for part in parts):
        raise _BadRecord(f"{where}: has parts that are no text")
    return "".join(str(part.get("text", "")) for part in parts)


def _calls(content: str, calls: Any, where: str) -> Message:
    """An assistant's message with calls of tools, their arguments as objects."""
    listed = calls if isinstance(calls, (list, tuple)) else [calls]
    found = []
    for call in listed:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _BadRecord(f"{where}: a call must have name and arguments")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _json(arguments, f"{where}, arguments of {function['name']}")
        found.append(
            {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        )
    return {"role": "assistant", "content": content, "tool_calls": found}


def _number_calls(messages: Sequence[Message]) -> None:
    """Give calls and their results common ids, of the form that all templates take."""
    waiting: list[str] = []
    count = 0
    for message in messages:
        if message["role"] == "tool" and waiting:
            message["tool_call_id"] = waiting.pop(0)
        for call in message.get("tool_calls", ()):
            call["id"] = f"call{count:05d}"
            waiting.append(call["id"])
            count += 1


def _tools(record: Record, columns: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Function schemas, which files have as a list or as its JSON text."""
    name = columns.get("tools")
    found = record.get(name) if name else None
    if isinstance(found, str):
        found = _json(found, f"column {name}") if found.strip() else None
    if not found:
        return []
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, Mapping) for one in found):
        raise _BadRecord(f"column {name}: must be a list of function schemas")
    return [one if "function" in one else {"type": "function", "function": one} for one in found]


def _check_turns(messages: Sequence[Message]) -> None:
    """Prompts and responses must follow each other, a response at last."""
    turns = [message["role"] for message in messages]
    if turns[0] == "system":
        del turns[0]
    before = "assistant"
    for number, role in enumerate(turns, 1):
        fits = {
            "user": before == "assistant",
            "tool": before in ("assistant", "tool"),
            "assistant": before in ("user", "tool"),
        }.get(role, False)
        if not fits:
            raise _BadRecord(
                f"turn {number} is of {role} and follows {before if number > 1 else 'nothing'}: "
                "user and assistant must take turns"
            )
        before = role
    if before != "assistant":
        raise _BadRecord("the last message is no response: a sample needs one to learn")


def _check_characters(messages: Sequence[Message], tools: Sequence[Any]) -> None:
    """JSON can write half of a character, which no tokenizer takes."""
    others = [tools, [message.get("tool_calls") for message in messages]]
    texts = [str(message["content"]) for message in messages]
    for text in (*texts, json.dumps(others, ensure_ascii=False, default=str)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _BadRecord(
                f"\\u{ord(text[error.start]):04x} is half of a character: write the file anew from "
                "its source, or take it out"
            ) from None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _system(text: str) -> list[Message]:
    return [_message("system", text)] if text else []


def _text(
    record: Record, columns: Mapping[str, str], meaning: str, *, optional: bool = False
) -> str:
    """The text of a column; an optional one may be missing or empty."""
    if optional and record.get(columns.get(meaning, "")) is None:
        return ""
    name = _column(record, columns, meaning)
    value = record[name]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _BadRecord(f"column {name}: is {json.dumps(value, default=str)[:40]}: must be text")
    return value


def _column(record: Record, columns: Mapping[str, str], meaning: str) -> str:
    """The name of a column that the record has."""
    name = columns.get(meaning)
    if name is None:
        raise _BadRecord(f"dataset_info.json names no column for {meaning}")
    if name not in record:
        has = ", ".join(record) or "none"
        raise _BadRecord(
            f"column {name} is missing ({meaning}): there are {has}; name the right one in "
            "columns of dataset_info.json"
        )
    return name


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadRecord(f"{where}: is no JSON ({error})") from None


_FORMATS: dict[str, Callable[[Record, Source], _Read]] = {
    "alpaca": _alpaca,
    "sharegpt": _chat,
    "openai": _chat,
}
