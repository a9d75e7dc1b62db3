"""Every notation is read right, however the stream is cut."""

import json
import random

import pytest

from inlay.serve.parsers import Piece, ReaderOptions, choose_dialect, joined
from inlay.serve.parsers.forced import CallListParser, NamedCallParser
from tests.support import chat_outputs
from tests.support.chat_outputs import RECORDINGS, Recording

TYPES: dict[str, dict[str, object]] = {
    "write_file": {"path": "string", "mode": "integer", "options": ["object", "null"]}
}
NAMES = frozenset({"get_weather", "get_time", "render", "a", "b", "c", "math.add"})


def collect(pieces: list[Piece]) -> dict[str, object]:
    """Join pieces as a client would, checking the order of a call's deltas."""
    content = reasoning = ""
    calls: list[list[str]] = []
    ids: list[str] = []
    for piece in pieces:
        content += piece.content
        reasoning += piece.reasoning
        delta = piece.tool_call
        if delta is None:
            continue
        if delta.name is not None:
            assert delta.call == len(calls) and delta.id and not delta.arguments
            calls.append([delta.name, ""])
            ids.append(delta.id)
        else:
            assert delta.call == len(calls) - 1 and delta.arguments
            calls[-1][1] += delta.arguments
    return {
        "content": content,
        "reasoning": reasoning,
        "calls": [tuple(call) for call in calls],
        "ids": ids,
    }


def read(recording: Recording, parts: list[str], *, parallel: bool = True) -> dict[str, object]:
    options = ReaderOptions(
        thinking=recording.thinking,
        tools=recording.tools,
        parallel=parallel,
        tool_names=NAMES,
        parameter_types=TYPES,
    )
    parser = choose_dialect(recording.template).parser(options)
    pieces = [piece for part in parts for piece in parser.push(part)]
    return collect(pieces + parser.finish())


def splits(text: str) -> list[list[str]]:
    """Whole, cut at each place, in single characters, and cut at random."""
    found = [[text], list(text)]
    found += [[text[:i], text[i:]] for i in range(1, len(text))]
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(len(text) + 1), min(8, len(text))))
        found.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return found


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_all_cuts(recording: Recording) -> None:
    expected = {
        "content": recording.content,
        "reasoning": recording.reasoning,
        "calls": recording.calls,
    }
    for parts in splits(recording.text):
        found = read(recording, parts)
        ids = found.pop("ids")
        assert found == expected, parts
        if recording.call_ids is not None:
            assert ids == recording.call_ids
        assert isinstance(ids, list)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_one_call_when_not_parallel(recording: Recording) -> None:
    for parts in ([recording.text], list(recording.text)):
        found = read(recording, parts, parallel=False)
        assert found["calls"] == recording.calls[:1]
        assert found["content"] == recording.content


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_thinking_streams_before_it_ends(recording: Recording) -> None:
    """Thinking and answer leave as they come; nothing waits for the end of the output."""
    options = ReaderOptions(
        thinking=recording.thinking, tools=recording.tools, tool_names=NAMES, parameter_types=TYPES
    )
    parser = choose_dialect(recording.template).parser(options)
    streamed = collect([piece for char in recording.text for piece in parser.push(char)])
    longest = str(streamed["reasoning"]) + str(streamed["content"])
    whole = recording.reasoning + recording.content
    if recording.name not in (
        "gpt-oss forgets its notation",
        "llama 3 writes JSON that is no call",
        "hermes with something that is no call",
    ):
        assert len(whole) - len(longest) <= 2


@pytest.mark.parametrize(
    ("template", "name", "takes_tools", "as_json"),
    [
        (chat_outputs.QWEN, "hermes", True, True),
        (chat_outputs.QWEN_CODER, "qwen_coder", True, True),
        (chat_outputs.DEEPSEEK_V3, "deepseek", True, False),
        (chat_outputs.DEEPSEEK_V31, "deepseek", True, True),
        (chat_outputs.KIMI, "kimi", True, True),
        (chat_outputs.HARMONY, "harmony", True, True),
        (chat_outputs.LLAMA, "llama", True, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "plain", False, False),
        (None, "plain", False, False),
    ],
)
def test_dialects(template: str | None, name: str, takes_tools: bool, as_json: bool) -> None:
    dialect = choose_dialect(template)
    assert (dialect.name, dialect.takes_tools) == (name, takes_tools)
    assert dialect.arguments_as_json == as_json


def test_prompts_that_open_a_thought() -> None:
    dialect = choose_dialect(chat_outputs.QWEN)
    assert dialect.starts_thinking("<|im_start|>assistant\n<think>\n")
    assert not dialect.starts_thinking("<think>\n\n</think>\n\n")
    assert dialect.answer_prefix("assistant\n<think>\n") == "\n</think>\n\n"
    assert dialect.answer_prefix("assistant\n") == ""
    harmony = choose_dialect(chat_outputs.HARMONY)
    assert harmony.answer_prefix("<|start|>assistant") == "<|channel|>final<|message|>"


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_joined_pieces_mean_the_same(recording: Recording) -> None:
    for parts in ([recording.text], list(recording.text)):
        options = ReaderOptions(
            thinking=recording.thinking,
            tools=recording.tools,
            tool_names=NAMES,
            parameter_types=TYPES,
        )
        parser = choose_dialect(recording.template).parser(options)
        pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
        apart, together = collect(pieces), collect(joined(pieces))
        assert {**together, "ids": None} == {**apart, "ids": None}
        named = sum(bool(piece.tool_call and piece.tool_call.name) for piece in pieces)
        assert len(joined(pieces)) <= 2 * named + 2


def test_forced_calls() -> None:
    text = json.dumps(
        [
            {"name": "f", "arguments": {"a": "]}{", "b": [{"c": 1}]}},
            {"name": "g", "arguments": {}},
        ],
        indent=1,
    )
    expected = [("f", {"a": "]}{", "b": [{"c": 1}]}), ("g", {})]
    for parts in splits(text):
        parser = CallListParser()
        found = collect([piece for part in parts for piece in parser.push(part)])
        calls = found["calls"]
        assert isinstance(calls, list)
        assert [(name, json.loads(arguments)) for name, arguments in calls] == expected
    named = NamedCallParser("f")
    found = collect([*named.push('{"a"'), *named.push(": 1}"), *named.finish()])
    assert found["calls"] == [("f", '{"a": 1}')]
