"""Tools for templates that have no place for them: described in words, calls written as text."""

import json
from collections.abc import Sequence
from typing import Any

from inlay.serve.openai.message_form import MessageForm
from inlay.serve.parsers.writing import Writing

Message = dict[str, Any]

_EXAMPLE = ("function_name", {"parameter_name": "value"})


def add_tools(
    messages: Sequence[Message], tools: Sequence[Message], writing: Writing, form: MessageForm
) -> list[Message]:
    """The messages with a description of the tools: in the system message, or in the user's first
    where the template knows no system message.
    """
    text = _description(tools, writing)
    role = "system" if form.shows_system else "user"
    place = next((i for i, message in enumerate(messages) if message["role"] == role), None)
    if place is None or (role == "system" and place > 0):
        return [{"role": role, "content": text}, *messages]
    old = messages[place]["content"]
    both = (old, text) if role == "system" else (text, old)
    described = {**messages[place], "content": "\n\n".join(part for part in both if part)}
    return [*messages[:place], described, *messages[place + 1 :]]


def as_user_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages with the results of calls as text of the user, for templates without the role.

    Results of one turn are one message, together with what the user says next: many templates
    want the roles to alternate.
    """
    made: list[Message] = []
    joins = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            message = {"role": "user", "content": text}
        if joins and message["role"] == "user":
            separator = "\n" if is_result else "\n\n"
            message = {**message, "content": made.pop()["content"] + separator + message["content"]}
        made.append(message)
        joins = is_result
    return made


def _description(tools: Sequence[Message], writing: Writing) -> str:
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\n"
        "You can call functions to help the user. Each line between these tags describes one, as "
        f"JSON; its parameters are a JSON schema:\n<tools>\n{signatures}\n</tools>\n\n"
        "To call a function, end your answer with its name and arguments, exactly in this form:\n"
        f"{writing.calls([_EXAMPLE])}\n"
        "Two calls at once look so:\n"
        f"{writing.calls([_EXAMPLE, _EXAMPLE])}\n"
        "Then you will be given the results. Answer without a call if none is needed."
    )
