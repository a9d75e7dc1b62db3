"""Tokenizers of GGUF files: what each kind cuts a text into, and their makers' tokens."""

import json
import os
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.gguf.cuts import CUTS
from inlay.models.gguf.reader import GgufFile
from inlay.models.gguf.tokenizer import write_tokenizer
from inlay.models.text import Text
from tests.support.gguf_files import TOKENIZER
from tests.support.tiny_models import make_tiny_model

LLAMA = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache/inlay-peers")) / "llama.cpp"
TEXTS = (
    "The lantern hangs above the door.", "def add(a, b):\n    return a + b\n\n",
    "  two  spaces", "你好 🙂 Grüße", "<|im_start|>user\nhi<|im_end|>", "1234567 89",
    "It's we'll",
)  # fmt: skip
# What llama.cpp does otherwise than the makers' tokenizers, by the first letter of the Unicode
# category of such characters. It composes no marks (qwen2), ends a word before one (gpt-4o), and
# joins digits, of which DeepSeek's vocabulary has no pairs. Of Kimi-K2 it leaves out the capitals.
ELSEWHERE = {"qwen2": "M", "deepseek-r1-qwen": "M", "gpt-4o": "M", "deepseek-llm": "N"}
PIECES = {
    "gpt-2": [("it's 12\n x", ["it", "'s", " 12", "\n", " x"])],
    "qwen2": [("it'S 12!\n x", ["it", "'S", " ", "1", "2", "!\n", " x"])],
    "llama-bpe": [("it'S 1234!\n x", ["it", "'S", " ", "123", "4", "!\n", " x"])],
    "glm4": [("a_b 1234\n\n  x", ["a", "_b", " ", "123", "4", "\n\n", " ", " x"])],
    "smollm": [("it's 12!\n x", ["it", "'s", " ", "1", "2", "!", "\n", " x"])],
    "deepseek-llm": [
        ("it's 12\n\n x", ["it", "'", "s", " ", "1", "2", "\n", "\n", " x"]),
        ("日本 한국Ωд!  ?", ["日本", " ", "한국", "Ωд", "!", " ", " ?"]),
    ],
    "deepseek-v3": [
        ("x1234.foo bar?!\n", ["x", "123", "4", ".foo", " bar", "?!\n"]),
        ("日本語カナ e\u0301t", ["日本語カナ", " e\u0301t"]),
    ],
    "kimi-k2": [
        ("Hello漢字World's 1234", ["Hello", "漢字", "World's", " ", "123", "4"]),
        ("HTMLPage a/b//\n", ["HTMLPage", " a", "/b", "//\n"]),
    ],
    "gpt-4o": [
        ("HelloWorld's漢字X 1234", ["Hello", "World's", "漢字", "X", " ", "123", "4"]),
        ("HTMLPage a/b//\n/", ["HTMLPage", " a", "/b", "//\n/"]),
    ],
}


def written(metadata: dict[str, Any], directory: Path) -> tokenizers.Tokenizer:
    directory.mkdir(exist_ok=True)
    write_tokenizer(metadata, directory)
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("pre", PIECES)
def test_pieces(tmp_path: Path, pre: str) -> None:
    """By hand, from what the makers' regexes say."""
    tokenizer = written(TOKENIZER | {"tokenizer.ggml.pre": pre}, tmp_path)
    for text, expected in PIECES[pre]:
        cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [text[start:end] for _, (start, end) in cut] == expected


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_makers_tokens(tmp_path: Path, kind: str) -> None:
    source = make_tiny_model(tmp_path / "source", "llama", tokenizer=kind)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text((source / "config.json").read_text())
    write_tokenizer(metadata_of(source, kind), tmp_path / "made")
    theirs, ours = Text.load(source), Text.load(tmp_path / "made")
    assert ours.chat_template == theirs.chat_template
    assert json.loads((source / "config.json").read_text())["eos_token_id"] in ours.eos_token_ids
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def metadata_of(source: Path, kind: str) -> dict[str, Any]:
    made = json.loads((source / "tokenizer.json").read_text())
    vocabulary = dict(made["model"]["vocab"])
    special = {one["content"]: one for one in made["added_tokens"]}
    vocabulary |= {content: one["id"] for content, one in special.items()}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [
        1 if token not in special else 3 if special[token]["special"] else 4 for token in tokens
    ]
    merges = [
        " ".join(pair) if isinstance(pair, list) else pair for pair in made["model"]["merges"]
    ]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": (source / "chat_template.jinja").read_text(),
    }
    config = json.loads((source / "tokenizer_config.json").read_text())
    for key, theirs in (("bos", "bos_token"), ("eos", "eos_token")):
        if config.get(theirs):
            metadata[f"tokenizer.ggml.{key}_token_id"] = tokens.index(config[theirs])
    if kind == "sentencepiece":
        ranks = {"".join(pair.split(" ")): -float(n) for n, pair in enumerate(merges)}
        return metadata | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [float(ranks.get(token, -1e6)) for token in tokens],
            "tokenizer.ggml.unknown_token_id": tokens.index("<unk>"),
        }
    return metadata | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": True,
    }


def test_words_that_are_tokens(tmp_path: Path) -> None:
    """tiktoken's kinds take them whole, the others merge pairs."""
    metadata = TOKENIZER | {
        "tokenizer.ggml.tokens": ["a", "b", "ab", "aba", "<|end|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
    }
    for pre, expected in (("llama-bpe", [3]), ("gpt-4o", [3]), ("deepseek-v3", [2, 0])):
        tokenizer = written(metadata | {"tokenizer.ggml.pre": pre}, tmp_path)
        assert tokenizer.encode("aba").ids == expected


def test_ends_of_a_turn(tmp_path: Path) -> None:
    """GLM ends with what begins the next one, gpt-oss with a call, too, not with a message."""
    tokens = ["a", "b", "<|user|>", "<|observation|>", "<|call|>", "<|end|>", "<|im_end|>", "x"]
    metadata = TOKENIZER | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 1, 3, 3, 3, 3, 1, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eom_token_id": 7,
    }
    written(metadata, tmp_path)
    assert Text.load(tmp_path).eos_token_ids == {2, 3, 4, 7}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModelError, "tokenizer 'rwkv' is not read"),
        ({"tokenizer.ggml.pre": "new"}, UnsupportedModelError, "pre 'new' is not known"),
        ({"tokenizer.ggml.tokens": None}, ModelFileError, "has no tokenizer"),
        ({"tokenizer.ggml.eos_token_id": 9}, ModelFileError, "is 9, and there are 4 tokens"),
        ({"tokenizer.ggml.model": "llama"}, ModelFileError, "scores has 0 entries for 4 tokens"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_tokenizer(TOKENIZER | metadata, tmp_path)


def there(file: Path) -> Path:
    if not file.exists():
        pytest.skip(f"{file} is missing: build llama.cpp, with the target llama-tokenize")
    return file


@pytest.mark.peers
@pytest.mark.parametrize("name", ["deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "qwen2"])
def test_real_vocabularies(tmp_path: Path, name: str) -> None:
    """llama.cpp's source has vocabularies of models, and what their makers make of some texts."""
    file = there(LLAMA / "source" / "models" / f"ggml-vocab-{name}.gguf")
    tokenizer = written(dict(GgufFile(file).metadata), tmp_path)
    texts = Path(f"{file}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{file}.out").read_text().split("\n")
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        expected = [int(token) for token in line.split()]
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text


@pytest.mark.peers
@pytest.mark.parametrize("pre", sorted(CUTS.keys() - {"kimi-k2"}))
def test_as_llama_cpp(tmp_path: Path, pre: str) -> None:
    """A vocabulary that was made without cuts, so that each cut shows in the tokens."""
    source = there(LLAMA / "source" / "models" / "ggml-vocab-qwen2.gguf.inp")
    texts = [*TEXTS, *source.read_text("utf-8").split("\n__ggml_vocab_test__\n")]
    texts = [text for text in texts if "<|" not in text]  # by its name a special token there
    texts += [text for pieces in PIECES.values() for text, _ in pieces]
    metadata = vocabulary_across_cuts(texts) | {"tokenizer.ggml.pre": pre}
    tokenizer = written(metadata, tmp_path)
    file = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in (metadata | {"llama.block_count": 1}).items():
        {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)](
            key, value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    program = there(LLAMA / "build" / "bin" / "llama-tokenize")
    command = [str(program), "-m", str(file), "--ids", "--log-disable", "--no-bos", "--stdin"]
    for text in texts:
        if ELSEWHERE.get(pre) in {unicodedata.category(char)[0] for char in text}:
            continue
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        assert tokenizer.encode(text).ids == json.loads(done.stdout), text


def vocabulary_across_cuts(texts: list[str]) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 3, trainer)
    made = json.loads(tokenizer.to_str())["model"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(made["vocab"], key=made["vocab"].get),
        "tokenizer.ggml.token_type": [1] * len(made["vocab"]),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in made["merges"]],
    }
