"""Every notation is read right, however the stream is cut."""

import json
import random

import pytest

from inlay.core.errors import ConfigError
from inlay.serve.parsers import NOTATIONS, Piece, ReaderOptions, choose_dialect, joined
from inlay.serve.parsers.base import MarkerParser
from inlay.serve.parsers.forced import CallListParser, NamedCallParser
from inlay.serve.parsers.notations import check_tool_parser
from tests.support import chat_outputs, family_outputs
from tests.support.chat_outputs import Recording

RECORDINGS = [*chat_outputs.RECORDINGS, *family_outputs.FAMILY_RECORDINGS]
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


def read(
    recording: Recording,
    parts: list[str],
    *,
    parallel: bool = True,
    tool_parser: str | None = None,
) -> dict[str, object]:
    options = ReaderOptions(
        thinking=recording.thinking,
        tools=recording.tools,
        parallel=parallel,
        tool_names=NAMES,
        parameter_types=TYPES,
    )
    parser = choose_dialect(recording.template, tool_parser).parser(options)
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
        "mistral opens a call and says something else",
        "granite 3 puts its answer into tags",
        "llama 3.1 calls a tool that was not offered",
    ):
        assert len(whole) - len(longest) <= 2


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (chat_outputs.QWEN, "hermes"),
        (chat_outputs.QWEN_CODER, "qwen_coder"),
        (chat_outputs.DEEPSEEK_V3, "deepseek"),
        (chat_outputs.DEEPSEEK_V31, "deepseek_v31"),
        (family_outputs.DSML, "deepseek_v32"),
        (chat_outputs.KIMI, "kimi"),
        (chat_outputs.HARMONY, "harmony"),
        (chat_outputs.LLAMA, "llama"),
        (family_outputs.GLM, "glm"),
        (family_outputs.MISTRAL, "mistral"),
        (family_outputs.MAGISTRAL, "mistral"),
        (family_outputs.MINIMAX, "minimax_m2"),
        (family_outputs.GEMMA, "gemma"),
        (family_outputs.FUNCTION_GEMMA, "function_gemma"),
        (family_outputs.LFM2, "lfm2"),
        (family_outputs.NEMOTRON, "nemotron"),
        (family_outputs.HUNYUAN, "hunyuan"),
        (family_outputs.HUNYUAN_LIST, "hunyuan_a13b"),
        (family_outputs.GRANITE, "granite"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "hermes"),
        (None, "hermes"),
    ],
)
def test_templates_tell_the_notation(template: str | None, name: str) -> None:
    assert choose_dialect(template).notation.name == name
    assert choose_dialect(template, "glm").notation.name == "glm"


def test_every_notation_has_a_recording() -> None:
    recorded = {choose_dialect(recording.template).notation.name for recording in RECORDINGS}
    assert recorded == set(NOTATIONS)


def test_unknown_notations_are_refused_with_the_list() -> None:
    for name in NOTATIONS:
        check_tool_parser(name)
    with pytest.raises(ConfigError, match=r"'hermess'.* deepseek, .* qwen_coder.*mean hermes\?"):
        check_tool_parser("hermess")


@pytest.mark.parametrize("name", [name for name in NOTATIONS if NOTATIONS[name].writing])
def test_written_calls_are_read_again(name: str) -> None:
    """What stands in a prompt for earlier calls is what the reader takes for calls."""
    writing = NOTATIONS[name].writing
    assert writing is not None
    calls = [("get_weather", {"city": 'Köln "am"', "days": [1, None, True]}), ("get_time", {})]
    options = ReaderOptions(tools=True, tool_names=NAMES)
    parser = choose_dialect(None, name).parser(options)
    found = collect([*parser.push(writing.calls(calls)), *parser.finish()])["calls"]
    assert isinstance(found, list)
    assert [(called, json.loads(arguments)) for called, arguments in found] == calls


def test_special_tokens_are_kept_only_where_they_are_read() -> None:
    gemma, glm, qwen = (
        choose_dialect(template)
        for template in (family_outputs.GEMMA, family_outputs.GLM, chat_outputs.QWEN)
    )
    assert gemma.wants_special_tokens(True) and gemma.wants_special_tokens(False)
    assert glm.wants_special_tokens(True) and not glm.wants_special_tokens(False)
    assert not qwen.wants_special_tokens(True)
    assert not choose_dialect(family_outputs.MISTRAL).wants_special_tokens(False)


def test_prompts_that_open_a_thought() -> None:
    dialect = choose_dialect(chat_outputs.QWEN)
    assert dialect.starts_thinking("<|im_start|>assistant\n<think>\n")
    assert not dialect.starts_thinking("<think>\n\n</think>\n\n")
    assert dialect.answer_prefix("assistant\n<think>\n") == "\n</think>\n\n"
    assert dialect.answer_prefix("assistant\n") == ""
    magistral = choose_dialect(family_outputs.MAGISTRAL)
    assert magistral.answer_prefix("[/INST][THINK]") == "\n[/THINK]\n\n"
    gemma = choose_dialect(family_outputs.GEMMA)
    assert gemma.starts_thinking("<|turn>model\n<|channel>thought\n")
    assert not gemma.starts_thinking("<|turn>model\n<|channel>thought\n<channel|>")
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


@pytest.mark.parametrize("name", NOTATIONS)
def test_nonsense_is_read_the_same_however_it_is_cut(name: str) -> None:
    """Markers in any order: no reader fails, and calls have names and arguments in order."""
    parser_class = NOTATIONS[name].parser
    markers = (
        [*parser_class.tool_markers, *parser_class.answer, *parser_class.dropped_markers]
        if issubclass(parser_class, MarkerParser)
        else ["<|python_tag|>", "; "]
    )
    words = [
        *markers,
        *(NOTATIONS[name].think_start, NOTATIONS[name].think_end),
        *('{"name": "a", "arguments": {"x": [1, "}"]}}', '{"city": "y"}', "get_time", "a>", '"b">'),
        *("(", ")", "[", "]", "{", "}", "'", '"', "\\", ":", "=", ",", "\n", " ", "1", "call:"),
    ]
    draw = random.Random(name)
    for _ in range(150):
        text = "".join(draw.choices(words, k=draw.randint(1, 14)))
        recording = Recording(name="", template="", text=text, thinking=draw.random() < 0.2)
        cuts = sorted(draw.sample(range(len(text) + 1), min(4, len(text))))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        whole, single, cut = (
            read(recording, way, tool_parser=name) for way in ([text], list(text), parts)
        )
        assert whole | {"ids": 0} == single | {"ids": 0} == cut | {"ids": 0}, text
