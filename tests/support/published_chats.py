"""Conversations that published chat templates write: bodies of requests, arguments as objects."""

import json
from typing import Any

Body = dict[str, Any]


def _tool(name: str, description: str, **properties: Body) -> Body:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _call(call_id: str, name: str, **arguments: object) -> Body:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _result(call: Body, content: str) -> Body:
    name = call["function"]["name"]
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


_TOOLS = [
    _tool(
        "get_weather",
        "Tell the weather of a place.",
        place={"type": "string", "description": 'A town, or "here".'},
        days={"type": "integer", "description": "How many days ahead."},
    ),
    _tool(
        "get_time",
        "Tell the time of a zone <UTC±h>.",
        zone={"type": "string", "description": "Its name."},
    ),
]
_BARE_TOOL = {"type": "function", "function": {"name": "look"}}
_RULE = {"role": "system", "content": "Answer <briefly> & in English."}
_ASKED = {"role": "user", "content": 'How is the weather in Zürich? "Sunny"?\n  你好 🙂'}
_SAID = {"role": "assistant", "content": "It is sunny, 17 °C."}
_THANKED = {"role": "user", "content": "Thanks. And tomorrow?"}
# Mistral's templates want nine letters and digits.
_FIRST = _call("a1B2c3D4e", "get_weather", place='Zürich "<Altstadt>"', days=2)
_SECOND = _call("f5G6h7I8j", "get_time", zone="Europe/Zurich")
_FIRST_RESULT = _result(_FIRST, '{"sky": "sunny", "°C": 17}')
_SECOND_RESULT = _result(_SECOND, "14:05")
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_FIRST]}
_CALLED_TWICE = {"role": "assistant", "content": "", "tool_calls": [_FIRST, _SECOND]}
_THOUGHT = {"reasoning_content": "The user asks for the weather."}

CONVERSATIONS: dict[str, Body] = {
    "one turn": {"messages": [_ASKED]},
    "system": {"messages": [_RULE, _ASKED]},
    "turns": {"messages": [_RULE, _ASKED, _SAID, _THANKED]},
    "finished": {"messages": [_ASKED, _SAID], "add_generation_prompt": False},
    "tools": {"messages": [_RULE, _ASKED], "tools": _TOOLS},
    "tools alone": {"messages": [_ASKED], "tools": _TOOLS},
    "bare tool": {"messages": [_ASKED], "tools": [_BARE_TOOL]},
    "call": {"messages": [_ASKED, _CALLED, _FIRST_RESULT], "tools": _TOOLS},
    "call answered": {
        "messages": [_RULE, _ASKED, _CALLED, _FIRST_RESULT, _SAID, _THANKED],
        "tools": _TOOLS,
    },
    "two calls": {
        "messages": [_ASKED, _CALLED_TWICE, _FIRST_RESULT, _SECOND_RESULT],
        "tools": _TOOLS,
    },
    "call with content": {
        "messages": [_ASKED, {**_CALLED, "content": "Let me look."}, _FIRST_RESULT],
        "tools": _TOOLS,
    },
    "call without tools": {"messages": [_ASKED, _CALLED, _FIRST_RESULT]},
    "reasoning": {"messages": [_ASKED, {**_SAID, **_THOUGHT}, _THANKED]},
    "reasoning and call": {
        "messages": [_ASKED, {**_CALLED, **_THOUGHT}, _FIRST_RESULT],
        "tools": _TOOLS,
    },
    "no thinking": {"messages": [_ASKED], "chat_template_kwargs": {"enable_thinking": False}},
}


def as_clients_send(body: Body) -> Body:
    """Return the body with the arguments of calls as JSON text, as the protocol has them."""

    def sent(call: Body) -> Body:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    messages = [
        {**message, "tool_calls": [sent(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}
