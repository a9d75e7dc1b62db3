"""What the tokens of a vocabulary are written as: all that turning ids into text needs.

tokenizer.json is read for it without its merges, which take most of the time and memory that the
`tokenizers` library needs (of Gemma 3 0.35 processor seconds and 12 MiB are left, of 1.9 and 98).
"""

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from inlay.core.errors import ModelFileError

# The largest id may be so many times the number of tokens, and so much more: the ids of a damaged
# file would fill the memory otherwise.
_IDS_PER_TOKEN, _MORE_IDS = 16, 1 << 16


class DecoderStep(msgspec.Struct):
    """One step of a decoder of tokenizer.json; what its type does not have keeps its default."""

    type: str = ""
    pattern: Mapping[str, Any] = {}
    content: str = ""
    start: int = 0
    stop: int = 0
    decoders: "tuple[DecoderStep, ...]" = ()


class TokenTable:
    """The texts of tokens by id, and how a decoder joins them.

    Attributes:
        size: the highest token id plus one.
        special_ids: ids of tokens that are left out of text unless asked for.
        decoder: the steps of the tokenizer's decoder.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        special_ids: Iterable[int] = (),
        decoder: DecoderStep | None = None,
    ) -> None:
        """Take over texts with their ids.

        Raises:
            ModelFileError: the ids are far apart, or negative.
        """
        lowest, highest = min(ids.values(), default=0), max(ids.values(), default=-1)
        if lowest < 0 or highest > _IDS_PER_TOKEN * len(ids) + _MORE_IDS:
            raise ModelFileError(
                f"its {len(ids)} tokens have ids from {lowest} to {highest}, and ids count from 0"
            )
        self.size = highest + 1
        texts = [b""] * self.size
        for text, number in ids.items():
            texts[number] = text.encode()
        self._text = b"".join(texts)
        self._begins = array("L", accumulate(map(len, texts), initial=0))
        self.special_ids = frozenset(special_ids)
        steps = DecoderStep() if decoder is None else decoder
        self.decoder = steps.decoders if steps.type == "Sequence" else (steps,)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> "TokenTable":
        """Make the table of a tokenizer. Raises as `TokenTable`.

        Cost: about a microsecond a token.
        """
        added = tokenizer.get_added_tokens_decoder()
        decoder = None
        if tokenizer.decoder is not None:
            decoder = msgspec.json.decode(tokenizer.decoder.__getstate__(), type=DecoderStep)
        return cls(
            tokenizer.get_vocab(with_added_tokens=True),
            (number for number, token in added.items() if token.special),
            decoder,
        )

    @classmethod
    def read(cls, file: Path) -> "TokenTable | None":
        """Read the table of a tokenizer.json; None where `tokenizers` has to say what it means.

        Raises:
            ModelFileError: as `TokenTable`.
            OSError: the file cannot be read.

        Cost: about 0.7 microseconds a token.
        """
        try:
            with (
                file.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                found = msgspec.json.decode(content, type=_File)
        except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: an empty file
            return None
        return _table(found)

    def text(self, token_id: int) -> str:
        """Return what a token is written as; an id that is no token's has an empty text."""
        if not 0 <= token_id < self.size:
            return ""
        return self._text[self._begins[token_id] : self._begins[token_id + 1]].decode()

    def find(self, text: str) -> int | None:
        """Find the id of the token that is written so; None: no token is."""
        wanted = text.encode()
        if not wanted:
            return None
        at = self._text.rfind(wanted)
        while at >= 0:
            number = bisect_right(self._begins, at) - 1
            begin, end = self._begins[number], self._begins[number + 1]
            if (begin, end) == (at, at + len(wanted)):
                return number
            at = self._text.rfind(wanted, 0, at + len(wanted) - 1)
        return None


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []
    decoder: DecoderStep | None = None


def _table(found: _File) -> TokenTable | None:
    """Make the table of a file, None where `tokenizers` gives added tokens other ids.

    It goes by the model's id of a token, else by how many tokens there are.
    """
    vocab = found.model.vocab
    if not isinstance(vocab, dict):
        vocab = {text: number for number, (text, _) in enumerate(vocab)}
        if len(vocab) < len(found.model.vocab):
            return None
    special_ids = []
    added: dict[str, int] = {}
    dense = max(vocab.values(), default=-1) < len(vocab)
    for token in found.added_tokens:
        expected = vocab.get(token.content, len(vocab) + len(added) if dense else -1)
        if token.id != expected or token.content in added or not token.content:
            return None
        if token.content not in vocab:
            added[token.content] = token.id
        if token.special:
            special_ids.append(token.id)
    return TokenTable(vocab | added, special_ids, found.decoder)
