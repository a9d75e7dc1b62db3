"""Turns token ids into text one at a time, so that the pieces join to the text of the whole.

Three kinds of tokenizer need three ways (`make_spelling` picks one from tokenizer.json):

- byte-level (Qwen, Llama 3, GPT): each token is bytes; an incremental UTF-8 decoder joins them.
- byte-fallback (Llama 2, Mistral, Gemma): tokens are text, `▁` is a space, `<0xE4>` one byte.
  The first space of a text is dropped where the tokenizer says so. Of a run of bytes that is
  not UTF-8 as a whole, `tokenizers` replaces every byte; here characters that are complete
  stay, because they may have been sent before the broken byte came.
- others: the last few tokens are decoded with and without the new one, and compared.

Cost: about a microsecond per token for the first two; nothing is decoded twice.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tokenizers

from inlay.models.vocabularies.byte_pairs import BYTE_OF_CHAR
from inlay.models.vocabularies.token_table import TokenTable

_REPLACEMENT = "\ufffd"
# A text is cut here even if it still ends in an incomplete character.
_MAX_PENDING = 8


class TextStream(Protocol):
    """One output's decoder."""

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is left at the end: replacement characters for incomplete bytes."""
        ...


class Spelling(Protocol):
    """How one tokenizer writes text; makes streams."""

    def stream(self, skip: frozenset[int], prompt_ids: Sequence[int]) -> TextStream:
        """A stream that leaves out the ids in `skip` and continues the text of a prompt."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        ...

    def decode(self, token_ids: Sequence[int], skip: frozenset[int]) -> str:
        """The whole text."""
        ...


def make_spelling(table: TokenTable, tokenizer: Callable[[], tokenizers.Tokenizer]) -> Spelling:
    """The way that fits a tokenizer's decoder.

    Args:
        table: texts of its tokens.
        tokenizer: gives the tokenizer; called only where the third way is taken, which needs it.
    """
    steps = table.decoder
    kinds = [step.type for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevel(table)
    if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        replace = [step for step in steps if step.type == "Replace"]
        strip = [step for step in steps if step.type == "Strip"]
        known = all("String" in step.pattern for step in replace)
        if known and all(step.stop == 0 and step.start <= 1 for step in strip):
            pairs = [(str(step.pattern["String"]), step.content) for step in replace]
            strips = [step.content for step in strip if step.start == 1]
            return _ByteFallback(table, pairs, strips[0] if strips else "")
    return _Windowed(table, tokenizer())


class _ByteLevel:
    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            text = self._table.text(token_id)
            try:
                known = bytes(BYTE_OF_CHAR[char] for char in text)
            except KeyError:  # an added token, written plainly
                known = text.encode()
            self._bytes[token_id] = known
        return known

    def decode(self, token_ids: Sequence[int], skip: frozenset[int]) -> str:
        spell = self.token_bytes
        return b"".join([spell(i) for i in token_ids if i not in skip]).decode("utf-8", "replace")

    def stream(self, skip: frozenset[int], prompt_ids: Sequence[int]) -> TextStream:
        stream = _ByteLevelStream(self, skip)
        for token_id in prompt_ids[-_MAX_PENDING:]:
            stream.push(token_id)
        return stream


class _ByteLevelStream:
    def __init__(self, spelling: _ByteLevel, skip: frozenset[int]) -> None:
        self._known = spelling._bytes
        self._spell = spelling.token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        known = self._known.get(token_id)
        return self._decoder.decode(self._spell(token_id) if known is None else known)

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class _ByteFallback:
    """Text of a token, or the one byte that it stands for."""

    def __init__(self, table: TokenTable, replace: list[tuple[str, str]], strip: str) -> None:
        self._table, self._replace = table, replace
        self.strip = strip
        self._pieces: dict[int, str | int] = {}

    def piece(self, token_id: int) -> str | int:
        known = self._pieces.get(token_id)
        if known is None:
            text = self._table.text(token_id)
            for old, new in self._replace:
                text = text.replace(old, new)
            known = text
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                try:
                    known = int(text[3:5], 16)
                except ValueError:
                    pass
            self._pieces[token_id] = known
        return known

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        return bytes([piece]) if isinstance(piece, int) else piece.encode()

    def decode(self, token_ids: Sequence[int], skip: frozenset[int]) -> str:
        stream = _ByteFallbackStream(self, skip)
        parts = [stream.push(token_id) for token_id in token_ids]
        return "".join(parts) + stream.flush()

    def stream(self, skip: frozenset[int], prompt_ids: Sequence[int]) -> TextStream:
        stream = _ByteFallbackStream(self, skip)
        for token_id in prompt_ids[-_MAX_PENDING:]:
            stream.push(token_id)
        return stream


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """As byte-fallback decoders do, one replacement character per broken byte."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _REPLACEMENT * (error.end - error.start), error.end


codecs.register_error("inlay.replace_each_byte", _replace_each_byte)


class _ByteFallbackStream:
    def __init__(self, spelling: _ByteFallback, skip: frozenset[int]) -> None:
        self._piece = spelling.piece
        self._strip = spelling.strip
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("inlay.replace_each_byte")
        self._in_bytes = False

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        piece = self._piece(token_id)
        if isinstance(piece, int):
            self._in_bytes = True
            piece = self._decoder.decode(bytes((piece,)))
        elif self._in_bytes:
            self._in_bytes = False
            piece = self._decoder.decode(b"", True) + piece
        return self._begin(piece) if self._strip else piece

    def flush(self) -> str:
        return self._begin(self._decoder.decode(b"", True))

    def _begin(self, text: str) -> str:
        """Drop the space before the first text."""
        if not self._strip or not text:
            return text
        strip, self._strip = self._strip, ""
        return text.removeprefix(strip)


class _Windowed:
    """For decoders whose text of a token depends on its neighbours in other ways."""

    def __init__(self, table: TokenTable, tokenizer: tokenizers.Tokenizer) -> None:
        self._table, self._tokenizer = table, tokenizer

    def token_bytes(self, token_id: int) -> bytes:
        return self._table.text(token_id).encode()

    def decode(self, token_ids: Sequence[int], skip: frozenset[int]) -> str:
        kept = [token_id for token_id in token_ids if token_id not in skip]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def stream(self, skip: frozenset[int], prompt_ids: Sequence[int]) -> TextStream:
        kept = [token_id for token_id in prompt_ids[-_MAX_PENDING:] if token_id not in skip]
        return _WindowedStream(self, skip, kept)


class _WindowedStream:
    def __init__(self, spelling: _Windowed, skip: frozenset[int], context: list[int]) -> None:
        self._decode: Any = spelling.decode
        self._skip = skip
        self._context = context  # tokens already emitted, kept for what follows them
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._pending.append(token_id)
        text = self._text()
        if not text or (text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING):
            return ""
        self._context = (self._context + self._pending)[-_MAX_PENDING:]
        self._pending = []
        return text

    def flush(self) -> str:
        text = self._text()
        self._pending = []
        return text

    def _text(self) -> str:
        before: str = self._decode(self._context, frozenset())
        whole: str = self._decode(self._context + self._pending, frozenset())
        return whole[len(before) :]
