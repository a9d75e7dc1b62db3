"""Sizes in bytes and times in seconds, as people write them."""

import math
import re

from inlay.core.errors import ConfigError

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_bytes(text: str | int) -> int:
    """Turn `"512MiB"`, `"1.5 GB"` or a plain number into bytes.

    Raises:
        ConfigError: not a number with one of the units B, KB..TB (10^3) or KiB..TiB (2^10).
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _FACTORS:
        raise ConfigError(f"{text!r} is not a size: write for example 512MiB, 20GiB or 1.5GB")
    return int(float(match[1]) * _FACTORS[match[2].upper()])


def parse_seconds(text: str | float) -> float:
    """Turn `"500ms"`, `"1.5 s"`, `"2min"` or a plain number, of seconds, into seconds.

    Raises:
        ConfigError: not a number with one of the units us, ms, s, min or h.
    """
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _SECONDS:
        raise ConfigError(f"{text!r} is not a time: write for example 500ms, 1.5s or 2min")
    return float(match[1]) * _SECONDS[match[2]]


def format_bytes(size_bytes: float) -> str:
    """Write bytes with the largest binary unit that leaves a number of at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def size_to_set(size_bytes: float, *, up: bool) -> str:
    """Write bytes as `parse_bytes` reads them: a whole number, at most 2 % up or down."""
    unit, factor = "", 1
    for name in ("KiB", "MiB", "GiB", "TiB"):
        if size_bytes / _FACTORS[name.upper()] < 64:
            break
        unit, factor = name, _FACTORS[name.upper()]
    return f"{math.ceil(size_bytes / factor) if up else math.floor(size_bytes / factor)}{unit}"
