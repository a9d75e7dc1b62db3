"""What a run takes of memory, counted from a model's shape before anything is loaded.

Each term is what the code of `inlay.tune` holds at its peak, in the order of `MemoryUse`. Knows no
files: models that are not here are counted as well.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import psutil

from inlay.core.errors import ResourceError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU
from inlay.core.roofline import bytes_per_weight
from inlay.core.units import format_bytes
from inlay.models.targets import Target
from inlay.models.weight_names import layer_parts
from inlay.tune.config import TuneConfig
from inlay.tune.devices import Stage
from inlay.tune.loss import chunk_rows

_FLOAT32, _BFLOAT16 = 4, 2
# A matrix, its gradient and two moments; and one more while files are written, when gradients are
# gone, but a matrix or its moments are there twice more.
_STATES = 5
_CONTEXT = 600 << 20  # of CUDA with cuBLAS on a GPU, about: nobody has measured it here
_ROOM = 1.25  # what buffers of the kernels grow to beyond what is asked for


@dataclass(frozen=True)
class MemoryUse:
    """Bytes in one memory.

    Attributes:
        process: Python, PyTorch and what a product of theirs needs.
        weights: frozen ones.
        lora: matrices, their gradients and moments, and what an update or a file takes beside them.
        activations: of the largest micro-batch: inputs of layers, one layer's or all layers'
            values, logits, and buffers of the kernels.
    """

    process: int = 0
    weights: int = 0
    lora: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.process + self.weights + self.lora + self.activations

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(
            self.process + other.process,
            self.weights + other.weights,
            self.lora + other.lora,
            self.activations + other.activations,
        )


@dataclass(frozen=True)
class MemoryNeed:
    """What a run takes.

    Attributes:
        host: in host memory.
        devices: of each GPU, by its name.
    """

    host: MemoryUse
    devices: Mapping[str, MemoryUse] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line for each memory."""
        uses = [("memory", self.host), *self.devices.items()]
        return "\n".join(
            f"{name}: {format_bytes(use.total)} (weights {format_bytes(use.weights)}, adapters "
            f"and their states {format_bytes(use.lora)}, activations "
            f"{format_bytes(use.activations)}, the process {format_bytes(use.process)})"
            for name, use in uses
        )

    def check(
        self, free_bytes: int, devices_free: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Refuse a run that does not fit.

        Args:
            free_bytes: of host memory, for all but what the process has already.
            devices_free: the same of each GPU.

        Raises:
            ResourceError: it says what is needed for what, and what to lower.
        """
        memories = [("memory", self.host, free_bytes + self.host.process)]
        for name, use in self.devices.items():
            memories.append((f"memory of {name}", use, devices_free[name]))
        for name, use, room in memories:
            if use.total > room:
                raise ResourceError(
                    f"the run needs {format_bytes(use.total)} of {name} (frozen weights "
                    f"{format_bytes(use.weights)}, adapters and their states "
                    f"{format_bytes(use.lora)}, activations {format_bytes(use.activations)}, the "
                    f"process {format_bytes(use.process)}), and {format_bytes(room)} are there: "
                    f"{_advice(use)}"
                )


def _advice(use: MemoryUse) -> str:
    if use.weights > max(use.lora, use.activations):
        return "set weight_format=int8 or int4 for routed experts, or take a smaller model"
    if use.lora > use.activations:
        return "lower lora_rank, set pure_bf16=true, or leave routed experts out of lora_target"
    return (
        "set per_device_train_batch_size=1 and gradient_accumulation_steps=16 for tight memory, "
        "lower cutoff_len, and see with max_samples=100 whether it runs"
    )


def process_bytes() -> int:
    """Resident memory of this process once PyTorch has done its first products.

    Cost: tens of milliseconds, and loading PyTorch.
    """
    import torch
    import torch.nn.functional as F

    from inlay.tune.products import linear

    for dtype in (torch.float32, torch.bfloat16):
        # Its libraries keep scratch memory from products of this size on.
        x = torch.ones(512, 512, dtype=dtype, requires_grad=True)
        normed = F.silu(F.rms_norm(x.float(), (512,))).to(dtype)
        heads = linear(normed, x.detach()).view(1, 512, 8, 64).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        out.float().log_softmax(-1).sum().backward()  # type: ignore[no-untyped-call]
    return int(psutil.Process().memory_info().rss)


def trainable_of(targets: Iterable[Target], rank: int) -> int:
    """Number of weights that change."""
    return sum((t.experts or 1) * rank * (t.rows + t.columns) for t in targets)


def memory_need(
    config: TuneConfig,
    shape: ModelShape,
    expert_format: str,
    targets: Sequence[Target],
    batch_tokens: int,
    *,
    process: int,
    stages: Sequence[Stage],
) -> MemoryNeed:
    """What a run takes.

    Args:
        batch_tokens: of the largest micro-batch.
        process: as `process_bytes` gives it.
        stages: where layers are, without their routed experts; the last one has the head.
    """
    count = _Counts(config, shape, batch_tokens)
    host = MemoryUse(
        process=process,
        weights=int(count.expert_weights(expert_format)) + count.table,
        lora=count.lora([t for t in targets if t.experts]),
        activations=count.host_values,
    )
    devices: dict[str, MemoryUse] = {}
    for stage in stages:
        last = stage.layers.stop == shape.layers
        rest = [t for t in targets if not t.experts and t.layer in stage.layers]
        use = MemoryUse(
            weights=count.dense_weights(stage.layers) + last * count.head,
            lora=count.lora(rest),
            activations=count.values(stage.layers, last=last),
        )
        if stage.device == CPU:
            host += use
        else:
            devices[stage.device] = devices.get(stage.device, MemoryUse(process=_CONTEXT)) + use
    return MemoryNeed(host, devices)


class _Counts:
    """Bytes of parts."""

    def __init__(self, config: TuneConfig, shape: ModelShape, tokens: int) -> None:
        self._config, self._shape, self._tokens = config, shape, tokens
        half = config.bf16 or config.pure_bf16
        self._product = _BFLOAT16 if half else _FLOAT32
        self._state = _BFLOAT16 if config.pure_bf16 else _FLOAT32
        self._recomputes = not config.disable_gradient_checkpointing

    @property
    def table(self) -> int:
        """The embedding: what is touched of its file stays until memory is short."""
        width = _FLOAT32 if self._shape.dtype == "float32" else _BFLOAT16
        return self._shape.vocab * self._shape.hidden * width

    @property
    def head(self) -> int:
        """The output matrix, a copy even where it is the embedding's."""
        return self._shape.vocab * self._shape.hidden * self._product

    def dense_weights(self, layers: range) -> int:
        """Of layers, without routed experts."""
        return sum(
            prod(size) * (self._product if len(size) > 1 and part != "router" else _FLOAT32)
            for layer in layers
            for part, size in layer_parts(self._shape, layer).items()
        )

    def expert_weights(self, weight_format: str) -> float:
        """Routed experts of all layers, packed."""
        shape = self._shape
        count = len(shape.sparse_layers) * shape.experts * shape.expert_parameters
        return count * bytes_per_weight(weight_format) if count else 0.0

    def lora(self, targets: Sequence[Target]) -> int:
        """Matrices and states, and what is beside them while they change."""
        rank = self._config.lora_rank
        held = _STATES * self._state * trainable_of(targets, rank)
        largest = max((trainable_of([t], rank) for t in targets), default=0)
        # An update takes four times a matrix; a layer's new gradients are float32.
        by_layer: dict[int, list[Target]] = {}
        for target in targets:
            by_layer.setdefault(target.layer, []).append(target)
        new = max((trainable_of(some, rank) for some in by_layer.values()), default=0)
        return held + _FLOAT32 * max(2 * largest, new)

    def values(self, layers: range, *, last: bool) -> int:
        """What layers keep, and what one takes while it is computed; of the last also the loss."""
        shape, tokens = self._shape, self._tokens
        inputs = len(layers) * tokens * _FLOAT32 * shape.hidden
        saved = [tokens * sum(self._saved(layer)) for layer in layers]
        passing = tokens * max(map(self._passing, layers))
        # What a layer has given back stays with the allocator while the next loss is computed.
        loss = self._loss() if last else 0
        return inputs + (max(saved) if self._recomputes else sum(saved)) + passing + loss

    def _loss(self) -> int:
        """Logits of a chunk, their softmax, and both in the dtype of products; states of all."""
        shape, tokens = self._shape, self._tokens
        rows = min(tokens, chunk_rows(shape.vocab))
        narrow = self._product if self._product != _FLOAT32 else 0
        of_row = shape.vocab * (2 * _FLOAT32 + narrow)
        return rows * of_row + 4 * tokens * _FLOAT32 * shape.hidden

    def _saved(self, layer: int) -> Iterator[int]:
        """Bytes for each token that autograd keeps of a layer."""
        shape, product = self._shape, self._product
        yield 2 * _FLOAT32 * shape.hidden + 3 * product * shape.hidden  # between the parts
        heads, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if shape.mla:
            yield product * 6 * heads
        else:
            yield product * (3 * heads + 2 * shared)
            if shape.qk_norm:
                yield _FLOAT32 * (heads + shared)
        yield product * 4 * self._width(layer)
        if layer in shape.sparse_layers and self._config.kt_cpu_activation == "retain":
            yield product * shape.experts_per_token * 2 * shape.moe_intermediate

    def _passing(self, layer: int) -> int:
        """Bytes for each token of gradients on their way through a layer, and of attention."""
        heads = self._shape.heads * self._shape.head_dim
        float32s = 3 * self._shape.hidden + 4 * heads
        return _FLOAT32 * float32s + 2 * self._product * self._width(layer)

    def _width(self, layer: int) -> int:
        shape = self._shape
        return shape.shared_intermediate if layer in shape.sparse_layers else shape.intermediate

    @property
    def host_values(self) -> int:
        """Buffers of the kernels: rows by expert, gate, up and activated values of one layer."""
        shape = self._shape
        of_pair = shape.hidden + 3 * shape.moe_intermediate
        of_token = shape.experts_per_token * of_pair + 2 * shape.hidden
        return int(_ROOM * self._tokens * self._product * of_token) if shape.experts else 0
