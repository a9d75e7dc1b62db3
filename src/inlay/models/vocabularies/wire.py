"""Messages of Protocol Buffers, read without their schema."""

from collections.abc import Iterator
from typing import Any

from inlay.core.errors import ModelFileError

_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in their order: number, and a number or the bytes that it holds.

    Numbers of fixed width come as their bytes; signs are not applied.

    Raises:
        ModelFileError: it is no message.

    Cost: about a microsecond a field.
    """
    at, end = 0, len(message)
    try:
        while at < end:
            tag = message[at]
            at += 1
            if tag > 0x7F:
                tag, at = _varint(message, at - 1)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, at = _varint(message, at)
                yield number, value
                continue
            if kind == _COUNTED:
                length = message[at]
                at += 1
                if length > 0x7F:
                    length, at = _varint(message, at - 1)
            elif kind == _FOUR_BYTES:
                length = 4
            elif kind == _EIGHT_BYTES:
                length = 8
            else:
                raise ModelFileError(f"has a field of kind {kind}")
            if at + length > end or not number:
                raise ModelFileError("ends within a field")
            yield number, message[at : at + length]
            at += length
    except IndexError:
        raise ModelFileError("ends within a field") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ModelFileError("has a number of more than 64 bits")
