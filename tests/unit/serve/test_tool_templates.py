"""What reaches the model of tools, calls and results, whatever the chat template does with them."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import RequestError
from inlay.models.chat_template import render
from inlay.serve.openai.message_form import MessageForm, find_form
from inlay.serve.openai.messages import normalise_messages
from inlay.serve.openai.tools import plan_tools
from inlay.serve.openai.written_tools import add_tools
from inlay.serve.parsers import NOTATIONS, choose_dialect
from tests.unit.serve.conftest import Api

TURNS = """
{%- for m in messages %}
{{- '<' + m.role + '>' }}
{%- if m.role == 'assistant' and m.tool_calls %}CALLS{% else %}{{ m.content }}{% endif %}
{%- endfor %}
"""
TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"


def turns(calls: str) -> str:
    """A template that writes calls so."""
    return TURNS.replace("CALLS", "{% for c in m.tool_calls %}" + calls + "{% endfor %}")


PAIRS = TOOLS + turns(
    "{{ c.function.name }}{% set a = c.function.arguments %}"
    "{% for k, v in a.items() %}[{{ k }}|{{ v if v is string else v | tojson }}]{% endfor %}"
)
RAW = TOOLS + turns("{{ c.function.name + '(' + c.function.arguments + ')' }}")
JSON = TOOLS + turns("{{ c.function.name }}{{ c.function.arguments | tojson }}")
EITHER = TOOLS + turns(
    "{{ c.function.name }}{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
)
PRINTED = TOOLS + turns("{{ c.function.name }}{{ c.function.arguments }}")
DECODED = TOOLS + turns(
    "{{ c.function.name }}{% set a = c.function.arguments %}"
    "{% if a is string %}{% set a = a | from_json %}{% endif %}{{ a | tojson }}"
)
LOUD = TOOLS + TURNS.replace(
    "{%- if m.role == 'assistant' and m.tool_calls %}",
    "{%- if m.role == 'assistant' and m.content is none %}",
).replace(
    "CALLS", "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
)
SHORT_IDS = TOOLS + turns(
    "{% if c.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
    "{{ c.id }}{{ c.function.name }}{{ c.function.arguments | tojson }}"
)
SPEECH = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
STRICT = """
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}
{{- '<' + m.role + '>' + m.content }}
{%- endfor %}
"""

Render = Callable[..., str]


def renderer(source: str) -> Render:
    def write(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        return render(source, messages, tools=tools, add_generation_prompt=True, variables={})

    return write


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PAIRS, {}),
        (JSON, {}),
        (EITHER, {}),
        (DECODED, {}),
        (RAW, {"arguments_as_json": False}),
        (PRINTED, {"arguments_as_json": False}),
        (
            LOUD,
            {
                "arguments_as_json": False,
                "empty_content": None,
                "shows_calls_with_content": False,
            },
        ),
        (SHORT_IDS, {"short_ids": True}),
        (
            TOOLS + SPEECH,
            {"shows_calls": False, "shows_calls_with_content": False},
        ),
        (
            SPEECH,
            {"shows_tools": False, "shows_calls": False, "shows_calls_with_content": False},
        ),
        (
            STRICT,
            {
                "shows_tools": False,
                "shows_system": False,
                "shows_calls": False,
                "shows_calls_with_content": False,
                "shows_results": False,
            },
        ),
        ("{{ raise_exception('never') }}", {}),
        (
            "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"
            + turns("{{ c.function.name }}{{ c.function.arguments | tojson }}"),
            {"filling": 1},
        ),
        (
            "{% for t in tools or [] %}{{ t.function.name + t.function.parameters.type }}"
            "{% endfor %}" + turns("{{ c.function.name }}{{ c.function.arguments | tojson }}"),
            {"filling": 2},
        ),
        (
            "{% for t in tools or [] %}{{ t.function.name }}"
            "{% for k, p in t.function.parameters.properties.items() %}{{ p.description + k }}"
            "{% endfor %}{% endfor %}"
            + turns("{{ c.function.name }}{{ c.function.arguments | tojson }}"),
            {"filling": 3},
        ),
    ],
)
def test_forms(source: str, expected: Mapping[str, object]) -> None:
    assert find_form(renderer(source)) == MessageForm(**expected)  # type: ignore[arg-type]


def talk(source: str, *messages: dict[str, Any]) -> str:
    """What the model is given of a conversation."""
    write = renderer(source)
    form = find_form(write)
    given = copy.deepcopy(list(messages))
    text = write(normalise_messages(given, choose_dialect(source), form))
    assert given == list(messages)
    return text


USER = {"role": "user", "content": "Hi"}
ARGUMENTS = {"city": 'a "b"', "days": 3}
CALL = {
    "id": "call_0123456",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps(ARGUMENTS)},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SAYING = {**CALLING, "content": "So."}
RESULT = {"role": "tool", "tool_call_id": "call_0123456", "content": "42"}
HERMES = '<tool_call>\n{"name": "f", "arguments": {"city": "a \\"b\\"", "days": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PAIRS, '<user>Hi<assistant>f[city|a "b"][days|3]<tool>42'),
        (RAW, '<user>Hi<assistant>f({"city": "a \\"b\\"", "days": 3})<tool>42'),
        (JSON, '<user>Hi<assistant>f{"city": "a \\"b\\"", "days": 3}<tool>42'),
        (PRINTED, '<user>Hi<assistant>f{"city": "a \\"b\\"", "days": 3}<tool>42'),
        (LOUD, '<user>Hi<assistant>f{"city": "a \\"b\\"", "days": 3}<tool>42'),
        (SPEECH, f"<user>Hi<assistant>{HERMES}<tool>42"),
        (STRICT, f"<user>Hi<assistant>{HERMES}<user><tool_response>\n42\n</tool_response>"),
    ],
)
def test_calls_reach_the_model(source: str, expected: str) -> None:
    assert talk(source, USER, CALLING, RESULT) == expected


def test_text_that_a_template_decodes_itself() -> None:
    text = renderer(DECODED)([USER, CALLING])
    assert text == '<user>Hi<assistant>f{"city": "a \\"b\\"", "days": 3}'


def test_calls_beside_content() -> None:
    assert talk(LOUD, USER, SAYING, RESULT) == f"<user>Hi<assistant>So.\n{HERMES}<tool>42"
    assert talk(JSON, USER, SAYING).startswith("<user>Hi<assistant>f{")


def test_results_of_one_turn_are_one_message() -> None:
    text = talk(STRICT, USER, {**CALLING, "tool_calls": [CALL, CALL]}, RESULT, RESULT, USER)
    both = "<tool_response>\n42\n</tool_response>\n<tool_response>\n42\n</tool_response>"
    assert text.endswith(f"<user>{both}\n\nHi")
    assert text.count("<user>") == 2


def test_ids_that_the_template_takes() -> None:
    text = talk(SHORT_IDS, USER, CALLING, RESULT)
    form = find_form(renderer(SHORT_IDS))
    short = form.call_id("call_0123456")
    assert isinstance(short, str) and len(short) == 9 and f"<assistant>{short}f" in text
    assert form.call_id("abcdefgh1") == "abcdefgh1"
    assert MessageForm().call_id("call_0123456") == "call_0123456"
    [_, _, result] = normalise_messages([USER, CALLING, RESULT], choose_dialect(SHORT_IDS), form)
    assert result["tool_call_id"] == short


def test_bad_arguments_are_named() -> None:
    bad = {**CALL, "function": {"name": "f", "arguments": "{"}}
    for source in (PAIRS, SPEECH):
        with pytest.raises(RequestError, match="not valid JSON"):
            talk(source, USER, {**CALLING, "tool_calls": [bad]})


BARE = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("name", [name for name in NOTATIONS if NOTATIONS[name].writing])
def test_described_tools(name: str) -> None:
    writing = NOTATIONS[name].writing
    assert writing is not None
    form = MessageForm(shows_tools=False)
    [system, user] = add_tools([USER], [BARE], writing, form)
    assert system["role"] == "system" and user == USER
    assert '{"name": "look"}' in system["content"]
    assert writing.calls([("function_name", {"parameter_name": "value"})]) in system["content"]
    rule = {"role": "system", "content": "Be brief."}
    [system, _] = add_tools([rule, USER], [BARE], writing, form)
    assert system["content"].startswith("Be brief.\n\n# Tools")
    [user] = add_tools([USER], [BARE], writing, MessageForm(shows_system=False))
    assert user["role"] == "user" and user["content"].startswith("# Tools")
    assert user["content"].endswith("\n\nHi")


def test_types_of_parameters() -> None:
    parameters = {
        "properties": {
            "plain": {"type": "integer"},
            "several": {"type": ["number", "null"]},
            "optional": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "choice": {"enum": [1, "a", None]},
            "fixed": {"const": 2.5},
            "referred": {"$ref": "#/$defs/Spot"},
            "endless": {"$ref": "#/$defs/Loop"},
            "unknown": {"description": "?"},
            "odd": True,
        },
        "$defs": {"Spot": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert plan_tools([tool], None, None).parameter_types["f"] == {
        "plain": ["integer"],
        "several": ["null", "number"],
        "optional": ["boolean", "null"],
        "choice": ["integer", "null", "string"],
        "fixed": ["number"],
        "referred": ["object"],
        "endless": None,
        "unknown": None,
        "odd": None,
    }


def with_template(directory: Path, target: Path, source: str) -> Path:
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / "chat_template.jinja").write_text(source, "utf-8")
    return target


async def test_tools_without_description(
    api: Api, tokenizer_directory: Path, tmp_path: Path
) -> None:
    source = "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"
    directory = with_template(tokenizer_directory, tmp_path, source + SPEECH)
    async with api(directory=directory) as (client, engine):
        body = {"messages": [USER], "tools": [BARE]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        prompt = engine.text.decode(engine.requests[0].token_ids, skip_special_tokens=False)
    assert prompt == "look<user>Hi"


async def test_a_loop_with_a_family_that_has_no_place_for_tools(
    api: Api, tokenizer_directory: Path, tmp_path: Path
) -> None:
    """DeepSeek-V3: the tools are described in the family's notation, and its calls are read."""
    source = SPEECH + "{# <｜tool▁calls▁begin｜> ```json #}"
    directory = with_template(tokenizer_directory, tmp_path, source)
    says = NOTATIONS["deepseek"].writing.calls([("look", {"at": "sea"})])  # type: ignore[union-attr]
    async with api(says=says, directory=directory) as (client, engine):
        body: dict[str, Any] = {"messages": [USER], "tools": [BARE]}
        answer = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        [call] = answer["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"at": "sea"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "blue"}
        body["messages"] = [USER, answer["message"], result]
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        prompt = engine.text.decode(engine.requests[1].token_ids, skip_special_tokens=False)
    assert prompt.startswith("<system># Tools")
    assert prompt.endswith(f"<user>Hi<assistant>{says}<tool>blue")


async def test_a_notation_that_is_not_written(
    api: Api, tokenizer_directory: Path, tmp_path: Path
) -> None:
    directory = with_template(tokenizer_directory, tmp_path, SPEECH)
    async with api(directory=directory, tool_parser="kimi") as (client, _):
        body = {"messages": [USER], "tools": [BARE]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "'kimi'" in answer.json()["error"]["message"]
    assert "--chat-template" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "tools"


async def test_the_notation_that_the_user_names(api: Api) -> None:
    says = "<tool_call>look<arg_key>at</arg_key><arg_value>3</arg_value></tool_call>"
    body = {"messages": [USER], "tools": [BARE]}
    for name, called in (("glm", True), (None, False)):
        async with api(says=says, tool_parser=name) as (client, _):
            answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert ("tool_calls" in answer["choices"][0]["message"]) == called
