"""Where the parts of a model run: each layer on a device, and each layer's routed experts.

A layer's attention, cache, norms, router, dense MLP and shared experts are on one device. Of its
routed experts some are *resident*, in that device's memory; the others are *host experts*, which
the CPU's kernels compute. On `cpu` all are the host's, and the layer's too.

Knows no model and no budget: `inlay.core.offload` chooses by cost, `inlay.experts.rules` reads what
a user wrote, `inlay.models` carries it out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from inlay.core.errors import ConfigError

CPU = "cpu"

PrefillAt = Literal["auto", "host", "device"]
"""Where host experts compute the tokens of prompts: `device` brings their weights there for each
step, `auto` does where that ends sooner."""

_DEVICE = re.compile(r"cpu|[a-z]+:\d+")


@dataclass(frozen=True, kw_only=True)
class LayerPlacement:
    """One layer.

    Attributes:
        device: `cpu`, or a kind and a number, such as `cuda:0`.
        resident: routed experts in the device's memory; 0 on the CPU and of dense layers.
        prefill: of the host experts.
    """

    device: str = CPU
    resident: int = 0
    prefill: PrefillAt = "auto"

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"device {self.device!r} is not cpu, nor a kind and number as cuda:0")
        if self.resident < 0:
            raise ConfigError(f"resident must be at least 0, got {self.resident}")
        if self.device == CPU and (self.resident or self.prefill == "device"):
            raise ConfigError("a layer on the CPU has no device to keep experts on")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Neighbouring layers on one device: from `first` up to `end`."""

    device: str
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A whole model. The embedding is looked up on the host, the output matrix is with the last
    layer.
    """

    layers: tuple[LayerPlacement, ...]

    @classmethod
    def on(cls, device: str, layers: int, *, resident: int = 0) -> "Placement":
        """All layers alike."""
        return cls(layers=(LayerPlacement(device=device, resident=resident),) * layers)

    def moved(self, device: str) -> "Placement":
        """All layers on another device."""
        return Placement(layers=tuple(replace(layer, device=device) for layer in self.layers))

    @property
    def devices(self) -> tuple[str, ...]:
        """All that are used, in the order of the layers."""
        return tuple(dict.fromkeys(layer.device for layer in self.layers))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order of the layers."""
        return tuple(self._stages())

    def _stages(self) -> Iterator[Stage]:
        first = 0
        for device, group in groupby(layer.device for layer in self.layers):
            end = first + len(list(group))
            yield Stage(device=device, first=first, end=end)
            first = end
