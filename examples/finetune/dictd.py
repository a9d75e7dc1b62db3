"""Reads dictionaries of dictd, as Debian's `dict-*` packages hold them."""

from __future__ import annotations

import gzip
from pathlib import Path

# Digits of offsets and lengths in an index, 6 bits each, the highest first.
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}


def read_dictionary(name: str, directory: Path = Path("/usr/share/dictd")) -> dict[str, str]:
    """Entries of a dictionary by headword; the first where a word has several.

    Args:
        name: as in NAME.index and NAME.dict.dz, a gzip file.
        directory: where both are.
    """
    texts = gzip.decompress((directory / f"{name}.dict.dz").read_bytes())
    entries: dict[str, str] = {}
    for line in (directory / f"{name}.index").read_text("utf-8").splitlines():
        headword, offset, length = line.split("\t")[:3]
        begin = _number(offset)
        if not headword.startswith("00-database"):
            text = texts[begin : begin + _number(length)].decode("utf-8")
            entries.setdefault(headword, text)
    return entries


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 64 + _VALUES[digit]
    return value
