"""What is bought for keys and values alone: disks, and hosts with nothing but memory.

Knows rates, sizes and prices of the catalogue (`hardware.toml`), no model and no cache.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class CachePart:
    """A disk of a host, or a host of its own.

    Attributes:
        title: for people.
        size_gb: 10^9 bytes that it has for blocks.
        read_gbs, write_gbs: 10^9 bytes per second.
        price_usd: with all that it needs.
        sources: where each figure comes from.
    """

    title: str
    size_gb: float
    read_gbs: float
    write_gbs: float
    price_usd: float
    sources: Mapping[str, str]


@functools.cache
def cache_parts() -> dict[str, CachePart]:
    """`disk` and `node` of the catalogue."""
    text = files("inlay.core").joinpath("hardware.toml").read_text("utf-8")
    return {name: CachePart(**entry) for name, entry in tomllib.loads(text)["cache"].items()}
