"""Which device has which layers in training. Routed experts are the host's wherever a layer is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError

_DEVICE = re.compile(r"(?P<name>cpu|cuda(?::\d+)?)(?:=(?P<layers>[1-9]\d*))?")


@dataclass(frozen=True)
class Stage:
    """Neighbouring layers on one device.

    Attributes:
        device: `cpu`, or `cuda:0` and so on.
    """

    device: str
    layers: range


def stages_of(devices: Sequence[str], layers: int, gpus: int) -> tuple[Stage, ...]:
    """All layers of a model, in their order.

    Args:
        devices: as `devices` of a run's settings: names, each with `=N` behind it for so many
            layers or none for as many on each; empty: all GPUs, or the CPU without one.
        gpus: how many there are.

    Raises:
        ConfigError: no such device, or other numbers of layers than the model has.
    """
    names = list(devices) or [f"cuda:{number}" for number in range(gpus)] or ["cpu"]
    matches = [_DEVICE.fullmatch(name) for name in names]
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise ConfigError(
                f"devices: {name!r} is no device: write cpu, cuda:0 or cuda:0=20 for 20 layers"
            )
        number = int(match["name"].partition(":")[2] or 0)
        if match["name"] != "cpu" and number >= gpus:
            raise ConfigError(f"devices: there is no {name}: {gpus} GPUs can be used")
    found = [match for match in matches if match is not None]
    counts = [int(match["layers"]) for match in found if match["layers"]]
    if counts and (len(counts) != len(found) or sum(counts) != layers):
        raise ConfigError(
            f"devices: {','.join(names)} has {sum(counts)} layers, the model {layers}: give each "
            "device its number, or none of them"
        )
    if not counts and len(found) > layers:
        raise ConfigError(f"devices: {len(found)} of them for {layers} layers: name fewer")
    ends = [0]
    for number in range(len(found)):
        ends.append(ends[-1] + counts[number] if counts else layers * (number + 1) // len(found))
    return tuple(
        Stage("cuda:0" if match["name"] == "cuda" else match["name"], range(first, last))
        for match, first, last in zip(found, ends, ends[1:], strict=False)
    )
