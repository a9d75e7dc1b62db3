"""The decoder's operations on a CUDA device, with the kernels of this package.

Weights keep their formats: those with scales are packed by the CPU kernels and lie in the GPU's
memory at their own size. Dense floats stay as `torch_ops` has them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inlay import kernels
from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import Activation, RouterShape
from inlay.core.weight_format import FORMATS, format_named
from inlay.models.batch import ForwardBatch
from inlay.models.formats import FLOAT_FORMATS
from inlay.models.gpu import linear as products
from inlay.models.gpu.attention import Paged
from inlay.models.gpu.attention import attention as attend
from inlay.models.gpu.expert_adapters import AddedPairs, GpuExpertAdapter
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.panels import Panels
from inlay.models.gpu.rope import rope_and_store
from inlay.models.gpu.route import route
from inlay.models.gpu.staging import Staging
from inlay.models.hand_over import activation_of
from inlay.models.kv_pool import KvPart
from inlay.models.native_ops import NativeOps
from inlay.models.ops import (
    AttentionSpec,
    ExpertAdapter,
    ExpertPairs,
    Experts,
    ExpertTensors,
    HostArray,
    Linear,
    RopeTables,
)
from inlay.models.published.rows import Matrix
from inlay.models.recorder import CudaRecorder, Recorder, make_current
from inlay.models.stream_check import streams_take_turns
from inlay.models.torch_experts import SlottedExperts, TorchExperts, filler
from inlay.models.torch_ops import TorchLinear, TorchOps, TorchStep

_PACKED = tuple(name for name in FORMATS if format_named(name).group)
"""Formats with scales."""


class PackedLinear:
    """A matrix, or one for each head, and its bias."""

    def __init__(self, panels: Panels, bias_N: Tensor | None) -> None:
        self.panels, self.bias_N = panels, bias_N

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        return self.panels.data.nbytes


class GpuOps(TorchOps):
    """See `inlay.models.ops.Ops`. Needs Triton; on a CPU, its interpreter."""

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        super().__init__(device, limit_bytes)
        self._host = NativeOps()
        self._staging = Staging(self._device)
        self._parts: tuple[int, tuple[tuple[int, int], ...]] = (0, ())  # of `_which_T`
        self._which_T = torch.empty(0, dtype=torch.int32)
        self._asks_for_counts = False  # of tokens of each expert, before it launches more

    @property
    def name(self) -> str:
        """As the protocol says."""
        return f"Triton on {self._device}"

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """All of the CPU kernels', and float16."""
        return (*super().weight_formats, *_PACKED)

    def pack_linear(
        self, parts_NM: Sequence[Matrix], bias_parts_N: Sequence[HostArray], weight_format: str
    ) -> Linear:
        """Packed on the host, then brought over."""
        if weight_format not in _PACKED:
            return super().pack_linear(parts_NM, bias_parts_N, weight_format)
        (packed,) = self._host.pack_linear(parts_NM, (), weight_format).weights
        rows, columns = packed.shape
        panels = Panels.empty(1, rows, columns, weight_format, self._device)
        panels.set(0, packed.panels())
        return PackedLinear(panels, self._bias(bias_parts_N))

    def pack_heads(self, parts_HNK: Sequence[HostArray], weight_format: str) -> Linear:
        """Each head begins with a panel of its own."""
        if weight_format not in _PACKED:
            return super().pack_heads(parts_HNK, weight_format)
        packed = self._host.pack_heads(parts_HNK, weight_format)
        rows, columns = parts_HNK[0].shape
        panels = Panels.empty(len(parts_HNK), rows, columns, weight_format, self._device)
        for head, part in enumerate(packed.panels().reshape(len(parts_HNK), -1)):
            panels.set(head, part)
        return PackedLinear(panels, None)

    def new_experts(
        self,
        experts: int,
        hidden: int,
        width: int,
        weight_format: str,
        *,
        down_format: str | None = None,
        biases: bool = False,
    ) -> Experts:
        """A slot for each; experts in float32 and float16 are PyTorch's."""
        assert down_format in (None, weight_format)
        if weight_format in FLOAT_FORMATS and weight_format != "bfloat16":
            self._asks_for_counts = True
            return super().new_experts(experts, hidden, width, weight_format, biases=biases)
        return GpuExperts(
            experts,
            hidden,
            width,
            weight_format,
            self._device,
            biases=biases,
            staging=self._staging,
        )

    def expert_adapter(
        self, experts: int, hidden: int, width: int, pairs: ExpertPairs
    ) -> ExpertAdapter:
        """On the device, in bfloat16."""
        return GpuExpertAdapter(experts, hidden, width, pairs, self._device)

    def recorder(self) -> Recorder:
        """CUDA graphs."""
        if self._asks_for_counts:
            raise UnsupportedModelError(
                f"{self.name} has experts in float32 or float16, which wait for the GPU between "
                "launches"
            )
        if self._device.type != "cuda":
            return super().recorder()
        if not streams_take_turns(self._device):
            raise UnsupportedModelError(f"streams of {self.device} do not take turns with the host")
        return CudaRecorder(self._device)

    def residents(self, host: kernels.ExpertWeights, slots: int) -> SlottedExperts:
        """In the host's bytes; float32 is PyTorch's."""
        experts = self.new_experts(
            slots, host.hidden, host.intermediate, host.format, biases=host.biases() is not None
        )
        return self.slotted(experts, host.num_experts, filler(experts, host))

    def set_expert(
        self, experts: TorchExperts | GpuExperts, number: int, tensors: ExpertTensors
    ) -> None:
        """As the protocol says; packed on the host."""
        if isinstance(experts, TorchExperts):
            super().set_expert(experts, number, tensors)
            return
        biases = tensors.biases is not None
        host = self._host.new_experts(
            1, experts.hidden, experts.width, experts.weight_format, biases=biases
        )
        self._host.set_expert(host, 0, tensors)
        experts.set_slot(number, host, 0)

    def begin(self, batch: ForwardBatch, pool: KvPart, ropes: Sequence[RopeTables]) -> TorchStep:
        """As the protocol says."""
        make_current(self._device)
        return super().begin(batch, pool, ropes)

    def linear(
        self,
        x_TM: Tensor,
        weight: TorchLinear | PackedLinear,
        out_TN: Tensor,
        *,
        accumulate: bool = False,
    ) -> None:
        """As the protocol says."""
        if isinstance(weight, TorchLinear):
            super().linear(x_TM, weight, out_TN, accumulate=accumulate)
            return
        products.linear(x_TM, weight.panels, out_TN, bias_N=weight.bias_N, accumulate=accumulate)

    def linear_heads(
        self, x_THK: Tensor, weight: TorchLinear | PackedLinear, out_THN: Tensor
    ) -> None:
        """As the protocol says."""
        if isinstance(weight, TorchLinear):
            super().linear_heads(x_THK, weight, out_THN)
            return
        products.linear_heads(x_THK, weight.panels, out_THN)

    def rope_and_store(self, qkv_TN: Tensor, spec: AttentionSpec, step: TorchStep) -> None:
        """As the protocol says, in one launch."""
        cos_T1C, sin_T1C = step.ropes[spec.rope]
        pairs = cos_T1C.shape[-1]
        rope_and_store(
            qkv_TN,
            cos_T1C.flatten(1),
            sin_T1C.flatten(1),
            step.pool.data,
            spec.layer,
            step.slots_T,
            heads=spec.heads,
            first=spec.head_dim - 2 * pairs if spec.value_dim else 0,
            q_norm_D=spec.q_norm_D,
            k_norm_D=spec.k_norm_D,
            eps=spec.eps,
            rotate_first=spec.rotate_first,
        )

    def attention(
        self, q_THD: Tensor, spec: AttentionSpec, step: TorchStep, out_THD: Tensor
    ) -> None:
        """As the protocol says; reads the pool's pages where they are."""
        attend(
            q_THD,
            Paged(
                step.pool.data,
                spec.layer,
                step.page_table_BP,
                step.query_starts_B1,
                step.context_lens_B,
            ),
            out_THD,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            sinks_H=spec.sinks_H,
            value_dim=spec.value_dim,
        )

    def route(
        self,
        logits_TE: Tensor,
        router: RouterShape,
        correction_E: Tensor | None,
        out_ids_TK: Tensor,
        out_weights_TK: Tensor,
    ) -> None:
        """As the protocol says, in one launch."""
        route(logits_TE, router, correction_E, out_ids_TK, out_weights_TK)

    def moe(
        self,
        x_TM: Tensor,
        experts: TorchExperts | GpuExperts | SlottedExperts | None,
        ids_TK: Tensor,
        weights_TK: Tensor,
        out_TM: Tensor,
        *,
        activation: Activation,
        shared: TorchExperts | GpuExperts | None,
        adapters: Sequence[Any] = (),
    ) -> None:
        """A negative number is skipped."""
        chosen = activation_of(activation)
        others: Any = experts
        if isinstance(shared, GpuExperts):
            every = torch.arange(shared.slots, dtype=torch.int32, device=x_TM.device)
            ids = every.expand(len(x_TM), -1).contiguous()
            added = self._added([(own, *rows) for _, own, *rows in adapters], ids)
            shared.moe(x_TM, ids, torch.ones_like(ids).float(), out_TM, chosen, added)
            shared = None
        own = experts.experts if isinstance(experts, SlottedExperts) else experts
        if isinstance(own, GpuExperts):
            slots_TK = experts.slots_of(ids_TK) if isinstance(experts, SlottedExperts) else ids_TK
            added = self._added([(own, *rows) for own, _, *rows in adapters], ids_TK)
            own.moe(x_TM, slots_TK, weights_TK, out_TM, chosen, added)
            others = None
        super().moe(
            x_TM,
            others,
            ids_TK,
            weights_TK,
            out_TM,
            activation=activation,
            shared=shared,
            adapters=adapters,
        )

    def _added(
        self, adapters: Sequence[tuple[GpuExpertAdapter | None, int, int]], ids_TK: Tensor
    ) -> AddedPairs | None:
        """What they add to rows that chose these experts."""
        some = [(own, (first, end)) for own, first, end in adapters if own is not None]
        if not some:
            return None
        which_T = self._which(len(ids_TK), tuple(rows for _, rows in some))
        return AddedPairs([own for own, _ in some], which_T, ids_TK)

    def _which(self, rows: int, parts: tuple[tuple[int, int], ...]) -> Tensor:
        """Of each row the part that it is in, or -1; brought once for all layers of a step."""
        if self._parts != (rows, parts):
            which_T = torch.full((rows,), -1, dtype=torch.int32)
            for number, (first, end) in enumerate(parts):
                which_T[first:end] = number
            if self._device.type == "cuda":
                which_T = which_T.pin_memory()
            self._parts = rows, parts
            self._which_T = which_T.to(self._device, non_blocking=True)
        return self._which_T
