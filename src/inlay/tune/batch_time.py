"""What one micro-batch takes, by part: the roofline's seconds times the passes of training over it.

The roofline (`inlay.core.roofline`) knows bytes, operations and what a machine reaches of both.
What training takes beside that, such as norms, gradients on their way, and products that fill
no core, is a *pace*: so many times the roofline's seconds, measured by `inlay.tune.trial` at a
model's own sizes, or `TYPICAL`.
"""

import math
from dataclasses import dataclass, replace

from inlay.core.hardware import Device, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Formats, Kind, Part, Step, Work, parts_of, seconds_on, work_of
from inlay.tune.config import TuneConfig
from inlay.tune.frozen_formats import product_dtype

EXPERTS, HEAD = "routed experts", "output matrix"
_ATTENTION_CORE = "attention core"

# Gate and up, of a routed expert's three products: what the backward pass computes again.
_GATE_AND_UP = 2 / 3
# Of attention backward over forward: scores again, and four products for two.
_ATTENTION_BACKWARD = 2.5
_CROSSING_BYTES = 4  # rows go to the host's experts and back as float32


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How many times the roofline's seconds processors take in training.

    Attributes:
        experts: of routed experts.
        head: of the output matrix and the loss.
        layers: of all else in layers.
        source: where the figures come from.
    """

    experts: float
    head: float
    layers: float
    source: str

    def of(self, part: str) -> float:
        """That of a part of the roofline's."""
        return {EXPERTS: self.experts, HEAD: self.head}.get(part, self.layers)


TYPICAL = Pace(
    experts=1.4,
    head=1.6,
    layers=1.4,
    source="DeepSeek-V2-Lite in bfloat16 on 2 cores of an AMD EPYC with avx512_bf16",
)
"""For machines that are not this one, whose training nobody timed."""


class BatchTime:
    """One micro-batch, forward and backward.

    Args:
        gpu_share: of the layers, routed experts aside. A GPU's pace is 1: nobody measured one.
        tokens: of the micro-batch.
        row_tokens: of a row of it.
    """

    def __init__(
        self,
        config: TuneConfig,
        shape: ModelShape,
        machine: Machine,
        pace: Pace,
        gpu_share: float,
        tokens: int,
        row_tokens: float,
    ) -> None:
        self._config, self._shape, self._machine, self._pace = config, shape, machine, pace
        self._gpu_share, self._tokens, self._row_tokens = gpu_share, tokens, row_tokens
        self._recomputes = not config.disable_gradient_checkpointing

    def seconds(self, expert_format: str) -> dict[str, float]:
        """By part."""
        shape, products = self._shape, product_dtype(self._config)
        parts = parts_of(
            shape,
            Formats(
                experts=expert_format,
                mlp=products,
                attention=products,
                latent=products,
                head=products,
                kv=products,
            ),
        )
        found = {
            part.name: self._part_s(part, products)
            for part in parts
            if part.name not in ("embedding", "norms")
        }
        if self._gpu_share and shape.sparse_layers:
            found["between GPU and host"] = self._crossing_s()
        return found

    def _part_s(self, part: Part, products: str) -> float:
        share = 0.0 if part.name == EXPERTS else self._gpu_share
        host = self._pace.of(part.name) * self._device_s(self._machine.host, "cpu", part, products)
        if not share or self._machine.gpu is None:
            return host
        return (1 - share) * host + share * self._device_s(self._machine.gpu, "gpu", part, products)

    def _device_s(self, device: Device, kind: Kind, part: Part, products: str) -> float:
        work = work_of(self._shape, part, Step(new_tokens=max(1, self._tokens)))
        passes = self._passes(part.name)
        if part.name == _ATTENTION_CORE:
            work = self._attention()
        elif part.name == HEAD:
            work = replace(work, flops=2.0 * self._tokens * part.elements)
        read = Work(flops=0, read_bytes=passes * work.read_bytes)
        compute = Work(flops=passes * work.flops, read_bytes=0)
        # Whatever weights are held in, they are multiplied in the dtype of products.
        return max(
            seconds_on(device, kind, part, read)[0],
            seconds_on(device, kind, replace(part, format=products), compute)[0],
        )

    def _passes(self, part: str) -> float:
        """Times the forward pass's products: forward, again for the backward pass, backward."""
        if part == HEAD:
            return 2
        again = 1 if self._recomputes else 0
        if part == _ATTENTION_CORE:
            return 1 + again + _ATTENTION_BACKWARD
        if part == EXPERTS and self._config.kt_cpu_activation == "recompute":
            return 2 + again + _GATE_AND_UP
        return 2 + again

    def _attention(self) -> Work:
        """Each token with those before it in its row."""
        shape = self._shape
        pairs = self._tokens * (self._row_tokens + 1) / 2
        return Work(flops=shape.layers * pairs * 4 * shape.heads * shape.head_dim, read_bytes=0)

    def _crossing_s(self) -> float:
        gpu = self._machine.gpu
        assert gpu is not None
        times = 2 * (2 + (1 if self._recomputes else 0))
        moved = times * len(self._shape.sparse_layers) * self._tokens * self._shape.hidden
        if not gpu.link_gbs:
            return math.inf
        return self._gpu_share * moved * _CROSSING_BYTES / (gpu.link_gbs * 1e9)
