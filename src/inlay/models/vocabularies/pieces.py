"""Tokenizers of SentencePiece's kind: pieces of text with scores, the rest as bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from inlay.core.errors import ModelFileError
from inlay.models.vocabularies.merges import merges_of

SPACE = "\u2581"  # what stands for a space


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A vocabulary, and what is done to a text first.

    Attributes:
        texts: by id.
        scores: by id; the pair with the highest is merged first, or the pieces whose sum is
            highest are taken.
        kind: pairs are merged, or pieces chosen as a unigram model does.
        unknown: id of the piece for what has none, not even as bytes.
        byte_fallback: what has no piece is written as bytes, `<0x00>` to `<0xFF>`.
        prefix: a space comes before the text after each special token as well as at the
            beginning, or before a text that begins with neither a space nor a special token.
        squeeze: spaces at both ends go, runs of them become one.
        charsmap: replacements, as SentencePiece compiles them; made one character (with its
            marks) at a time.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    kind: Literal["pairs", "unigram"]
    unknown: int | None
    byte_fallback: bool = True
    prefix: Literal["", "each", "first"] = "each"
    squeeze: bool = False
    charsmap: bytes = b""


def pieces_tokenizer(pieces: Pieces) -> tokenizers.Tokenizer:
    """A tokenizer of a vocabulary.

    Raises:
        ModelFileError: `unknown` is no id, or `charsmap` no map.

    Cost: about 4 microseconds a piece.
    """
    try:
        tokenizer = tokenizers.Tokenizer(_MODELS[pieces.kind](pieces))
        _use_spaces(tokenizer, pieces.prefix, _replacements(pieces))
    except Exception as error:  # the library has no class of its own for them
        raise ModelFileError(str(error).partition("\n")[0]) from error
    return tokenizer


def spaced_pairs(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown: str | None
) -> tokenizers.Tokenizer:
    """A tokenizer that merges pairs as they are given, not by scores; the rest is as above.

    Raises:
        ModelFileError: merges name what is no token.
    """
    try:
        pairs = models.BPE(
            dict(vocabulary), list(merges), unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    except Exception as error:  # the library has no class of its own for them
        raise ModelFileError(str(error).partition("\n")[0]) from error
    tokenizer = tokenizers.Tokenizer(pairs)
    _use_spaces(tokenizer, "", [])
    return tokenizer


def _use_spaces(
    tokenizer: tokenizers.Tokenizer,
    prefix: Literal["", "each", "first"],
    steps: list[normalizers.Normalizer],
) -> None:
    """Have a tokenizer write spaces as `SPACE` after other steps, and read them and bytes back."""
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            SPACE, prepend_scheme="first", split=False
        )
    else:
        steps += [normalizers.Prepend(SPACE)] if prefix else []
        steps += [normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _replacements(pieces: Pieces) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        steps += [normalizers.Precompiled(pieces.charsmap)]
    if pieces.squeeze:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _pairs(pieces: Pieces) -> models.Model:
    vocabulary = {text: number for number, text in enumerate(pieces.texts)}
    best_first = sorted(vocabulary, key=lambda text: -pieces.scores[vocabulary[text]])
    return models.BPE(
        vocabulary,
        merges_of(best_first),
        unk_token=None if pieces.unknown is None else pieces.texts[pieces.unknown],
        fuse_unk=True,
        byte_fallback=pieces.byte_fallback,
    )


def _unigram(pieces: Pieces) -> models.Model:
    return models.Unigram(
        list(zip(pieces.texts, pieces.scores, strict=True)), pieces.unknown, pieces.byte_fallback
    )


_MODELS = {"pairs": _pairs, "unigram": _unigram}
