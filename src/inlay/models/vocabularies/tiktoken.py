"""Vocabularies as tiktoken writes them: a line for each token, base64 and its rank.

Such a file says nothing of how texts are cut and of special tokens: code of its makers does, so
each is a row here.
"""

from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.text_files import refuse_lfs_pointer
from inlay.models.vocabularies.added import added_tokens, find_first
from inlay.models.vocabularies.byte_pairs import byte_pairs, numbered, printable
from inlay.models.vocabularies.cuts import CUTS
from inlay.models.vocabularies.merges import merges_of
from inlay.models.vocabularies.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """A maker's vocabulary.

    Attributes:
        cut: of `CUTS`.
        reserved: special tokens that follow the others, where files name none for their ids.
        pattern: the name of a reserved one, by its id and by its number among them.
        names: of the first reserved ones.
        special_tokens: `bos_token` and the like, where files name none.
    """

    cut: str
    reserved: int
    pattern: str
    names: tuple[str, ...] = ()
    special_tokens: Mapping[str, str]


# By `tokenizer_class` of tokenizer_config.json.
RANKS = {
    "TikTokenTokenizer": Ranks(
        cut="kimi-k2",
        reserved=256,
        pattern="<|reserved_token_{id}|>",
        special_tokens={"bos_token": "[BOS]", "eos_token": "[EOS]"},
    ),
    "QWenTokenizer": Ranks(
        cut="qwen2",
        reserved=208,
        pattern="<|extra_{extra}|>",
        names=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        special_tokens={"eos_token": "<|endoftext|>"},
    ),
}


def read_tiktoken(file: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read one. Nothing is put around texts.

    Args:
        file: of the model's directory.
        config: tokenizer_config.json, whose `tokenizer_class` and added tokens count.

    Raises:
        ModelFileError: it is damaged.
        UnsupportedModelError: a `tokenizer_class` that is not in `RANKS`.

    Cost: about 7 microseconds a token.
    """
    maker = RANKS.get(config.get("tokenizer_class", ""))
    if maker is None:
        raise UnsupportedModelError(
            f"{file.name} does not say how texts are cut, and tokenizer_class "
            f"{config.get('tokenizer_class')!r} of tokenizer_config.json is not known; known are "
            f"{', '.join(RANKS)}: take a copy of the model that has tokenizer.json, or add it to "
            "inlay/models/vocabularies/tiktoken.py"
        )
    refuse_lfs_pointer(file)
    named = added_tokens(file.parent, config)
    try:
        parts = file.read_bytes().split()
        words = printable([a2b_base64(token) for token in parts[::2]])
        if [int(rank) for rank in parts[1::2]] != list(range(len(words))):
            raise ModelFileError("its ranks are not 0, 1, 2 and so on")
        reserved = {
            number: AddedToken(_name(maker, number, extra), normalized=False, special=True)
            for extra, number in enumerate(range(len(words), len(words) + maker.reserved))
        }
        added = reserved | named
        vocabulary = numbered(words) | {token.content: number for number, token in added.items()}
        if len(vocabulary) != len(words) + len(added):
            raise ModelFileError("two tokens are written alike")
        cut = CUTS[maker.cut]
        tokenizer = byte_pairs(cut, vocabulary, merges_of(words))
    except (ModelFileError, ValueError) as error:
        raise ModelFileError(
            f"{file} cannot be used ({error}): it is damaged; download it again"
        ) from error
    find_first(tokenizer, added.values())
    return Vocabulary.of(tokenizer, maker.special_tokens)


def _name(maker: Ranks, number: int, extra: int) -> str:
    if extra < len(maker.names):
        return maker.names[extra]
    return maker.pattern.format(id=number, extra=extra - len(maker.names))
