"""Tables of tokens say what the `tokenizers` library says of the same tokenizer.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from inlay.core.errors import ModelFileError
from inlay.models.text import Text
from inlay.models.vocabularies.token_table import TokenTable

WORDS = st.sampled_from(["a", "b", "ab", "▁", "é", "🙂", "<s>", "</s>", "<0x41>", "", "abc", "\0"])
ADDED = st.lists(st.tuples(WORDS, st.booleans(), st.integers(0, 30)), max_size=6)
DECODERS = st.sampled_from(
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ]
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["BPE", "WordLevel", "Unigram"]))
    words = draw(st.lists(WORDS, min_size=1, max_size=8, unique=True))
    if kind == "Unigram":
        return {"type": kind, "unk_id": 0, "vocab": [[word, -1.0] for word in words]}
    ids = (
        draw(st.permutations(range(len(words))))
        if draw(st.booleans())
        else draw(
            st.lists(st.integers(0, 30), min_size=len(words), max_size=len(words), unique=True)
        )
    )
    vocab = dict(zip(words, ids, strict=True))
    if kind == "WordLevel":
        return {"type": kind, "vocab": vocab, "unk_token": words[0]}
    return {"type": kind, "vocab": vocab, "merges": []}


def written(
    folder: Path, model: dict[str, Any], added: list[tuple[str, bool, int]], decoder: Any
) -> Path:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    file = folder / "tokenizer.json"
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": text, "special": special, **flags}
            for text, special, number in added
        ],
        "decoder": decoder,
        "model": model,
    }
    file.write_text(json.dumps(content))
    return file


@st.composite
def tokenizer_files(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[str, bool, int]]]:
    """A model and added tokens, half of them with the ids that `tokenizers` gives them."""
    model, added = draw(models()), draw(ADDED)
    if draw(st.booleans()):
        return model, added
    vocab = model["vocab"]
    known = vocab if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}
    ids = dict(known)
    for text, _, _ in added:
        ids.setdefault(text, len(ids))
    special = {text: is_special for text, is_special, _ in added if text}
    return model, [(text, is_special, ids[text]) for text, is_special in special.items()]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=tokenizer_files(), decoder=DECODERS)
def test_like_tokenizers(
    tmp_path: Path, made: tuple[dict[str, Any], list[tuple[str, bool, int]]], decoder: Any
) -> None:
    model, added = made
    file = written(tmp_path, model, added, decoder)
    whole = tokenizers.Tokenizer.from_file(str(file))
    vocab = whole.get_vocab(with_added_tokens=True)
    # With holes among its ids, `tokenizers` may give one id to two tokens.
    assume(len(set(vocab.values())) == len(vocab))
    tables = [TokenTable.of(whole)]
    read = TokenTable.read(file)
    if read is not None:
        tables.append(read)
    plain = {text for text, _, _ in added if text}
    if len(plain) == len(added) and all(vocab[text] == number for text, _, number in added):
        assert read is not None or set(vocab.values()) != set(range(len(vocab)))
    for table in tables:
        assert table.size == max(vocab.values()) + 1
        for token_id in range(table.size + 3):
            assert table.text(token_id) == (whole.id_to_token(token_id) or "")
        for text in (*vocab, "abcd", "nothing"):
            assert table.find(text) == (whole.token_to_id(text) if text else None)
        special = whole.get_added_tokens_decoder()
        assert table.special_ids == {i for i, token in special.items() if token.special}
    assert tables[0].decoder == tables[-1].decoder
    assert tables[0].text(-1) == ""


def test_without_encoding(tmp_path: Path) -> None:
    """A text that need not encode reads no merges, until it has to."""
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    model = {"type": "WordLevel", "vocab": {"hi": 0}, "unk_token": "hi"}
    file = written(tmp_path, model, [], decoder)
    text = Text.load(tmp_path, encodes=False)
    file.write_text(file.read_text().replace('"unk_token": "hi"', '"unk_token": 1'))
    assert (text.vocab_size, text.token_text(0)) == (1, "hi")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is damaged"):
        text.encode("hi")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is damaged"):
        Text.load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 100_000, '{"model": {"vocab": {"a": "b"}}}']
)
def test_others_are_left_to_tokenizers(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content)
    assert TokenTable.read(file) is None
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is damaged, or newer"):
        Text.load(tmp_path, encodes=False)


def test_ids_far_apart(tmp_path: Path) -> None:
    """An id takes no memory for those before it that are none."""
    vocab = {"a": 0, "b": 4_000_000_000}
    written(tmp_path, {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}, [], None)
    with pytest.raises(ModelFileError, match="2 tokens have ids from 0 to 4000000000"):
        Text.load(tmp_path, encodes=False)
