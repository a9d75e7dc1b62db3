"""The tokenizer of a GGUF file as tokenizer.json and its companions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.gguf.cuts import CUTS

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2
# Tokens that end the model's turn, whatever else metadata name for that.
_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|observation|>",
)
_SPACE = "\u2581"  # what stands for a space in SentencePiece's vocabularies


def write_tokenizer(metadata: Mapping[str, Any], directory: Path) -> None:
    """Write tokenizer.json with its config, generation_config.json and the chat template.

    Raises:
        ModelFileError: the file has no tokenizer, or contradicts itself.
        UnsupportedModelError: a kind of tokenizer that is not read.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFileError("the GGUF file has no tokenizer (tokenizer.ggml.tokens): take another")
    if kind not in _MAKERS:
        raise UnsupportedModelError(
            f"tokenizer {kind!r} is not read from GGUF; read are {', '.join(_MAKERS)}: take the "
            "model's *.safetensors and tokenizer.json"
        )
    tokenizer = _MAKERS[kind](metadata, tokens)
    _add_special_tokens(tokenizer, metadata, tokens)
    bos = _named(metadata, tokens, "bos")
    default = kind == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    if bos and metadata.get("tokenizer.ggml.add_bos_token", default):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    config |= {ours: _named(metadata, tokens, theirs) for theirs, ours in names.items()}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2), "utf-8")
    ends = _end_ids(metadata, tokens)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), "utf-8")
    if template := metadata.get("tokenizer.chat_template"):
        (directory / "chat_template.jinja").write_text(template, "utf-8")


def _end_ids(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    ends = {_named(metadata, tokens, name) for name in ("eos", "eot", "eom")}
    return [
        number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token in ends or (token in _ENDS and kind == _CONTROL)
    ]


def _named(metadata: Mapping[str, Any], tokens: list[str], name: str) -> str | None:
    number = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if number is None:
        return None
    if not 0 <= number < len(tokens):
        raise ModelFileError(
            f"tokenizer.ggml.{name}_token_id is {number}, and there are {len(tokens)} tokens: the "
            "GGUF file is damaged"
        )
    return str(tokens[number])


def _byte_pairs(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """GPT-2's kind: pairs of bytes, which are written as printable characters."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    cut = CUTS.get(pre)
    if cut is None:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre {pre!r} is not known; known are {', '.join(CUTS)}: take the "
            "model's *.safetensors and tokenizer.json, or add it to inlay/models/gguf/cuts.py"
        )
    merges = [tuple(pair.split(" ", 1)) for pair in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        pairs = models.BPE(vocabulary, merges, ignore_merges=cut.whole_words)
    except Exception as error:  # the library has no class of its own for them
        reason = str(error).partition("\n")[0]
        raise ModelFileError(
            f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens ({reason}): the GGUF file is "
            "damaged; download it again"
        ) from error
    tokenizer = tokenizers.Tokenizer(pairs)
    words = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in cut.regexes]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.regexes)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, level])
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _sentence_pieces(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """SentencePiece's kind: pieces with scores, the rest as bytes."""
    scores = metadata.get("tokenizer.ggml.scores", ())
    if len(scores) != len(tokens):
        raise ModelFileError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens: the GGUF "
            "file is damaged"
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [
        (scores[number], (token[:cut], token[cut:]))
        for token, number in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    merges.sort(key=lambda merge: -merge[0])
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            [pair for _, pair in merges],
            unk_token=_named(metadata, tokens, "unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


_MAKERS = {"gpt2": _byte_pairs, "llama": _sentence_pieces}


def _add_special_tokens(
    tokenizer: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str]
) -> None:
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens(
                [tokenizers.AddedToken(token, special=True, normalized=False)]
            )
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False)])
