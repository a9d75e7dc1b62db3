"""`tokenizer.model`: a vocabulary as SentencePiece writes it.

Source: sentencepiece_model.proto of SentencePiece, for numbers of fields and what they default to.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.vocabularies.added import added_tokens, find_first, surround
from inlay.models.vocabularies.pieces import SPACE, Pieces, pieces_tokenizer
from inlay.models.vocabularies.vocabulary import Vocabulary
from inlay.models.vocabularies.wire import fields

# Fields of ModelProto, of a piece, of TrainerSpec and of NormalizerSpec.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_KIND, _SUFFIX, _BYTES = 3, 24, 35
_SPECIAL = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
_CHARSMAP, _PREFIX, _SQUEEZE, _ESCAPE = 2, 3, 4, 5

_KINDS: dict[Any, Literal["unigram", "pairs"]] = {1: "unigram", 2: "pairs"}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_FLOAT = struct.Struct("<f")


@dataclass
class _Model:
    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    trainer: dict[int, Any] = field(default_factory=dict)
    normalizer: dict[int, Any] = field(default_factory=dict)


def read_sentencepiece(file: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read one.

    Args:
        file: of the model's directory, which may have added_tokens.json.
        config: tokenizer_config.json, whose added tokens, `add_bos_token`, `add_eos_token` and
            `legacy` count.

    Raises:
        ModelFileError: it is damaged.
        UnsupportedModelError: it cuts texts in a way that is not read.

    Cost: about 10 microseconds a piece.
    """
    try:
        model = _read(file.read_bytes())
    except (ModelFileError, UnicodeDecodeError, TypeError, AttributeError, struct.error) as error:
        raise ModelFileError(
            f"{file} is no vocabulary of SentencePiece, or damaged ({error}): download it again; "
            "tiktoken's are read as tiktoken.model"
        ) from error
    trainer, normalizer = model.trainer, model.normalizer
    kind = _KINDS.get(trainer.get(_KIND, 1))
    spaces_kept = not normalizer.get(_ESCAPE, 1)
    if kind is None or trainer.get(_SUFFIX) or spaces_kept or _UNUSED in model.types:
        raise UnsupportedModelError(
            f"{file} is of a kind of SentencePiece that is not read (words or characters, spaces "
            "as they are or as suffixes, pieces that are not used): take another model"
        )
    added = _found_first(model) | added_tokens(file.parent, config)
    _make_room(model, added)
    ids = {
        name: _signed(trainer.get(number, by_default))
        for name, (number, by_default) in _SPECIAL.items()
    }
    special = {
        name: model.texts[number] for name, number in ids.items() if 0 <= number < len(model.texts)
    }
    prefix: Literal["each", "first"] = "each" if config.get("legacy", True) else "first"
    pieces = Pieces(
        texts=model.texts,
        scores=model.scores,
        kind=kind,
        unknown=None if ids["unk_token"] < 0 else ids["unk_token"],
        byte_fallback=bool(trainer.get(_BYTES)),
        prefix=prefix if normalizer.get(_PREFIX, 1) else "",
        squeeze=bool(normalizer.get(_SQUEEZE, 1)),
        charsmap=normalizer.get(_CHARSMAP, b""),
    )
    try:
        tokenizer = pieces_tokenizer(pieces)
    except ModelFileError as error:
        raise ModelFileError(f"{file} is damaged ({error}): download it again") from error
    find_first(tokenizer, added.values())
    begin, end = config.get("add_bos_token", True), config.get("add_eos_token", False)
    surround(
        tokenizer,
        special.get("bos_token") if begin else None,
        special.get("eos_token") if end else None,
    )
    return Vocabulary.of(tokenizer, special)


def _read(message: bytes) -> _Model:
    model = _Model()
    for number, value in fields(message):
        if number == _PIECE:
            piece = dict(fields(value))
            model.texts.append(piece.get(_TEXT, b"").decode("utf-8"))
            model.scores.append(_FLOAT.unpack(piece[_SCORE])[0] if _SCORE in piece else 0.0)
            model.types.append(piece.get(_TYPE, _NORMAL))
        elif number == _TRAINER:
            model.trainer = dict(fields(value))
        elif number == _NORMALIZER:
            model.normalizer = dict(fields(value))
    if not model.texts:
        raise ModelFileError("has no pieces")
    return model


def _signed(number: int) -> int:
    """A 32-bit number, which is written with the bits of a 64-bit one."""
    return number - (1 << 64) if number >> 63 else number


def _found_first(model: _Model) -> dict[int, AddedToken]:
    """Pieces that no text is cut across; those of users are found before spaces are written."""
    found: dict[int, AddedToken] = {}
    for number, kind in enumerate(model.types):
        if kind == _USER_DEFINED:
            model.texts[number] = model.texts[number].replace(SPACE, " ")
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            special = kind != _USER_DEFINED
            found[number] = AddedToken(model.texts[number], normalized=False, special=special)
    return found


def _make_room(model: _Model, added: Mapping[int, AddedToken]) -> None:
    """Give added tokens their ids."""
    lowest = min(model.scores)
    for number in range(len(model.texts), max(added, default=-1) + 1):
        model.texts.append(f"<unused {number}>")
        model.scores.append(lowest)
    for number, token in added.items():
        model.texts[number] = token.content
