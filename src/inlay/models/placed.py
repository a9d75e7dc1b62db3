"""The backend of each layer, as a placement says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from inlay.core.errors import ConfigError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU, Placement
from inlay.core.roofline import bytes_per_weight
from inlay.core.tensor_parallel import ALONE, Rank
from inlay.models.formats import PartFormats, check_row_lengths, halves
from inlay.models.native_ops import NativeOps
from inlay.models.ops import Ops


@dataclass(frozen=True)
class Placed:
    """Who computes what.

    Attributes:
        placement: of all layers.
        backends: by device; with `cpu` where experts are the host's.
        rank: which of the processes that share each layer.
    """

    placement: Placement
    backends: Mapping[str, Ops]
    rank: Rank = ALONE

    @classmethod
    def whole(cls, ops: Ops, shape: ModelShape, rank: Rank = ALONE) -> "Placed":
        """All of a model on one backend."""
        resident = 0 if ops.device == CPU else shape.experts
        placement = Placement.on(ops.device, shape.layers, resident=resident)
        return cls(placement, {ops.device: ops}, rank)

    @classmethod
    def by(
        cls,
        placement: Placement,
        backends: Mapping[str, Ops],
        shape: ModelShape,
        rank: Rank = ALONE,
    ) -> "Placed":
        """As a placement says; the kernels of the CPU where experts are the host's.

        Raises:
            ConfigError: it has another number of layers, or more residents than experts; or layers
                that ranks share are on several devices of one.
        """
        if not rank.is_alone and len(placement.devices) > 1:
            raise ConfigError(
                f"the placement has layers on {', '.join(placement.devices)}, and with "
                "placement.tensor_parallel each process has one device: place all layers there, "
                "or leave placement.tensor_parallel out"
            )
        if len(placement.layers) != shape.layers:
            raise ConfigError(
                f"the placement is of {len(placement.layers)} layers, the model has {shape.layers}"
            )
        most = max(layer.resident for layer in placement.layers)
        if most > shape.experts:
            raise ConfigError(f"{most} resident experts: a layer of the model has {shape.experts}")
        placed = cls(placement, dict(backends), rank)
        if CPU not in backends and placed.splits(shape):
            placed = cls(placement, {**backends, CPU: NativeOps()}, rank)
        return placed

    def ops(self, layer: int) -> Ops:
        """Backend of a layer."""
        return self.backends[self.placement.layers[layer].device]

    @property
    def first(self) -> Ops:
        """Where the hidden states begin."""
        return self.ops(0)

    @property
    def last(self) -> Ops:
        """Where the output matrix is."""
        return self.ops(-1)

    @cached_property
    def host(self) -> NativeOps | None:
        """Who packs host experts; None: there are none."""
        ops = self.backends.get(CPU)
        return ops if isinstance(ops, NativeOps) else None

    def has_host_experts(self, layer: int, shape: ModelShape) -> bool:
        """Whether the host has some of a layer that is not its own."""
        placed = self.placement.layers[layer]
        return placed.device != CPU and placed.resident < shape.experts

    def splits(self, shape: ModelShape) -> bool:
        """Whether host and devices share a layer."""
        return any(self.has_host_experts(layer, shape) for layer in shape.sparse_layers)

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Dtypes of keys and values that all of them take."""
        of_all = [self.backends[device].kv_dtypes for device in self.placement.devices]
        return tuple(name for name in of_all[0] if all(name in of_one for of_one in of_all))

    def held_bytes(self, shape: ModelShape, weight_format: str, held_bytes: int) -> dict[str, int]:
        """What each device takes of weights of that size in all, about.

        Args:
            shape: of this rank, as `held_bytes` is; whole experts are the first rank's.
        """
        if len(self.backends) == 1:
            return dict.fromkeys(self.backends, held_bytes)
        experts, _ = halves(weight_format)
        each = int(shape.expert_parameters * bytes_per_weight(experts))
        sparse = set(shape.sparse_layers)
        rest = (held_bytes - len(sparse) * shape.experts * each) / shape.layers
        taken = dict.fromkeys(self.backends, 0.0)
        for number, layer in enumerate(self.placement.layers):
            taken[layer.device] += rest
            if number not in sparse:
                continue
            taken[layer.device] += layer.resident * each
            if layer.device == CPU or self.has_host_experts(number, shape):
                taken[CPU] += shape.experts * each * self.rank.degree * self.rank.is_first
        return {device: int(size) for device, size in taken.items()}

    def check_formats(self, shape: ModelShape, formats: PartFormats) -> None:
        """Raise UnsupportedModelError where a backend lacks the format of a part that it has."""
        for part, name, ops in self._held(shape, formats):
            if name not in ops.weight_formats:
                raise UnsupportedModelError(
                    f"weight_format {name!r} is not supported with {ops.name}, which has the "
                    f"{part}; supported are auto, {', '.join(ops.weight_formats)}"
                )
        check_row_lengths(shape, formats)

    def _held(self, shape: ModelShape, formats: PartFormats) -> Iterator[tuple[str, str, Ops]]:
        for ops in {
            self.ops(layer).device: self.ops(layer) for layer in range(shape.layers)
        }.values():
            yield "attention", formats.attention, ops
            yield "MLPs", formats.mlp, ops
        yield "output matrix", formats.head, self.last
        for layer in shape.sparse_layers:
            if not self.has_host_experts(layer, shape):
                yield "experts", formats.experts, self.ops(layer)
            elif self.host is not None:
                yield "experts", formats.experts, self.host


def placement_words(placement: Placement, shape: ModelShape) -> Iterator[str]:
    """Stage by stage: the layers, and how many of their experts are with them."""
    sparse = set(shape.sparse_layers)
    for stage in placement.stages:
        numbers = range(stage.first, stage.end)
        resident = sorted({placement.layers[n].resident for n in numbers if n in sparse})
        words = f"layers {stage.first} to {stage.end - 1} on {stage.device}"
        if stage.device != CPU and resident:
            counts = " to ".join(str(one) for one in (resident[0], resident[-1])[: len(resident)])
            words += f" with {counts} of {shape.experts} experts each"
        yield words
