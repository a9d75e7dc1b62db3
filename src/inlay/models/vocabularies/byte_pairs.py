"""Tokenizers of GPT-2's kind: pairs of bytes, which vocabularies write as printable characters."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from inlay.core.errors import ModelFileError
from inlay.models.vocabularies.cuts import Cut


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
_CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def printable(tokens: Sequence[bytes]) -> list[str]:
    """Tokens of bytes as vocabularies of this kind write them."""
    text = b"".join(tokens).decode("latin-1").translate(_CHAR_OF_BYTE)
    ends = accumulate(map(len, tokens), initial=0)
    return [text[begin:end] for begin, end in pairwise(ends)]


def numbered(tokens: Sequence[str]) -> dict[str, int]:
    """Ids of tokens by their order.

    Raises:
        ModelFileError: two are written alike.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelFileError("two tokens are written alike")
    return vocabulary


def byte_pairs(
    cut: Cut, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """A tokenizer of a vocabulary and its merges, the first of which goes first.

    Raises:
        ModelFileError: merges name what is no token.
    """
    try:
        pairs = models.BPE(dict(vocabulary), list(merges), ignore_merges=cut.whole_words)
    except Exception as error:  # the library has no class of its own for them
        raise ModelFileError(str(error).partition("\n")[0]) from error
    tokenizer = tokenizers.Tokenizer(pairs)
    words = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in cut.regexes]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.regexes)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, level])
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
