"""Tokenizers of GGUF files: what each kind cuts a text into."""

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
from inlay.models.gguf.tokenizer import write_tokenizer
from inlay.models.text import Text
from inlay.models.vocabularies.cuts import CUTS
from tests.support.gguf_files import TOKENIZER
from tests.support.tiny_models import make_tiny_model

PEERS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache/inlay-peers"))
TEXTS = (
    "The lantern hangs above the door.", "def add(a, b):\n    return a + b\n\n",
    "  two  spaces", "你好 🙂 Grüße", "<|im_start|>user\nhi<|im_end|>", "1234567 89",
    "It's we'll",
)  # fmt: skip
# More, for cuts: scripts, digits, code, white space, marks.
OTHER_TEXTS = (
    "hello WORLD HTTPRequest camelCase", "it'S 12 123 1234 12345!\n\n x", "a.b.c?! (d) [e] {f}",
    "日本語のテキスト 한국어 สวัสดี नमस्ते", "مرحبا שלום Привет Γειά", "🙂🚀 👩‍👩‍👧‍👦 🇫🇷",
    "cafe\u0301 e\u0301",
    "\t\ttabs\r\nand\n \n  spaces   ", "x = {'a': 1, \"b\": [2.5e-3]} // c", "½ ² Ⅷ ﷽ 𠮷 ﬁ",
)  # fmt: skip
# What llama.cpp does otherwise than the makers' tokenizers, by the first letter of the Unicode
# category of such characters, or the category: it composes no marks, or ends a word before one,
# joins digits of DeepSeek's first, cuts no second time where DeepSeek's and Kimi's do (`Z`), and
# leaves capitals and small letters together.
_COMPOSED = [pre for pre, cut in CUTS.items() if cut.composed]
_CASED = ["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "tekken"]
ELSEWHERE = dict.fromkeys([*_COMPOSED, *_CASED], {"M"}) | {
    "deepseek-llm": {"N", "Z"},
    "deepseek-coder": {"Z"},
    "kimi-k2": {"M", "Lu"},
    "tiny_aya": {"M", "Lu"},
    "cohere2moe": {"M", "Lu"},
    "youtu": {"M", "Lu"},
}
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
    "default": [("a+b 12345", ["a", "+", "b", " ", "123", "45"])],
    "falcon": [("a`b+c 12345!", ["a", "`", "b", "+", "c", " ", "123", "45", "!"])],
    "command-r": [("it's 12", ["it", "'s", " ", "1", "2"])],
    "deepseek-coder": [
        ("it's 12\n\n x日本", ["it", "'", "s", " ", "1", "2", "\n", "\n", " x", "日本"])
    ],
    "qwen35": [("กับ a\u0323 12", ["กับ", " a\u0323", " ", "1", "2"])],
    "tekken": [
        (
            "HelloWorld's HTMLPage 12//\n/",
            ["Hello", "World", "'s", " HTMLPage", " ", "1", "2", "//\n/"],
        ),
    ],
    "bloom": [("One, two(3)  four。x", ["One", ",", " two", "(", "3", ") ", " four", "。", "x"])],
    "viking": [("One 42.", ["One", " ", "4", "2", "."])],
    "afmoe": [("1234567 12日本語กขa.b", ["1", "234", "567", " ", "12", "日本語", "กขa", ".b"])],
    "superbpe": [("a b 1234567!", ["a b ", "1", "234", "567", "!"])],
    "exaone-moe": [("가 나 다 12/\n\n", ["가 나 다", " ", "1", "2", "/\n", "\n"])],
    "bailingmoe": [("it'LL 12!!\n\n x", ["it", "'LL", " ", "1", "2", "!!\n\n", " x"])],
    "chameleon": [("IMGIMGABZ\tx  y12!?", ["IMGIMGABZ", "\t", "x", "  ", "y", "1", "2", "!", "?"])],
    "youtu": [
        ("한국 漢字、ABC 12 it's", ["한국", " ", "漢字", "、", "ABC", " ", "1", "2", " it's"])
    ],
    "jais-2": [("a     b 1234", ["a", "    ", " b", " ", "123", "4"])],
    "laguna": [("a!\n\n b", ["a", "!", "\n\n", " b"])],
    "seed-coder": [("a!\n\n b12", ["a", "!", "\n\n", " b", "1", "2"])],
    "spark2_5": [("a!\n\n b1234", ["a", "!", "\n", "\n", " b", "1", "2", "3", "4"])],
    "minicpm5": [("a 12345", ["a", " ", "123", "45"])],
    "tiny_aya": [("1234567 aB", ["1", "234", "567", " a", "B"])],
    "ufakzeka": [("it'll 12", ["it", "'ll", " ", "1", "2"]), ("x'sy", ["x", "'sy"])],
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


@pytest.mark.parametrize(
    ("tokens", "types", "named", "expected"),
    [
        # GLM ends with what begins the next turn.
        ("a <|user|> <|observation|> <|end|> x", [1, 3, 3, 3, 3], {"eos": 1, "eom": 4}, "1 2 3 4"),
        # gpt-oss and Solar end with a call, not with a message.
        ("<|end|> <|return|> <|call|>", [3, 3, 3], {}, "1 2"),
        ("<|end|> <|flush|> <|calls|>", [3, 3, 3], {}, "1 2"),
        ("<|end|> <|call|>", [3, 3], {}, "0 1"),
        # Some files have such tokens among the words; what a text may hold as well is a word.
        ("<|im_end|> </s> <eos> <|user|>", [1, 1, 3, 1], {}, "0 2"),
        ("</s> <turn|> <|tool_response>", [3, 3, 3], {}, "1 2"),
        # What a text to fill in would go on into, unless the file names another.
        ("<|fim_pad|> <|file_sep|> <|repo_name|> <reponame>", [4, 3, 3, 1], {}, "0 1 2"),
        ("<|fim_pad|> x", [3, 3], {"fim_pad": 1}, "1"),
    ],
)
def test_ends_of_a_turn(
    tmp_path: Path, tokens: str, types: list[int], named: dict[str, int], expected: str
) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens.split(),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [],
    } | {f"tokenizer.ggml.{name}_token_id": number for name, number in named.items()}
    written(metadata, tmp_path)
    assert Text.load(tmp_path).eos_token_ids == set(map(int, expected.split()))


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("qwen2", {}, [0]),
        ("llama-bpe", {}, [2, 0]),
        ("tekken", {}, [2, 0]),
        ("llama-bpe", {"add_bos_token": False}, [0]),
        ("qwen2", {"add_bos_token": True}, [2, 0]),
        ("qwen2", {"add_eos_token": True}, [0, 3]),
        ("gemma4", {"add_bos_token": False}, [2, 0]),
        ("sarvam-moe", {}, [0]),
    ],
)
def test_what_is_put_around(
    tmp_path: Path, pre: str, flags: dict[str, bool], expected: list[int]
) -> None:
    metadata = TOKENIZER | {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "<s>", "<|end|>", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 3, 3, 1],
        "tokenizer.ggml.bos_token_id": 2,
    }
    metadata |= {f"tokenizer.ggml.{flag}": value for flag, value in flags.items()}
    assert written(metadata, tmp_path).encode("a").ids == expected


SPACED = {
    "tokenizer.ggml.tokens": [
        "<unk>",
        "<s>",
        "</s>",
        "\u2581",
        "a",
        "\u2581a",
        "b",
        "aa",
        "<0x63>",
    ],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 6],
}


def test_characters_with_merges(tmp_path: Path) -> None:
    """As Gemma 4's: spaces stand as `\u2581`, the rest as bytes, and the merges are the file's."""
    metadata = SPACED | {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.merges": ["a a", "\u2581 a"],
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = written(metadata, tmp_path)
    assert tokenizer.encode(" a aac", add_special_tokens=False).ids == [5, 3, 7, 8]
    assert Text.load(tmp_path).decode([5, 3, 7, 8]) == " a aac"


@pytest.mark.parametrize(
    ("kind", "scores", "flags", "text", "expected"),
    [
        # The pair with the highest score first, and ids that files may leave out.
        ("llama", [0, 0, 0, -5, -4, -2, -3, -1, 0], {}, "aab", [1, 3, 7, 6]),
        ("llama", [0, 0, 0, -5, -4, -1, -3, -2, 0], {}, "aab", [1, 5, 4, 6]),
        ("llama", [0, 0, 0, -5, -4, -1, -3, -2, 0], {"add_space_prefix": False}, "aab", [1, 7, 6]),
        ("llama", [0, 0, 0, -5, -4, -1, -3, -2, 0], {"add_bos_token": False}, "b", [3, 6]),
        ("llama", [0, 0, 0, -5, -4, -1, -3, -2, 0], {"remove_extra_whitespaces": True},
         "  b  a ", [1, 3, 6, 5]),
        # Logarithms of likelihoods: the pieces of the highest sum.
        ("llama", [0, 0, 0, -2.5, -4.5, -1.5, -3.5, -6.5, -9.5], {}, "aab", [1, 5, 4, 6]),
        ("t5", [0, 0, 0, -2.5, -4.5, -1.5, -3.5, -1.5, -9.5],
         {"unknown_token_id": 0, "eos_token_id": 2}, "aab", [3, 7, 6, 2]),
        ("t5", [0, 0, 0, -2.5, -4.5, -1.5, -3.5, -1.5, -9.5],
         {"unknown_token_id": 0, "add_eos_token": False}, "b", [3, 6]),
    ],
)  # fmt: skip
def test_pieces_with_scores(
    tmp_path: Path,
    kind: str,
    scores: list[float],
    flags: dict[str, Any],
    text: str,
    expected: list[int],
) -> None:
    metadata = SPACED | {"tokenizer.ggml.model": kind, "tokenizer.ggml.scores": scores}
    metadata |= {f"tokenizer.ggml.{flag}": value for flag, value in flags.items()}
    assert written(metadata, tmp_path).encode(text).ids == expected


def test_white_space_after_tokens_of_phi_3(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "<|user|>", "\u2581", "a", "<0x0A>"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 6],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, 0.0],
        "tokenizer.ggml.add_bos_token": False,
    }
    for name, expected in (("Phi 3 Mini 4k Instruct", [2, 3, 4, 1, 3, 5, 4]), ("x", [2, 3, 5, 4])):
        tokenizer = written(metadata | {"general.name": name}, tmp_path)
        assert tokenizer.encode("<|user|>\na<s>\na").ids[: len(expected)] == expected


def test_merges_of_ranks(tmp_path: Path) -> None:
    """Files of Kimi-K2 may have none: a token's id is its rank then."""
    metadata = TOKENIZER | {
        "tokenizer.ggml.pre": "kimi-k2",
        "tokenizer.ggml.tokens": ["a", "b", "c", "bc", "ab", "abc", "<|end|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 3],
        "tokenizer.ggml.eos_token_id": 6,
    }
    del metadata["tokenizer.ggml.merges"]
    assert written(metadata, tmp_path).encode("aabca").ids == [0, 5, 0]
    with pytest.raises(ModelFileError, match="there are none"):
        written(metadata | {"tokenizer.ggml.pre": "qwen2"}, tmp_path)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModelError, "'rwkv' is not .* RWKV's are"),
        ({"tokenizer.ggml.model": "plamo2"}, UnsupportedModelError, "PLaMo's are not served"),
        ({"tokenizer.ggml.model": "new"}, UnsupportedModelError, "read are gpt2, gemma4, llama"),
        ({"tokenizer.ggml.add_sep_token": True}, UnsupportedModelError, "add_sep_token is set"),
        ({"tokenizer.ggml.normalizer.lowercase": True}, UnsupportedModelError, "lowercase is set"),
        ({"tokenizer.ggml.merges": ["a c"]}, ModelFileError, "merges do not fit .* damaged"),
        ({"tokenizer.ggml.tokens": ["a", "a", "b", "c"]}, ModelFileError, "two .* written alike"),
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
        pytest.skip(f"{file} is missing")
    return file


TOKENIZE = """
import json, sys
from llama_cpp import Llama
model = Llama(model_path=sys.argv[1], vocab_only=True, verbose=False)
texts = json.load(sys.stdin)
ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
json.dump(ids, sys.stdout)
"""


@pytest.mark.peers
@pytest.mark.parametrize("pre", [pre for pre, cut in CUTS.items() if not cut.spaced])
def test_as_llama_cpp(tmp_path: Path, pre: str) -> None:
    """A vocabulary that was made without cuts, so that each cut shows in the tokens."""
    python = there(PEERS / "llama-cpp-python" / "bin" / "python")
    texts = [text for text in (*TEXTS, *OTHER_TEXTS) if "<|" not in text]
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
    done = subprocess.run(
        [str(python), "-c", TOKENIZE, str(file)],
        input=json.dumps(texts).encode(),
        capture_output=True,
        check=True,
    )
    for text, expected in zip(texts, json.loads(done.stdout), strict=True):
        categories = {unicodedata.category(char) for char in text}
        if not ELSEWHERE.get(pre, set()) & {*categories, *(name[0] for name in categories)}:
            assert tokenizer.encode(text).ids == expected, text


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
