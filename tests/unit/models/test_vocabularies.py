"""Vocabularies in the makers' forms. Expected ids are those of the makers' libraries.

`mistral_common` 1.13.1, `tiktoken` 0.14.0 and `sentencepiece` 0.2.3 gave them for the very files
that are made here.
"""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.hub import SMALL_FILES
from inlay.models.text import Text
from inlay.models.vocabularies import FORMS
from inlay.models.vocabularies.cuts import CUTS
from inlay.models.vocabularies.wire import fields

TEXTS = (
    "the thing in the World's ababa 12345",
    "  two    spaces\n\n\tand HTMLPage",
    "你你好 ééa\u0301 🙂",
    "Han漢字abab and there",
)
RANKS = [
    *(bytes([byte]) for byte in range(256)),
    *(b"\xe4\xbd", b"\xc3\xa9", b"\xe4\xbd\xa0", b"  ", b" t", b" th", b" the", b" a", b" an"),
    *(b"th", b"he", b"in", b"ab", b"ba", b"aba", b"bab", b"abab", b"the", b"ing", b"12", b"23"),
    *(b"123", b"or", b"ld", b"orld", b"World", b"\n\n", b"HT", b"ML", b"HTML", b"Pa", b"ge"),
    *(b"Page", b" and", b" in"),
]


def write_tekken(directory: Path, **changes: Any) -> Path:
    """A vocabulary of which the last two tokens are cut off."""
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(RANKS)
    ]
    about = {
        "pattern": CUTS["tekken"].regexes[0],
        "num_vocab_tokens": len(RANKS),
        "default_vocab_size": len(RANKS) + 24 - 2,
        "default_num_special_tokens": 24,
        "version": "v3",
    }
    content = {"config": about, "vocab": vocabulary} | changes
    (directory / "tekken.json").write_text(json.dumps(content))
    return directory


def write_ranks(directory: Path, name: str, config: dict[str, Any]) -> Path:
    lines = (base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(RANKS))
    (directory / name).write_bytes(b"".join(lines))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


NAMED = {
    len(RANKS): {"content": "[BOS]", "special": True, "normalized": False},
    len(RANKS) + 1: {"content": "[EOS]", "special": True, "normalized": False},
    len(RANKS) + 2: {"content": "<|im_end|>", "special": True, "normalized": False},
    len(RANKS) + 11: {"content": "<|call|>", "special": False, "normalized": False},
}
KIMI = {"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]", "added_tokens_decoder": NAMED}


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a message of Protocol Buffers."""
    if isinstance(value, float):
        return bytes([*varint(number << 3 | 5), *struct.pack("<f", value)])
    if isinstance(value, int):
        return bytes([*varint(number << 3), *varint(value % (1 << 64))])
    return bytes([*varint(number << 3 | 2), *varint(len(value)), *value])


def varint(number: int) -> list[int]:
    low = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return [*(byte | 0x80 for byte in low[:-1]), low[-1]]


# Pieces, scores where they are merged and where their sum counts, and types.
PIECES = [
    ("<unk>", 0.0, 0.0, 2), ("<s>", 0.0, 0.0, 3), ("</s>", 0.0, 0.0, 3), ("[INST]", 0.0, 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, -12.0, 6) for byte in range(256)),
    ("th", -1.0, -5.5, 1), ("\u2581th", -2.0, -4.5, 1), ("in", -3.0, -4.25, 1),
    ("the", -4.0, -5.0, 1), ("\u2581the", -5.0, -3.0, 1), ("ing", -6.0, -4.75, 1),
    ("ab", -7.0, -5.0, 1), ("ba", -8.0, -4.5, 1), ("aba", -9.0, -6.0, 1), ("12", -10.0, -6.0, 1),
    *((char, -20.0 - place, -7.0 - place / 16, 1)
      for place, char in enumerate("\u2581etaoinshrdluWg'b1234你éHTMLP")),
]  # fmt: skip


def write_pieces(
    directory: Path,
    kind: str,
    *,
    trainer: bytes = b"",
    normalizer: bytes = b"",
    config: dict[str, Any] | None = None,
) -> Path:
    unigram = kind == "unigram"
    no_prefix = field(3, 0) in normalizer
    users = [("<sep>", 4), ("\u2581\u2581", 4)] if no_prefix else [("<sep>", 3), ("<gap>", 3)]
    learned = [*PIECES[:4], *((text, 0.0, 0.0, which) for text, which in users), *PIECES[4:]]
    pieces = b"".join(
        field(1, field(1, text.encode()) + field(2, both[unigram]) + field(3, which))
        for text, *both, which in learned
    )
    about = field(3, 1 if unigram else 2) + field(35, 1) + field(43, -1) + trainer
    model = pieces + field(2, about) + field(3, field(1, b"identity") + normalizer)
    (directory / "tokenizer.model").write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return directory


# By file: the ids of `TEXTS`.
EXPECTED = {
    "tekken": (
        "297 285 298 56 291 286 56 305 63 139 287 122 294 56 73 74 75 76 77",
        "56 284 143 135 283 56 56 139 136 121 123 125 139 306 33 121 134 124 56 309 312",
        "282 282 253 189 213 56 281 281 121 228 153 56 264 183 177 154",
        "96 121 134 254 212 186 253 197 175 296 288 124 286 138 125",
    ),
    "kimi": (
        "273 261 274 290 262 32 281 39 115 263 98 270 32 277 52 53",
        "32 260 119 111 259 32 32 115 112 97 99 101 115 282 9 97 110 100 32 285 288",
        "258 258 229 165 189 32 257 257 97 204 129 32 240 159 153 130",
        "72 97 110 230 188 162 229 173 151 272 289 262 114 101",
    ),
    "qwen": (
        "273 261 274 290 262 32 281 39 115 263 98 270 32 49 50 51 52 53",
        "32 260 119 111 259 32 32 115 112 97 99 101 115 282 9 97 110 100 32 285 288",
        "258 258 229 165 189 32 257 257 195 161 32 240 159 153 130",
        "72 97 110 230 188 162 229 173 151 272 289 262 114 101",
    ),
    "pairs": (
        "266 263 267 272 264 266 272 285 276 281 283 282 287 279 272 268 270 272 271 291 292 59",
        "272 272 272 274 125 276 272 272 272 272 279 118 275 105 273 279 16 16 15 275 278 "
        "282 272 295 296 297 298 299 275 286 273",
        "272 293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "272 295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
    "pairs-plain": (
        "265 263 267 272 264 266 272 285 276 281 283 282 287 279 272 268 270 272 271 291 292 59",
        "5 274 125 276 5 5 279 118 275 105 273 279 16 16 15 275 278 282 272 295 296 297 "
        "298 299 275 286 273",
        "293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
    "pairs-squeeze": (
        "266 263 267 272 264 266 272 285 276 281 283 282 287 279 272 268 270 272 271 291 292 59",
        "272 274 125 276 272 279 118 275 105 273 279 16 16 15 275 278 282 272 295 296 297 "
        "298 299 275 286 273",
        "272 293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "272 295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
    "unigram": (
        "266 263 267 272 264 266 272 285 276 281 283 282 287 279 272 270 269 272 271 291 292 59",
        "272 272 272 274 125 276 272 272 272 272 279 118 275 105 273 279 16 16 15 275 278 "
        "282 272 295 296 297 298 299 275 286 273",
        "272 293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "272 295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
    "unigram-plain": (
        "265 263 267 272 264 266 272 285 276 281 283 282 287 279 272 270 269 272 271 291 292 59",
        "5 274 125 276 5 5 279 118 275 105 273 279 16 16 15 275 278 282 272 295 296 297 "
        "298 299 275 286 273",
        "293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
    "unigram-squeeze": (
        "266 263 267 272 264 266 272 285 276 281 283 282 287 279 272 270 269 272 271 291 292 59",
        "272 274 125 276 272 279 118 275 105 273 279 16 16 15 275 278 282 272 295 296 297 "
        "298 299 275 286 273",
        "272 293 293 235 171 195 272 294 294 275 210 135 272 246 165 159 136",
        "272 295 275 278 236 194 168 235 179 157 268 268 272 275 278 282 266 281 273",
    ),
}


def made(directory: Path, name: str) -> Path:
    """The directory of one of `EXPECTED`."""
    kind, _, which = name.partition("-")
    if kind == "tekken":
        return write_tekken(directory)
    if kind == "kimi":
        return write_ranks(directory, "tiktoken.model", KIMI)
    if kind == "qwen":
        return write_ranks(directory, "qwen.tiktoken", {"tokenizer_class": "QWenTokenizer"})
    squeezed, prefixed = which == "squeeze", which != "plain"
    normalizer = field(3, int(prefixed)) + field(4, int(squeezed))
    return write_pieces(directory, kind, normalizer=normalizer)


@pytest.mark.parametrize("name", EXPECTED)
def test_makers_tokens(tmp_path: Path, name: str) -> None:
    text = Text.load(made(tmp_path, name))
    for content, expected in zip(TEXTS, EXPECTED[name], strict=True):
        ids = text.encode(content, add_special_tokens=False)
        assert ids == [int(number) for number in expected.split()], content
        if "squeeze" not in name and name != "qwen":
            assert text.decode(ids) == content


def test_special_tokens_of_tekken(tmp_path: Path) -> None:
    text = Text.load(write_tekken(tmp_path))
    assert text.vocab_size == len(RANKS) + 24 - 2
    assert text.encode("<s>[INST]a<SPECIAL_22></s>") == [1, 1, 3, 24 + ord("a"), 22, 2]
    assert text.decode([1, 3, 24 + ord("a"), 22, 2]) == "a"
    assert text.eos_token_ids == {2} and text.special_tokens["bos_token"] == "<s>"
    named = [
        {"rank": rank, "token_str": token, "is_control": rank != 2}
        for rank, token in enumerate(["<unk>", "<s>", "[THINK]", "</s>"])
    ]
    text = Text.load(write_tekken(tmp_path, special_tokens=named))
    assert text.encode("[THINK][INST]", add_special_tokens=False)[0] == 2
    assert text.decode([1, 2, 3]) == "[THINK]"
    assert text.eos_token_ids == {3}


def test_special_tokens_of_tiktoken(tmp_path: Path) -> None:
    first = len(RANKS)
    text = Text.load(write_ranks(tmp_path, "tiktoken.model", KIMI))
    assert text.vocab_size == first + 256
    content = f"a<|im_end|><|call|><|reserved_token_{first + 3}|>[BOS]"
    assert text.encode(content) == [ord("a"), first + 2, first + 11, first + 3, first]
    assert text.decode([ord("a"), first + 2, first + 11, first + 3]) == "a<|call|>"
    assert text.eos_token_ids == {first + 1} and text.special_tokens["bos_token"] == "[BOS]"
    (tmp_path / "tiktoken.model").unlink()
    text = Text.load(made(tmp_path, "qwen"))
    assert text.encode("<|endoftext|><|im_end|><|extra_204|>") == [first, first + 2, first + 207]


def test_tokens_added_to_pieces(tmp_path: Path) -> None:
    """Of tokenizer_config.json, or of added_tokens.json; ids in between stay free."""
    first = len(PIECES) + 2
    token = {"content": "<|im_end|>", "special": True, "normalized": False}
    config = {"added_tokens_decoder": {str(first + 2): token}, "eos_token": "<|im_end|>"}
    text = Text.load(write_pieces(tmp_path, "pairs", config=config | {"add_eos_token": True}))
    assert text.encode("the<|im_end|>") == [1, 266, first + 2, 2]
    assert text.eos_token_ids == {first + 2} and text.vocab_size == first + 3
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<call>": first}))
    text = Text.load(write_pieces(tmp_path, "unigram", config={"add_bos_token": False}))
    assert text.encode("the<call>") == [266, first]
    assert text.eos_token_ids == {2}


def test_spaces_before_pieces(tmp_path: Path) -> None:
    """After each special token, or at the beginning alone, as `transformers` has both."""
    text = Text.load(write_pieces(tmp_path, "pairs"))
    assert text.encode("the[INST]the") == [1, 266, 3, 266]
    text = Text.load(write_pieces(tmp_path, "pairs", config={"legacy": False}))
    assert text.encode("the[INST]the") == [1, 266, 3, 265]


# `T` becomes `t`: as SentencePiece compiles such a rule.
CHARSMAP = (
    "eNod0mMUFgYUBuBvnbiMZVsLy7bt1pZt27Ztu7ZqaXF5q2Xbto3n657z3B/vub/uvYGQgUCg6g+BqhEDweoXQgtF"
    "MA5DaMIRlvD8SHA0ApGJRFSiEJ1o/EQMYhGTOMQmHnFJQHwSkZAkJCYZSUlBclKRkjSkJh1p+Zn0ZCQDmclEFn4h"
    "G1nJQXZykZM85CYfeSlAfgpRkCIUphhFKUFxSlGSMpSmHGWpQHkqUZEqVKZacKXUoDq/UpPfqEVtfqcudahPPRrS"
    "gMY0oilNaE4zWtKC1rSiLW1oTzs60oHOdKIrXehON3rSg970oi996B88PAMZwGAGMZQhDGcYIxnBaEYxljGMZxwT"
    "mcBkJjGVKUxnGjOZwWxmMZc5zGceC1nAYhaxlCUsZxkrWcFqVvEnf7CWNfzFOjawnk1s5G82s5UtbGcbO9nBLv5h"
    "D7vZx14OsJ//+JdDHOQw/3OUIxznGCc5wWlOcZYznOccF7nAZS5xlStc5xo3ucFtbnGXO9znHg95wGMe8ZQnPOcZ"
    "L3nBa17xlje85x0f+cBnPvGVL99/5RuNZ4Er"
)


def test_replaced_characters(tmp_path: Path) -> None:
    charsmap = zlib.decompress(base64.b64decode(CHARSMAP))
    for kind in ("pairs", "unigram"):
        text = Text.load(write_pieces(tmp_path, kind, normalizer=field(2, charsmap)))
        assert text.encode("The The") == text.encode("the the")
        assert text.encode("H") != text.encode("h")


def test_the_first_form_is_read(tmp_path: Path) -> None:
    assert set(FORMS) <= set(SMALL_FILES)
    write_pieces(tmp_path, "pairs")
    write_tekken(tmp_path)
    assert Text.load(tmp_path).vocab_size == len(RANKS) + 24 - 2
    (tmp_path / "tekken.json").unlink()
    assert Text.load(tmp_path).vocab_size == len(PIECES) + 2


def test_damaged_files(tmp_path: Path) -> None:
    whole = write_pieces(tmp_path, "pairs") / "tokenizer.model"
    for content in (b"", whole.read_bytes()[:-1], b"QQ== 0\nYg== 1\n", field(1, field(1, b"\xff"))):
        whole.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"tokenizer\.model is no vocabulary of Sentence"):
            Text.load(tmp_path)
    for trainer, normalizer in ((field(40, 9999), b""), (b"", field(2, b"no map"))):
        write_pieces(tmp_path, "unigram", trainer=trainer, normalizer=normalizer)
        with pytest.raises(ModelFileError, match=r"tokenizer\.model is damaged"):
            Text.load(tmp_path)
    ranks = write_ranks(tmp_path, "tiktoken.model", KIMI) / "tiktoken.model"
    for content in (b"QQ== 0\nYg== 2\n", b"QQ== 0\nQQ== 1\n", b"Q 0\n", b"QQ== x\n"):
        ranks.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"tiktoken\.model cannot be used"):
            Text.load(tmp_path)
    tekken = write_tekken(tmp_path) / "tekken.json"
    for change in ({"vocab": [{}]}, {"config": {}}, {"vocab": 3}, {"special_tokens": [{}]}):
        tekken.write_text(json.dumps(json.loads(tekken.read_text()) | change))
        with pytest.raises(ModelFileError, match=r"tekken\.json cannot be used"):
            Text.load(tmp_path)
        write_tekken(tmp_path)


def test_what_is_refused(tmp_path: Path) -> None:
    for trainer in (field(3, 3), field(3, 4), field(24, 1)):
        write_pieces(tmp_path, "pairs", trainer=trainer)
        with pytest.raises(UnsupportedModelError, match="of SentencePiece that is not read"):
            Text.load(tmp_path)
    write_ranks(tmp_path, "tiktoken.model", {"tokenizer_class": "New"})
    with pytest.raises(UnsupportedModelError, match="'New' .* known are TikTokenTokenizer, QWen"):
        Text.load(tmp_path)
    for wrong in ({"x": {}}, {"1": {}}, {"-1": {"content": "x"}}, {"99999999": {"content": "x"}}):
        write_ranks(tmp_path, "tiktoken.model", KIMI | {"added_tokens_decoder": wrong})
        with pytest.raises(ModelFileError, match="added tokens cannot be used"):
            Text.load(tmp_path)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x08", "ends within"),
        (b"\x0a\x02a", "ends within"),
        (b"\x15abc", "ends within"),
        (b"\x0b", "a field of kind 3"),
        (b"\x02\x00", "ends within"),
        (b"\x08" + b"\xff" * 11, "more than 64 bits"),
    ],
)
def test_messages_that_are_none(message: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        list(fields(message))


def test_fields_of_messages() -> None:
    message = field(1, 300) + field(200, b"x" * 200) + field(3, -1) + field(4, 0.5)
    eight = bytes([5 << 3 | 1, *range(8)])
    assert list(fields(message + eight)) == [
        (1, 300),
        (200, b"x" * 200),
        (3, (1 << 64) - 1),
        (4, struct.pack("<f", 0.5)),
        (5, bytes(range(8))),
    ]
