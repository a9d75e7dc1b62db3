"""Published tokenizers and chat templates, beside what transformers made of them once.

The vocabularies of llama.cpp's tests have what their makers' tokenizers make of texts beside them.
"""

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.core.errors import ModelError, ModelFileError, RequestError
from inlay.models.gguf.reader import GgufFile
from inlay.models.gguf.tokenizer import write_tokenizer
from inlay.models.text import Text
from tests.support.published_files import TOKENIZERS, fetch_llama_cpp, fetch_tokenizer
from tests.support.published_texts import (
    ALL_TEXTS,
    RECORDED,
    Chats,
    ServedChats,
    chats,
    digest,
    fixed_day,
    with_small_vocabulary,
)

RECORD = json.loads(RECORDED.read_text())
# Those of models that are served by anyone as decoders.
VOCABULARIES = (
    "command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 "
    "qwen2 qwen35 refact starcoder"
).split()


@pytest.fixture(scope="module", params=TOKENIZERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def text(name: str) -> Text:
    try:
        return Text.load(fetch_tokenizer(name))
    except ModelFileError:
        raise
    except ModelError as error:
        pytest.skip(f"NO TEST OF THE PUBLISHED TOKENIZER {name}: {error}")


@pytest.fixture(scope="module")
def llama_cpp() -> Path:
    try:
        return fetch_llama_cpp()
    except ModelFileError:
        raise
    except ModelError as error:
        pytest.skip(f"NO TEST OF PUBLISHED CHAT TEMPLATES AND VOCABULARIES: {error}")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(autouse=True)
def same_day() -> Iterator[None]:
    with fixed_day("inlay.models.chat_template"):
        yield


def by_text(digests: list[str]) -> dict[str, str]:
    return dict(zip(ALL_TEXTS, digests, strict=True))


def test_tokens(text: Text, name: str) -> None:
    expected = RECORD["tokenizers"][name]
    found = by_text([digest(text.encode(each)) for each in ALL_TEXTS])
    assert found == by_text(expected["tokens"])
    bare = by_text([digest(text.encode(each, add_special_tokens=False)) for each in ALL_TEXTS])
    assert bare == by_text(expected["tokens without special"])


@pytest.mark.parametrize("skip", [False, True])
def test_texts(text: Text, name: str, skip: bool) -> None:
    """Decode at once, and token by token as streams do."""
    expected = RECORD["tokenizers"][name]["texts without special" if skip else "texts"]
    for each, said in by_text(expected).items():
        ids = text.encode(each)
        assert digest(text.decode(ids, skip_special_tokens=skip)) == said, each
        stream = text.stream(skip_special_tokens=skip)
        pieces = [stream.push(token_id) for token_id in ids]
        assert digest("".join(pieces) + stream.flush()) == said, each


def check(name: str, found: Chats, expected: Chats) -> None:
    """Check that those differ of which the record says why, and no others."""
    assert found.keys() == expected.keys()
    known = {each for cases in RECORD["differs"].values() for each in cases.get(name, [])}
    assert {each for each in expected if found[each] != expected[each]} == known


def test_chats_of_tokenizers(text: Text, name: str) -> None:
    """Compare token ids."""
    expected = RECORD["tokenizers"][name].get("chats")
    if expected is None:
        assert text.chat_template is None
        return
    check(name, chats(ServedChats(text).tokens, RequestError), expected)


@pytest.mark.parametrize("template", RECORD["templates"])
def test_chats_of_templates(llama_cpp: Path, small: Path, template: str) -> None:
    source = (llama_cpp / "templates" / f"{template}.jinja").read_text("utf-8")
    served = ServedChats(with_small_vocabulary(small, source))
    check(template, chats(served.text, RequestError), RECORD["templates"][template])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_vocabularies(llama_cpp: Path, tmp_path: Path, vocabulary: str) -> None:
    """Read tokenizers that are written from a GGUF file's metadata."""
    file = llama_cpp / "vocabularies" / f"ggml-vocab-{vocabulary}.gguf"
    write_tokenizer(dict(GgufFile(file).metadata), tmp_path)
    text = Text.load(tmp_path)
    texts = Path(f"{file}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{file}.out").read_text().split("\n")
    assert 40 < len(texts) <= len(lines)
    for each, line in zip(texts, lines, strict=False):
        if vocabulary == "qwen35" and unicodedata.normalize("NFC", each) != each:
            continue  # those expect what llama.cpp does, which composes nothing
        expected = [int(token) for token in line.split()]
        assert text.encode(each, add_special_tokens=False) == expected, each
