"""The tokenizer of a GGUF file as tokenizer.json and its companions."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.gguf.ends import end_ids
from inlay.models.vocabularies.added import find_first, surround
from inlay.models.vocabularies.byte_pairs import byte_pairs, numbered
from inlay.models.vocabularies.cuts import CUTS, Cut
from inlay.models.vocabularies.merges import merges_of
from inlay.models.vocabularies.pieces import Pieces, pieces_tokenizer, spaced_pairs

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_COMPANIONS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
# Ids of kinds whose files may leave them out.
_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
_REFUSED = {
    "bert": "embed texts",
    "hybriddna": "read DNA",
    "plamo2": "are PLaMo's",
    "rwkv": "are RWKV's",
    "whitespace": "embed texts",
}
# What only tokenizers of models that embed texts have.
_REFUSED_FLAGS = ("add_sep_token", "normalizer.lowercase", "normalizer.strip_accents")

# Special tokens of Phi-3 after which white space counts.
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


def write_tokenizer(metadata: Mapping[str, Any], directory: Path) -> None:
    """Write tokenizer.json with its config, generation_config.json and the chat template.

    Raises:
        ModelFileError: the file has no tokenizer, or contradicts itself.
        UnsupportedModelError: a kind of tokenizer that is not read.

    Cost: about 10 microseconds a token.
    """
    kind = metadata.get("tokenizer.ggml.model", "")
    if kind in _REFUSED:
        raise UnsupportedModelError(
            f"tokenizer {kind!r} is not read, and models that {_REFUSED[kind]} are not served in "
            "any form"
        )
    if not metadata.get("tokenizer.ggml.tokens"):
        raise ModelFileError("the GGUF file has no tokenizer (tokenizer.ggml.tokens): take another")
    if kind not in _MAKERS:
        raise UnsupportedModelError(
            f"tokenizer {kind!r} is not read from GGUF; read are {', '.join(_MAKERS)}: take the "
            "model's *.safetensors and tokenizer.json"
        )
    for flag in _REFUSED_FLAGS:
        if metadata.get(f"tokenizer.ggml.{flag}"):
            raise UnsupportedModelError(
                f"tokenizer.ggml.{flag} is set, as of models that embed texts, which are not "
                "served in any form"
            )
    parts = _Parts(kind, metadata)
    tokenizer = _MAKERS[kind](parts)
    find_first(tokenizer, _found_first(parts))
    surround(tokenizer, *_around(parts))
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    config |= {ours: parts.named(theirs) for theirs, ours in _COMPANIONS.items()}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2), "utf-8")
    generation = {"eos_token_id": parts.ends}
    (directory / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    if template := metadata.get("tokenizer.chat_template"):
        (directory / "chat_template.jinja").write_text(template, "utf-8")


class _Parts:
    """What metadata say of a tokenizer.

    Attributes:
        kind: of tokenizer.
        name: of the model.
        tokens, types: by id.
        ends: ids of those that end the model's turn.
    """

    def __init__(self, kind: str, metadata: Mapping[str, Any]) -> None:
        self._metadata, self._ids = metadata, _IDS.get(kind, {})
        self.kind = kind
        self.name = str(metadata.get("general.name", ""))
        self.tokens = [
            token or f"[EMPTY_{number}]"
            for number, token in enumerate(metadata["tokenizer.ggml.tokens"])
        ]
        types = list(self.get("token_type", ()))
        self.types = types + [_NORMAL] * (len(self.tokens) - len(types))
        self.ends = end_ids(self.tokens, self.types, self.number)

    @property
    def cut(self) -> Cut:
        """How texts are cut."""
        pre = "gemma4" if self.kind == "gemma4" else self.get("pre", "default")
        if pre not in CUTS:
            raise UnsupportedModelError(
                f"tokenizer.ggml.pre {pre!r} is not known; known are {', '.join(CUTS)}: take the "
                "model's *.safetensors and tokenizer.json, or add it to "
                "inlay/models/vocabularies/cuts.py"
            )
        return CUTS[pre]

    def get(self, name: str, default: Any = None) -> Any:
        """A value, by its key after `tokenizer.ggml`."""
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def number(self, name: str) -> int | None:
        """The id of a token that has a name, None where there is none."""
        number: int | None = self.get(f"{name}_token_id")
        if number is None:
            number = self._ids.get(name, len(self.tokens))
            return number if number < len(self.tokens) else None
        if not 0 <= number < len(self.tokens):
            raise ModelFileError(
                f"tokenizer.ggml.{name}_token_id is {number}, and there are {len(self.tokens)} "
                "tokens: the GGUF file is damaged"
            )
        return number

    def named(self, name: str) -> str | None:
        """The token that has a name."""
        number = self.number(name)
        return None if number is None else self.tokens[number]


def _pairs(parts: _Parts) -> tokenizers.Tokenizer:
    """Pairs of bytes as in GPT-2, or of characters as in Gemma 4."""
    cut, merges = parts.cut, parts.get("merges")
    try:
        vocabulary = numbered(parts.tokens)
        if merges is not None:
            pairs = [_halves(pair) for pair in merges]
        elif parts.get("pre") == "kimi-k2":  # a token's id is its rank
            pairs = merges_of(parts.tokens)
        else:
            raise ModelFileError("there are none")
        if cut.spaced:
            return spaced_pairs(vocabulary, pairs, parts.named("unknown"))
        return byte_pairs(cut, vocabulary, pairs)
    except ModelFileError as error:
        raise ModelFileError(
            f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens ({error}): the GGUF file is "
            "damaged; download it again"
        ) from error


def _halves(pair: str) -> tuple[str, str]:
    """The two tokens of a merge, of which the first may begin with a space."""
    at = pair.find(" ", 1)
    return pair[:at], pair[at + 1 :]


def _pieces(parts: _Parts) -> tokenizers.Tokenizer:
    """Pieces with scores, as in SentencePiece."""
    scores = parts.get("scores", ())
    if len(scores) != len(parts.tokens):
        raise ModelFileError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(parts.tokens)} tokens: the "
            "GGUF file is damaged"
        )
    pieces = Pieces(
        texts=parts.tokens,
        scores=scores,
        kind="unigram" if parts.kind == "t5" or _likelihoods(parts, scores) else "pairs",
        unknown=parts.number("unknown"),
        prefix="each" if parts.get("add_space_prefix", True) else "",
        squeeze=bool(parts.get("remove_extra_whitespaces")),
        charsmap=bytes(byte & 0xFF for byte in parts.get("precompiled_charsmap", ())),
    )
    try:
        return pieces_tokenizer(pieces)
    except ModelFileError as error:
        raise ModelFileError(
            f"the tokenizer cannot be used ({error}): the GGUF file is damaged; download it again"
        ) from error


def _likelihoods(parts: _Parts, scores: Any) -> bool:
    """Whether scores are a unigram model's logarithms; those of pairs are their ranks."""
    return any(
        score % 1 for score, kind in zip(scores, parts.types, strict=True) if kind == _NORMAL
    )


_MAKERS: dict[Any, Callable[[_Parts], tokenizers.Tokenizer]] = {
    "gpt2": _pairs,
    "gemma4": _pairs,
    "llama": _pieces,
    "t5": _pieces,
}


def _found_first(parts: _Parts) -> list[AddedToken]:
    """Tokens that no text is cut across."""
    name = re.sub(r"[\W_]", "", parts.name.lower())
    strips = parts.kind == "llama" and "phi3" in name
    return [
        AddedToken(
            token,
            normalized=False,
            special=kind != _USER_DEFINED,
            rstrip=strips and token not in _NOT_STRIPPING,
        )
        for number, (token, kind) in enumerate(zip(parts.tokens, parts.types, strict=True))
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
        or (number in parts.ends and token.startswith("<|"))
    ]


def _around(parts: _Parts) -> tuple[str | None, str | None]:
    """What texts begin and end with."""
    if _MAKERS[parts.kind] is _pairs:
        begins = parts.cut.begins
    else:
        begins = "by default" if parts.kind == "llama" else ""
    begun = begins == "always" or parts.get("add_bos_token", bool(begins))
    ended = parts.get("add_eos_token", parts.kind == "t5")
    return parts.named("bos") if begun else None, parts.named("eos") if ended else None
