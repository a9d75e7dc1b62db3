"""Tokenizers, chat templates and streams, measured by `tokenizers` and `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.core.errors import (
    ModelFileError,
    ModelNotFoundError,
    RequestError,
    UnsupportedModelError,
)
from inlay.models.text import Text
from tests.support.tiny_models import make_tiny_model
from tests.support.tiny_tokenizers import write_tokenizer

KINDS = ("byte_level", "sentencepiece")
TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n▁aeé你🙂🚀<|>")), max_size=40
)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for kind in KINDS:
        made[kind] = tmp_path_factory.mktemp(kind)
        write_tokenizer(made[kind], kind, bos=True)
    return made


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, directories: dict[str, Path]) -> tuple[Text, Any]:
    directory = directories[request.param]
    return Text.load(directory), tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def streamed(text: Text, ids: list[int], **options: Any) -> str:
    stream = text.stream(**options)
    return "".join([stream.push(token_id) for token_id in ids]) + stream.flush()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=TEXTS, special=st.booleans())
def test_stream_of_text(pair: tuple[Text, Any], content: str, special: bool) -> None:
    text, raw = pair
    ids = text.encode(content)
    assert ids == raw.encode(content).ids
    whole = raw.decode(ids, skip_special_tokens=special)
    assert text.decode(ids, skip_special_tokens=special) == whole
    assert streamed(text, ids, skip_special_tokens=special) == whole


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 600), max_size=30), special=st.booleans())
def test_stream_of_any_tokens(pair: tuple[Text, Any], ids: list[int], special: bool) -> None:
    """Ids of a random model: broken characters, special tokens, ids outside the vocabulary."""
    text, raw = pair
    whole = text.decode(ids, skip_special_tokens=special)
    assert streamed(text, ids, skip_special_tokens=special) == whole
    expected = raw.decode(ids, skip_special_tokens=special)
    if "\ufffd" not in expected or raw.decoder.__class__.__name__ == "ByteLevel":
        assert whole == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=TEXTS.filter(bool), cut=st.integers(1, 20))
def test_stream_after_prompt(pair: tuple[Text, Any], content: str, cut: int) -> None:
    """The output joins the prompt without losing a space or splitting a character."""
    text, _ = pair
    ids = text.encode(content)
    cut = min(cut, len(ids))
    prompt_stream = text.stream()
    before = "".join([prompt_stream.push(token_id) for token_id in ids[:cut]])
    after = streamed(text, ids[cut:], prompt_ids=ids[:cut])
    assert before + after == text.decode(ids)


def test_other_decoders(tmp_path: Path) -> None:
    """Tokenizers without a way of their own stream through a window."""
    directory = tmp_path / "wordpiece"
    directory.mkdir()
    vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "##ed": 3, "the": 4, "lantern": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.save(str(directory / "tokenizer.json"))
    text = Text.load(directory)
    ids = text.encode("the playing lantern played the lantern") * 20
    assert streamed(text, ids) == tokenizer.decode(ids)
    assert text.eos_token_ids == frozenset()


def test_tokens(directories: dict[str, Path]) -> None:
    for kind, directory in directories.items():
        text = Text.load(directory)
        (smile,) = [text.encode("🙂", add_special_tokens=False)]
        joined = b"".join(text.token_bytes(token_id) for token_id in smile)
        assert joined.decode().strip() == "🙂", kind
        assert text.token_text(smile[-1]) == "\ufffd"
        assert text.vocab_size == 512
        assert json.loads(text.tokenizer_json)["model"]["type"] == "BPE"
        batch = text.encode_batch(["one two", "three"])
        assert batch == [text.encode("one two"), text.encode("three")]
        plain = text.encode("one", add_special_tokens=False)
        assert text.encode("one") == [*text.encode("", add_special_tokens=True), *plain]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & 'then' in \"Zürich\"",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CHATS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([{"role": "user", "content": "Define lantern."}], {}),
    ([{"role": "user", "content": "Hi"}], {"add_generation_prompt": False}),
    ([{"role": "user", "content": "Hi"}], {"enable_thinking": False}),
    (
        [
            {"role": "system", "content": "Be <brief> & kind."},
            {"role": "user", "content": "Grüße 🙂"},
            {"role": "assistant", "content": "Hello.", "reasoning_content": " a greeting "},
            {"role": "user", "content": "And?"},
        ],
        {},
    ),
    (
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "look it up",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": {"city": "Köln"}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ],
        {"tools": TOOLS},
    ),
]


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_chat_like_transformers(pair: tuple[Text, Any], tmp_path: Path, number: int) -> None:
    import transformers

    text, raw = pair
    messages, options = CHATS[number]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, chat_template=text.chat_template, **text.special_tokens
    )
    options = {"add_generation_prompt": True} | options
    expected = reference.apply_chat_template(messages, tokenize=False, **options)
    assert text.render_chat(messages, **options) == expected
    ids = reference.apply_chat_template(messages, return_dict=False, **options)
    assert text.encode_chat(messages, **options) == ids


FEATURES = r"""
{%- set seen = namespace(count=0) -%}
{{- bos_token }}{% for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.role == 'stop' %}{% break %}{% endif %}
    {%- set seen.count = seen.count + 1 %}
    {% generation %}{{ m | tojson(indent=2) }}{% endgeneration %}
{% endfor %}
{{- seen.count }} {{ strftime_now('%Y') | length }} {{ eos_token }} {{ tools is none }}
"""


def test_template_features(directories: dict[str, Path]) -> None:
    """What published templates use besides plain Jinja, white space included."""
    import transformers

    text = Text.load(directories["sentencepiece"])
    text._templates["default"] = text.chat_template = FEATURES
    messages = [{"role": role, "content": "<a> & 'b' é"} for role in ("user", "skip", "x", "stop")]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(text.tokenizer_json),
        chat_template=FEATURES,
        **text.special_tokens,
    )
    expected = reference.apply_chat_template(messages, tokenize=False)
    assert text.render_chat(messages) == expected
    assert "<a> & 'b' é" in expected and expected.strip().endswith("2 4 </s> True")


def test_template_errors(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    text = Text.load(tmp_path)
    with pytest.raises(RequestError, match="Unexpected message role: judge") as caught:
        text.render_chat([{"role": "judge", "content": "x"}])
    assert caught.value.param == "messages"
    with pytest.raises(RequestError, match="cannot render these messages"):
        text.render_chat([{"role": "user", "content": None}])
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}{{ messages.pop() }}")
    with pytest.raises(RequestError, match="chat template says"):
        Text.load(tmp_path).render_chat([{"role": "user", "content": "x"}])
    endless = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
    for source, reason in (
        ("{{ 1 // messages[1:] | length }}", "by zero"),
        ("{{ 10.0 ** 400 }}", "out of range|too large"),
        (endless, "recursion depth"),
    ):
        (tmp_path / "chat_template.jinja").write_text(source)
        with pytest.raises(RequestError, match=f"cannot render these messages .*({reason})"):
            Text.load(tmp_path).render_chat([{"role": "user", "content": "x"}])
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelFileError, match="not valid Jinja"):
        Text.load(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(RequestError, match="no chat template"):
        Text.load(tmp_path).render_chat([{"role": "user", "content": "x"}])


def test_where_templates_lie(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    user = [{"role": "user", "content": "x"}]

    config["chat_template"] = "inside"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Text.load(tmp_path).render_chat(user) == "inside"

    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config["chat_template"] = named
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    text = Text.load(tmp_path)
    assert text.render_chat(user) == "plain" and text.render_chat(user, tools=TOOLS) == "tools"

    (tmp_path / "chat_template.json").write_text('{"chat_template": "beside"}')
    assert Text.load(tmp_path).render_chat(user) == "beside"
    (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert Text.load(tmp_path).render_chat(user) == "file x"


def test_end_tokens(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    assert Text.load(tmp_path).eos_token_ids == {2, 0}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [true, 3]}')
    assert Text.load(tmp_path).eos_token_ids == {2, 3}
    (tmp_path / "generation_config.json").unlink()
    assert Text.load(tmp_path).eos_token_ids == {2}


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model directory"):
        Text.load(tmp_path / "nowhere")
    with pytest.raises(ModelNotFoundError, match=r"none of tokenizer\.json, tekken\.json"):
        Text.load(tmp_path)
    (tmp_path / "vocab.json").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"vocab\.json but no tokenizer\.json"):
        Text.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is damaged"):
        Text.load(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelFileError, match="not a JSON object"):
        Text.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match="is no JSON"):
        Text.load(tmp_path)
    for templates in (["x"], [{"nme": "default"}], [{"name": "default", "template": 1}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        with pytest.raises(ModelFileError, match="a list of objects with a name and a template"):
            Text.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja is not UTF-8"):
        Text.load(tmp_path)
