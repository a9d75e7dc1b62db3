import json

import numpy as np
import pytest
import tokenizers

from inlay.core.errors import StructureError
from inlay.core.messages import Structure
from inlay.engine.structure import GrammarCompiler
from tests.support.tiny_tokenizers import write_tokenizer

VOCAB, END = 520, 2


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return (directory / "tokenizer.json").read_text("utf-8")


@pytest.fixture
def compiler(tokenizer_json):
    compiler = GrammarCompiler(lambda: tokenizer_json, VOCAB, [END, 0], max_cached=3)
    yield compiler
    compiler.close()


def _allowed(mask):
    logits = np.zeros(VOCAB, np.float32)
    mask.apply(logits)
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def _feed(mask, tokenizer_json, text):
    for token_id in tokenizers.Tokenizer.from_str(tokenizer_json).encode(text).ids:
        assert token_id in _allowed(mask)
        mask.consume(token_id)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("regex", "[a-z]+ [0-9]", "abc 7"),
        ("choice", '["yes", "no", "a \\"quote\\" \\\\ ü"]', 'a "quote" \\ ü'),
        ("json_schema", '{"type": "array", "items": {"type": "integer"}}', "[1, 20]"),
        ("json_schema", "true", '{"a": [null]}'),
        ("json_object", "", '{"a": {"b": []}}'),
        ("lark", 'start: "x" NUMBER\nNUMBER: /[0-9]{2}/', "x42"),
    ],
)
def test_each_kind_admits_its_texts(compiler, tokenizer_json, kind, value, text):
    mask = compiler.mask(compiler.submit(Structure(kind, value)).result(30))
    _feed(mask, tokenizer_json, text)
    assert mask.complete
    assert mask.stopped or END in _allowed(mask)
    assert not mask.error


def test_the_end_is_forbidden_until_the_text_is_whole(compiler, tokenizer_json):
    mask = compiler.mask(compiler.submit(Structure("regex", "ab*")).result(30))
    assert END not in _allowed(mask)
    _feed(mask, tokenizer_json, "ab")
    assert {END, 0} <= _allowed(mask)
    assert not mask.stopped
    mask.consume(END)
    assert mask.stopped


def test_white_space_in_json_has_a_limit(compiler, tokenizer_json):
    mask = compiler.mask(compiler.submit(Structure("json_object")).result(30))
    _feed(mask, tokenizer_json, "{\n")
    encode = tokenizers.Tokenizer.from_str(tokenizer_json).encode
    newline, space = encode("\n").ids[0], encode(" ").ids[0]
    assert newline not in _allowed(mask)
    for _ in range(16):
        assert space in _allowed(mask)
        mask.consume(space)
    assert space not in _allowed(mask)


def test_one_of_is_served_as_any_of(compiler, tokenizer_json):
    schema = '{"oneOf": [{"type": "integer"}, {"type": "null"}]}'
    mask = compiler.mask(compiler.submit(Structure("json_schema", schema)).result(30))
    _feed(mask, tokenizer_json, "null")
    assert mask.complete


def test_padding_of_the_vocabulary_is_forbidden(compiler):
    mask = compiler.mask(compiler.submit(Structure("regex", ".*")).result(30))
    assert max(_allowed(mask)) < 512


def test_masks_of_one_grammar_are_independent(compiler, tokenizer_json):
    prototype = compiler.submit(Structure("regex", "ab|cd")).result(30)
    first, second = compiler.mask(prototype), compiler.mask(prototype)
    before = _allowed(second)
    _feed(first, tokenizer_json, "a")
    assert _allowed(second) == before == _allowed(compiler.mask(prototype))
    assert _allowed(first) != before


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("regex", "(", "unclosed group"),
        ("choice", "[]", "at least one text"),
        ("choice", "[1]", "at least one text"),
        ("choice", '{"a": 1}', "must be a list of texts"),
        ("choice", "yes", "must be JSON"),
        ("json_schema", "{", "a JSON schema must be JSON"),
        ("json_schema", "[]", "must be an object"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"type": 5}', "type must be a string"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "json_schema cannot be compiled"),
        ("json_schema", "false", "json_schema cannot be compiled"),
        ("lark", "start: missing", "cannot be compiled"),
    ],
)
def test_what_cannot_be_compiled_says_why(compiler, kind, value, message):
    with pytest.raises(StructureError, match=message):
        compiler.submit(Structure(kind, value)).result(30)


def test_grammars_are_compiled_once(compiler):
    schema = json.dumps({"type": "string"})
    first = compiler.submit(Structure("json_schema", schema))
    first.result(30)
    assert compiler.submit(Structure("json_schema", schema)) is first
    for number in range(3):
        compiler.submit(Structure("regex", f"a{number}")).result(30)
    assert compiler.submit(Structure("json_schema", schema)) is not first, "it was the oldest"


def test_a_failure_is_not_remembered(compiler):
    first = compiler.submit(Structure("regex", "("))
    first.exception(30)
    assert compiler.submit(Structure("regex", "(")) is not first


def test_a_broken_state_does_not_end_as_if_whole(compiler, tokenizer_json):
    mask = compiler.mask(compiler.submit(Structure("regex", "ab")).result(30))
    wrong = tokenizers.Tokenizer.from_str(tokenizer_json).encode("z").ids[0]
    mask.consume(wrong)
    assert _allowed(mask) == set()
    assert "doesn't satisfy the grammar" in mask.error


def test_deep_json_is_the_clients_mistake(compiler):
    with pytest.raises(StructureError, match="must be JSON"):
        compiler.submit(Structure("json_schema", "[" * 100_000)).result(30)


def test_a_model_without_an_end_token_says_so(tokenizer_json):
    compiler = GrammarCompiler(lambda: tokenizer_json, VOCAB, [])
    with pytest.raises(StructureError, match="names no token that ends an output"):
        compiler.submit(Structure("json_object")).result(30)
    compiler.close()
