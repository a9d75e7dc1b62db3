"""What a chat template does with tools, found out by rendering small conversations.

Templates differ in whether they want arguments as objects or as text, show tools, earlier calls
and results at all, or need what the protocol leaves out. Only what they write tells.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

import msgspec

from inlay.core.errors import RequestError

Message = dict[str, Any]
Render = Callable[..., str]

_ARGUMENTS = {"place": "Grenoble", "days": 17}
_TEXT_ARGUMENTS = '{"place": "Grenoble", "days": 17}'
_GARBLED = (str(_ARGUMENTS), '\\"place\\"')
"""How arguments look as Python, and as JSON inside of JSON."""
_RESULT = "cloudless over the valley"
_SAYING = "Looking at the mountains."
_RULE = "Speak of valleys only."
_USER = {"role": "user", "content": "How is it there?"}
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_LONG_IDS = ("call_0123456789abcdef01234567", "aB3dE6gH9")
_TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "look_outside"}},
    {
        "type": "function",
        "function": {
            "name": "look_at_place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    },
]
_NO_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True, kw_only=True)
class MessageForm:
    """How messages and tools have to be written for one template.

    Attributes:
        shows_tools: the template describes tools to the model.
        shows_system: it writes a system message.
        shows_calls: it writes the calls of an assistant's message.
        shows_calls_with_content: also where the message has content.
        shows_results: it knows the role `tool`.
        arguments_as_json: it wants the arguments of calls as objects, not as text.
        empty_content: the content of a message that has calls only, a text or None.
        short_ids: it takes ids of calls only if they are nine letters or digits, as Mistral's do.
        filling: how much of what the protocol lets tools leave out has to be filled in: 0 nothing,
            1 descriptions, 2 parameters, 3 descriptions of parameters.
    """

    shows_tools: bool = True
    shows_system: bool = True
    shows_calls: bool = True
    shows_calls_with_content: bool = True
    shows_results: bool = True
    arguments_as_json: bool = True
    empty_content: str | None = ""
    short_ids: bool = False
    filling: int = 0

    def call_id(self, given: object) -> object:
        """The id of a call as the template takes it; the same for the same id."""
        if not self.short_ids or not isinstance(given, str) or _SHORT_ID.fullmatch(given):
            return given
        return sha256(given.encode()).hexdigest()[:9]

    def tool(self, tool: Message) -> Message:
        """A tool as the template takes it."""
        return _filled(tool, self.filling)


def find_form(render: Render) -> MessageForm:
    """Try a template out.

    Args:
        render: writes messages, with the keyword `tools`; raises RequestError where the template
            refuses them.

    Cost: at most some forty small conversations.
    """
    filling = next((i for i in range(4) if _shows_tools(render, i)), None)
    tools = None if filling is None else [_filled(tool, filling) for tool in _TOOLS]
    if _text(render, [_USER], tools) is None:
        return MessageForm()  # it renders nothing of this kind: what it says is passed on
    form = _form_of_calls(render, tools)
    shows_calls = form is not None
    form = form or MessageForm(shows_calls=False, shows_calls_with_content=False)
    spoken = [_USER, {"role": "assistant", "content": _SAYING}]
    if shows_calls:
        spoken = [_USER, _called(form, form.empty_content)]
    ruled = _text(render, [{"role": "system", "content": _RULE}, _USER], tools) or ""
    with_content = _text(render, [_USER, _called(form, _SAYING), _result(form)], tools) or ""
    results = _text(render, [*spoken, _result(form)], tools) or ""
    return MessageForm(
        shows_tools=filling is not None,
        shows_system=_RULE in ruled,
        shows_calls=shows_calls,
        shows_calls_with_content=shows_calls and _shows_call(with_content),
        shows_results=_RESULT in results,
        arguments_as_json=form.arguments_as_json,
        empty_content=form.empty_content,
        short_ids=form.short_ids,
        filling=filling or 0,
    )


def _form_of_calls(render: Render, tools: Sequence[Message] | None) -> MessageForm | None:
    """The first form in which calls reach the model; None where they do in none."""
    for with_result, short, content, as_json in product(
        (True, False), (False, True), ("", None), (True, False)
    ):
        form = MessageForm(arguments_as_json=as_json, empty_content=content, short_ids=short)
        messages = [_USER, _called(form, content)]
        if with_result:
            messages.append(_result(form))
        if _shows_call(_text(render, messages, tools) or ""):
            return form
    return None


def _shows_tools(render: Render, filling: int) -> bool:
    text = _text(render, [_USER], [_filled(tool, filling) for tool in _TOOLS]) or ""
    return all(tool["function"]["name"] in text for tool in _TOOLS)


def _shows_call(text: str) -> bool:
    shown = all(part in text for part in ("look_at_place", "Grenoble", "17"))
    return shown and not any(garbled in text for garbled in _GARBLED)


def _called(form: MessageForm, content: str | None) -> Message:
    function = {
        "name": "look_at_place",
        "arguments": _ARGUMENTS if form.arguments_as_json else _TEXT_ARGUMENTS,
    }
    call = {"id": _LONG_IDS[form.short_ids], "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _result(form: MessageForm) -> Message:
    return {"role": "tool", "tool_call_id": _LONG_IDS[form.short_ids], "content": _RESULT}


def _text(
    render: Render, messages: Sequence[Message], tools: Sequence[Message] | None
) -> str | None:
    """What the template writes; None where it refuses."""
    try:
        return render(msgspec.to_builtins(messages), tools=msgspec.to_builtins(tools))
    except RequestError:
        return None


def _filled(tool: Message, filling: int) -> Message:
    function = dict(tool["function"])
    if filling >= 1:
        function.setdefault("description", "")
    if filling >= 2:
        function.setdefault("parameters", _NO_PARAMETERS)
    parameters = function.get("parameters")
    if filling >= 3 and isinstance(parameters, dict):
        properties = parameters.get("properties")
        if isinstance(properties, dict):
            described = {
                name: {"description": "", **schema} if isinstance(schema, dict) else schema
                for name, schema in properties.items()
            }
            function["parameters"] = {**parameters, "properties": described}
    return {**tool, "function": function}
