"""Settings of where a model's parts run, and of experts on the host and on devices."""

from dataclasses import dataclass
from typing import Literal

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Where the parts of a model go when the device is a GPU.

    Attributes:
        gpu_memory: most that weights, cache and activations take of each GPU, such as `20GiB`;
            None: nine tenths of what is free. What has no room is the host's.
        gpu_experts: routed experts of each layer that GPUs keep; None: as many as have room beside
            everything else.
        rules: a YAML file that says where, in place of that choice (`docs/guides/placement.md`).
        tensor_parallel: how many processes share each layer, each with a GPU, from `cuda:0` on.
    """

    gpu_memory: str | None = None
    gpu_experts: int | None = None
    rules: str | None = None
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("gpu_memory", "gpu_experts"):
            if self.rules is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"placement.{name} and placement.rules both say what goes to the GPU: "
                    "leave one out"
                )
        if self.gpu_memory is not None and parse_bytes(self.gpu_memory) < 1:
            raise ConfigError(f"placement.gpu_memory must be above 0, got {self.gpu_memory}")
        if self.tensor_parallel < 1:
            raise ConfigError(
                f"placement.tensor_parallel must be at least 1, got {self.tensor_parallel}"
            )
        if self.tensor_parallel > 1 and self.rules is not None:
            raise ConfigError(
                f"placement.tensor_parallel={self.tensor_parallel} has each layer on all GPUs, "
                "and placement.rules place layers on one each: leave one out"
            )
        if self.gpu_experts is not None and self.gpu_experts < 0:
            raise ConfigError(f"placement.gpu_experts must be at least 0, got {self.gpu_experts}")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Routed experts of the host, and those that a device keeps.

    Attributes:
        deferral: how many of a token's host experts may be added one layer later while it decodes,
            so that the processors work beside the device's attention (`docs/guides/placement.md`).
            0: none, which is exact. `auto`: the fewest that keep the processors busy, fewer where
            `max_divergence` asks for it.
        max_divergence: most that `auto` may change the next token's distribution: the mean KL
            divergence in nats from no deferral, over answers of the model to sample questions. Of
            the demo model's answers as many were right at 0.002, and one in 75 fewer at 0.006.
        moves: most bytes of experts that come to the device in a second, because they are used
            often, while others leave it; 0: all stay where they were put.
        stream: prompt tokens of a step from which the device gets the host's experts for it,
            instead of the host computing them. `auto`: as soon as that is quicker, by the times of
            steps of about as many tokens; 0: never.
    """

    deferral: Literal["auto"] | int = 0
    max_divergence: float = 0.003
    moves: str = "1GiB"
    stream: Literal["auto"] | int = "auto"

    def __post_init__(self) -> None:
        if self.deferral != "auto" and not 0 <= self.deferral <= 64:
            raise ConfigError(f"experts.deferral must be auto or 0 to 64, got {self.deferral}")
        if self.max_divergence < 0:
            raise ConfigError(
                f"experts.max_divergence must be at least 0, got {self.max_divergence}"
            )
        parse_bytes(self.moves)
        if self.stream != "auto" and self.stream < 0:
            raise ConfigError(f"experts.stream must be auto or at least 0, got {self.stream}")

    @property
    def moves_per_s(self) -> int:
        """`moves` in bytes."""
        return parse_bytes(self.moves)
