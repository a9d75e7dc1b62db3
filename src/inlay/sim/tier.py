"""Room for keys and values behind the memory of GPUs."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from inlay.core.errors import ConfigError
from inlay.store.policy import POLICIES

TierName = Literal["host", "disk", "store"]
TIERS: tuple[TierName, ...] = get_args(TierName)
"""The nearest first."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """What a tier holds, and how fast it is.

    Attributes:
        name: `host` or `disk` of an instance, or the `store` that all of them share.
        tokens: whose keys and values it has room for.
        read_bytes_per_s, write_bytes_per_s: of a host or a disk: to and from all GPUs of the
            instance; of the store: of all its nodes together, infinite where the links of instances
            are what limits it.
        latency_s: of each call.
        eviction: one of `inlay.store.POLICIES`. A disk is a log, as the store's: what was written
            first goes first.
    """

    name: TierName
    tokens: int
    read_bytes_per_s: float = math.inf
    write_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    eviction: str = POLICIES[0]

    def __post_init__(self) -> None:
        if self.name not in TIERS:
            raise ConfigError(f"tier {self.name!r} is not one of {', '.join(TIERS)}")
        if self.tokens < 1:
            raise ConfigError(f"{self.name}: it needs room for tokens, got {self.tokens}")
        if not (self.read_bytes_per_s > 0 and self.write_bytes_per_s > 0):
            raise ConfigError(
                f"{self.name}: rates must be above 0, got {self.read_bytes_per_s} and "
                f"{self.write_bytes_per_s} bytes per second"
            )
        if not 0 <= self.latency_s < math.inf:
            raise ConfigError(f"{self.name}: latency must be at least 0, got {self.latency_s}")
        if self.eviction not in POLICIES:
            raise ConfigError(
                f"{self.name}: eviction {self.eviction!r} is not one of {', '.join(POLICIES)}"
            )
