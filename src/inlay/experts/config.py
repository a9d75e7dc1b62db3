"""Settings of where a model's parts run, and of experts on the host and on devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Where the parts of a model go when the device is a GPU.

    Attributes:
        gpu_memory: most that weights, cache and activations take of each GPU, such as `20GiB`;
            None: nine tenths of what is free. What has no room is the host's.
        rules: a YAML file that says where, in place of that choice (`docs/guides/placement.md`).
    """

    gpu_memory: str | None = None
    rules: Path | None = None

    def __post_init__(self) -> None:
        if self.gpu_memory is not None:
            if self.rules is not None:
                raise ConfigError(
                    "placement.gpu_memory and placement.rules both say what goes to the GPU: "
                    "leave one out"
                )
            if parse_bytes(self.gpu_memory) < 1:
                raise ConfigError(f"placement.gpu_memory must be above 0, got {self.gpu_memory}")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Routed experts of the host, and those that a device keeps.

    Attributes:
        deferral: how many of a token's host experts may be added one layer later while it decodes,
            so that the processors work beside the device's attention (`docs/guides/placement.md`).
            0: none, which is exact. `auto`: the fewest that keep the processors busy, fewer where
            `max_divergence` asks for it.
        max_divergence: most that `auto` may change the next token's distribution: the mean KL
            divergence in nats, over sample prompts, from no deferral.
        moves: whether experts that are used often come to the device while others leave it.
        moved_share: most of the link between host and device that such moves take, 0 to 1.
    """

    deferral: Literal["auto"] | int = 0
    max_divergence: float = 0.02
    moves: bool = True
    moved_share: float = 0.1

    def __post_init__(self) -> None:
        if self.deferral != "auto" and not 0 <= self.deferral <= 64:
            raise ConfigError(f"experts.deferral must be auto or 0 to 64, got {self.deferral}")
        if self.max_divergence < 0:
            raise ConfigError(
                f"experts.max_divergence must be at least 0, got {self.max_divergence}"
            )
        if not 0 < self.moved_share <= 1:
            raise ConfigError(
                f"experts.moved_share must be above 0 and at most 1, got {self.moved_share}"
            )
