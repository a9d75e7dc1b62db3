"""The decoder's operations in plain PyTorch, for CUDA and as a second opinion on the CPU.

Activations are rounded to the weights' dtype before each product. On the CPU both are then
widened to float32, so results differ from the native kernels only by the order of sums. On CUDA
products run in the weights' dtype. Results depend on the batch in their last bits: only the
native backend is batch-invariant.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from inlay import kernels
from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import Activation, RouterShape
from inlay.models.batch import ForwardBatch
from inlay.models.embedding import Embedding
from inlay.models.formats import FLOAT_FORMATS
from inlay.models.hand_over import HandOverLine
from inlay.models.kv_pool import KvPart
from inlay.models.memory import device_free_bytes
from inlay.models.ops import (
    AdapterPart,
    AttentionSpec,
    ExpertPairs,
    ExpertTensors,
    HostArray,
    RopeTables,
    slots_of,
)
from inlay.models.published.rows import Matrix, floats_of
from inlay.models.rank_group import RankGroup
from inlay.models.recorder import Recorder
from inlay.models.stream_check import streams_take_turns
from inlay.models.torch_adapters import TorchExpertAdapter, TorchLinearAdapter
from inlay.models.torch_arrays import tensor_of
from inlay.models.torch_experts import AddedRows, SlottedExperts, TorchExperts, filler, route


@dataclass(frozen=True)
class TorchStep:
    """What a step brings to the device.

    Attributes:
        ropes: cosines and sines of its positions, each `[T, 1, C]`.
        slots_T: where its tokens are kept.
    """

    batch: ForwardBatch
    pool: KvPart
    ropes: tuple[tuple[Tensor, Tensor], ...]
    slots_T: Tensor
    query_starts_B1: Tensor
    context_lens_B: Tensor
    page_table_BP: Tensor
    logit_rows_R: Tensor


@dataclass(frozen=True)
class TorchLinear:
    """A matrix `[N, M]`, or `[H, N, M]` of heads, and its bias."""

    weight_NM: Tensor
    bias_N: Tensor | None
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Memory of the matrix."""
        return self.weight_NM.nbytes


class TorchOps:
    """See `inlay.models.ops.Ops`.

    Args:
        device: `cuda` without a number means the first GPU.
        limit_bytes: of a GPU's memory, for weights, cache and activations; None: all that is free.
    """

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        # Placements, and what is compared with a tensor's device, name a GPU by its number.
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
        self._device, self._limit_bytes = device, limit_bytes

    @property
    def name(self) -> str:
        """As the protocol says."""
        return f"PyTorch on {self._device}"

    @property
    def device(self) -> str:
        """As the protocol says."""
        return str(self._device)

    def free_bytes(self) -> int:
        """As the protocol says; no more than is left of the limit."""
        free_bytes = device_free_bytes(str(self._device))
        if self._limit_bytes is None:
            return free_bytes
        return min(free_bytes, self._limit_bytes - torch.cuda.memory_allocated(self._device))

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """Floats; on a CPU those that the native backend has, too."""
        return ("float32", "bfloat16") if self._device.type == "cpu" else FLOAT_FORMATS

    def auto_format(self, float_dtype: str) -> str:
        """That dtype on a CPU, float32 in place of float16; bfloat16 on CUDA."""
        if self._device.type != "cpu":
            return "bfloat16"
        return float_dtype if float_dtype in self.weight_formats else "float32"

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """All that PyTorch computes with."""
        return ("float32", "bfloat16", "float16")

    def empty(self, rows: int, width: int, dtype: str = "float32") -> Tensor:
        """Memory of the device."""
        return torch.empty((rows, width), dtype=getattr(torch, dtype), device=self._device)

    def zeros(self, size: tuple[int, ...], dtype: str) -> Tensor:
        """As the protocol says."""
        return torch.zeros(size, dtype=getattr(torch, dtype), device=self._device)

    def array(self, values: NDArray[Any]) -> Tensor:
        """As the protocol says."""
        return torch.from_numpy(values).to(self._device)

    def vector(self, values: HostArray) -> Tensor:
        """As the protocol says."""
        return tensor_of(values).to(self._device, torch.float32, copy=True)

    def pack_linear(
        self, parts_NM: Sequence[Matrix], bias_parts_N: Sequence[HostArray], weight_format: str
    ) -> TorchLinear:
        """One matrix of all parts."""
        rows = sum(len(part) for part in parts_NM)
        weight = self._empty((rows, parts_NM[0].shape[1]), weight_format)
        start = 0
        for part in parts_NM:
            weight[start : start + len(part)].copy_(tensor_of(floats_of(part)))
            start += len(part)
        bias = self._bias(bias_parts_N)
        return TorchLinear(weight, bias, getattr(torch, weight_format))

    def _bias(self, parts_N: Sequence[HostArray]) -> Tensor | None:
        if not parts_N:
            return None
        return torch.cat([tensor_of(part).float() for part in parts_N]).to(self._device)

    def new_experts(
        self,
        experts: int,
        hidden: int,
        width: int,
        weight_format: str,
        *,
        down_format: str | None = None,
        biases: bool = False,
    ) -> TorchExperts:
        """Two tensors for all experts, and two for their biases."""
        assert down_format in (None, weight_format)
        gate_up = self._empty((experts, 2 * width, hidden), weight_format)
        down = self._empty((experts, hidden, width), weight_format)
        return TorchExperts(gate_up, down, getattr(torch, weight_format), biases=biases)

    def set_expert(self, experts: TorchExperts, number: int, tensors: ExpertTensors) -> None:
        """As the protocol says."""
        experts.set(number, tensors)

    def pack_heads(self, parts_HNK: Sequence[HostArray], weight_format: str) -> TorchLinear:
        """`[H, N, K]`."""
        size = (len(parts_HNK), *parts_HNK[0].shape)
        weight = self._empty(size, weight_format)
        for head, part in enumerate(parts_HNK):
            weight[head].copy_(tensor_of(part))
        return TorchLinear(weight, None, getattr(torch, weight_format))

    def _empty(self, size: tuple[int, ...], weight_format: str) -> Tensor:
        stored = torch.float32 if self._device.type == "cpu" else getattr(torch, weight_format)
        return torch.empty(size, dtype=stored, device=self._device)

    def linear_adapter(self, parts: Sequence[AdapterPart]) -> TorchLinearAdapter:
        """On the device."""
        return TorchLinearAdapter(parts, self._device)

    def expert_adapter(
        self, experts: int, hidden: int, width: int, pairs: ExpertPairs
    ) -> TorchExpertAdapter:
        """On the device."""
        return TorchExpertAdapter(pairs, self._device)

    def add_adapters(
        self,
        x_TK: Tensor,
        adapters: Sequence[tuple[TorchLinearAdapter, int, int]],
        out_TN: Tensor,
    ) -> None:
        """One after the other."""
        for adapter, first, end in adapters:
            adapter.add(x_TK[first:end], out_TN[first:end])

    def begin(self, batch: ForwardBatch, pool: KvPart, ropes: Sequence[RopeTables]) -> TorchStep:
        """As the protocol says."""
        positions_T = self.array(batch.positions_T)
        return TorchStep(
            batch=batch,
            pool=pool,
            ropes=tuple(
                (
                    cos_SC.index_select(0, positions_T)[:, None],
                    sin_SC.index_select(0, positions_T)[:, None],
                )
                for cos_SC, sin_SC in ropes
            ),
            slots_T=self.array(slots_of(batch, pool.format.page_tokens)),
            query_starts_B1=self.array(batch.query_starts_B1),
            context_lens_B=self.array(batch.context_lens_B),
            page_table_BP=self.array(batch.page_table_BP),
            logit_rows_R=self.array(batch.logit_rows_R),
        )

    def embed(self, embedding: Embedding, step: TorchStep, out_TM: Tensor) -> None:
        """Gathered on the host."""
        rows_TM = np.empty(out_TM.shape, np.float32)
        embedding.gather(step.batch.token_ids_T, rows_TM)
        out_TM.copy_(torch.from_numpy(rows_TM))

    def rms_norm(self, x_TM: Tensor, weight_M: Tensor, eps: float, out_TM: Tensor) -> None:
        """As the protocol says."""
        out_TM.copy_(F.rms_norm(x_TM, weight_M.shape, weight_M, eps))

    def linear(
        self, x_TM: Tensor, weight: TorchLinear, out_TN: Tensor, *, accumulate: bool = False
    ) -> None:
        """In the weight's dtype, summed and given in float32."""
        x = x_TM.to(weight.dtype)
        if weight.weight_NM.dtype == torch.float32:
            result = x.float() @ weight.weight_NM.t()
        else:
            result = torch.mm(x, weight.weight_NM.t(), out_dtype=torch.float32)
        if accumulate:
            out_TN.add_(result)
        else:
            out_TN.copy_(result)
        if weight.bias_N is not None:
            out_TN.add_(weight.bias_N)

    def linear_heads(self, x_THK: Tensor, weight: TorchLinear, out_THN: Tensor) -> None:
        """In the weight's dtype, given in float32."""
        x = x_THK.to(weight.dtype).to(weight.weight_NM.dtype)
        out_THN.copy_(torch.einsum("ahk,hbk->ahb", x, weight.weight_NM))

    def rope_and_store(self, qkv_TN: Tensor, spec: AttentionSpec, step: TorchStep) -> None:
        """As the protocol says."""
        heads_THD = qkv_TN.view(len(qkv_TN), -1, spec.head_dim)
        last_k = spec.heads + spec.kv_heads
        cos_T1C, sin_T1C = step.ropes[spec.rope]
        half = cos_T1C.shape[-1]
        first = spec.head_dim - 2 * half if spec.value_dim else 0
        for part, norm in (
            (heads_THD[:, : spec.heads], spec.q_norm_D),
            (heads_THD[:, spec.heads : last_k], spec.k_norm_D),
        ):
            if norm is not None and not spec.rotate_first:
                part.copy_(F.rms_norm(part, norm.shape, norm, spec.eps))
            rotated = part[..., first : first + 2 * half]
            low, high = rotated[..., :half].clone(), rotated[..., half:].clone()
            rotated[..., :half] = low * cos_T1C - high * sin_T1C
            rotated[..., half:] = high * cos_T1C + low * sin_T1C
            if norm is not None and spec.rotate_first:
                part.copy_(F.rms_norm(part, norm.shape, norm, spec.eps))
        data, page_tokens = step.pool.data, step.pool.format.page_tokens
        page_T, offset_T = step.slots_T // page_tokens, step.slots_T % page_tokens
        for plane, at in enumerate(range(spec.heads, heads_THD.shape[1], spec.kv_heads)):
            part = heads_THD[:, at : at + spec.kv_heads]
            data[page_T, spec.layer, plane, offset_T] = part.to(data.dtype)

    def attention(
        self, q_THD: Tensor, spec: AttentionSpec, step: TorchStep, out_THD: Tensor
    ) -> None:
        """Requests with one new token go together, padded; the others one by one."""
        starts = step.batch.query_starts_B1.tolist()
        lengths = step.batch.context_lens_B.tolist()
        single = [b for b in range(len(lengths)) if starts[b + 1] - starts[b] == 1]
        if single:
            self._attend_single(q_THD, spec, step, out_THD, single)
        for b, length in enumerate(lengths):
            rows = slice(starts[b], starts[b + 1])
            count = rows.stop - rows.start
            if count < 2:
                continue
            k, v = self._gather(step.pool, spec, step.page_table_BP[b : b + 1], length)
            keys = torch.arange(length, device=self._device)
            behind = keys[-count:, None] - keys
            seen = behind >= 0
            if spec.window:
                seen &= behind < spec.window
            result = self._softmax(q_THD[rows].transpose(0, 1)[None], k, v, seen, spec)
            out_THD[rows] = result[0].transpose(0, 1)

    def _attend_single(
        self,
        q_THD: Tensor,
        spec: AttentionSpec,
        step: TorchStep,
        out_THD: Tensor,
        single: list[int],
    ) -> None:
        requests = torch.tensor(single, device=self._device)
        rows = step.query_starts_B1[requests].long()
        longest = int(step.batch.context_lens_B[single].max())
        k, v = self._gather(step.pool, spec, step.page_table_BP[requests], longest)
        keys = torch.arange(longest, device=self._device)
        behind = step.context_lens_B[requests][:, None] - 1 - keys
        seen = behind >= 0
        if spec.window:
            seen &= behind < spec.window
        result = self._softmax(q_THD[rows][:, :, None], k, v, seen[:, None, None], spec)
        out_THD[rows] = result[:, :, 0]

    def _gather(
        self, pool: KvPart, spec: AttentionSpec, pages_BP: Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, G, length, D]` of the requests with these pages."""
        used = -(-length // pool.format.page_tokens)
        planes = pool.data[pages_BP[:, :used].long(), spec.layer]
        k = planes[:, :, 0].flatten(1, 2)[:, :length].transpose(1, 2)
        if spec.value_dim:
            return k, k[..., : spec.value_dim]
        return k, planes[:, :, 1].flatten(1, 2)[:, :length].transpose(1, 2)

    def _softmax(
        self, q_BHTD: Tensor, k: Tensor, v: Tensor, seen: Tensor, spec: AttentionSpec
    ) -> Tensor:
        """Masked attention; float32 on the CPU, the pool's dtype on CUDA."""
        dtype = torch.float32 if self._device.type == "cpu" else k.dtype
        q, k, v = q_BHTD.to(dtype), k.to(dtype), v.to(dtype)
        if spec.sinks_H is not None or spec.softcap:
            return _own_softmax(q, k, v, seen, spec).to(q_BHTD.dtype)
        result = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=spec.scale, enable_gqa=True
        )
        return result.to(q_BHTD.dtype)

    def route(
        self,
        logits_TE: Tensor,
        router: RouterShape,
        correction_E: Tensor | None,
        out_ids_TK: Tensor,
        out_weights_TK: Tensor,
    ) -> None:
        """As the protocol says."""
        route(logits_TE, router, correction_E, out_ids_TK, out_weights_TK)

    def moe(
        self,
        x_TM: Tensor,
        experts: TorchExperts | SlottedExperts | None,
        ids_TK: Tensor,
        weights_TK: Tensor,
        out_TM: Tensor,
        *,
        activation: Activation,
        shared: TorchExperts | None,
        adapters: Sequence[
            tuple[TorchExpertAdapter | None, TorchExpertAdapter | None, int, int]
        ] = (),
    ) -> None:
        """One expert after the other, each on the rows that chose it."""
        if shared:
            of_all = [(own, slice(f, e)) for _, own, f, e in adapters if own is not None]
            shared.add_all(x_TM, activation, out_TM, of_all)
        numbers: Mapping[int, int] | None = None
        if isinstance(experts, SlottedExperts):
            numbers = experts.experts_in_slots() if adapters else None
            ids_TK, experts = experts.slots_of(ids_TK), experts.experts
        if not isinstance(experts, TorchExperts):
            return
        chosen = ids_TK.flatten()
        order = torch.argsort(chosen, stable=True)
        rows = order // ids_TK.shape[1]
        weights = weights_TK.flatten()[order]
        # Those that are not here, -1, come first.
        elsewhere, *counts = torch.bincount(
            chosen + 1, minlength=len(experts.down_EMF) + 1
        ).tolist()
        start = elsewhere
        for slot, count in enumerate(counts):
            if not count:
                continue
            part = slice(start, start + count)
            number = slot if numbers is None else numbers[slot]
            added = [
                AddedRows(own, number, ((rows[part] >= first) & (rows[part] < end)).nonzero()[:, 0])
                for own, _, first, end in adapters
                if own is not None
            ]
            result = experts.one(slot, x_TM[rows[part]], activation, added)
            out_TM.index_add_(0, rows[part], result * weights[part, None])
            start += count

    def residents(self, host: kernels.ExpertWeights, slots: int) -> SlottedExperts:
        """In floats."""
        weight_format = self.auto_format("float32")
        experts = self.new_experts(
            slots, host.hidden, host.intermediate, weight_format, biases=host.biases() is not None
        )
        return self.slotted(experts, host.num_experts, filler(experts, host))

    def slotted(
        self, experts: Any, num_experts: int, fill: Callable[[int, int], None]
    ) -> SlottedExperts:
        """As the protocol says."""
        return SlottedExperts(experts, num_experts, fill, self._device)

    def ask(
        self, line: HandOverLine, layer: int, x_TM: Tensor, ids_TK: Tensor, w_TK: Tensor
    ) -> None:
        """As the protocol says. On CUDA nothing waits, if `streams_take_turns`."""
        slot, rows = line.slot(layer), line.rows
        buffers = line.tensors
        buffers.x_2TM[slot, :rows].copy_(x_TM, non_blocking=True)
        buffers.ids_2TK[slot, :rows].copy_(ids_TK, non_blocking=True)
        buffers.routing_2TK[slot, :rows].copy_(w_TK, non_blocking=True)
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            if streams_take_turns(self._device):
                line.stream_words(stream.device_index).ask(layer, stream.cuda_stream)
                return
            stream.synchronize()
        line.ask(layer)

    def add_answer(self, line: HandOverLine, layer: int, out_TM: Tensor) -> None:
        """As the protocol says. As `ask`."""
        if self._device.type == "cuda" and streams_take_turns(self._device):
            stream = torch.cuda.current_stream(self._device)
            line.stream_words(stream.device_index).wait_answer(layer, stream.cuda_stream)
        else:
            line.wait_answer(layer)
        answer = line.tensors.out_2TM[line.slot(layer), : line.rows]
        out_TM += answer.to(self._device, non_blocking=True)

    def copy(self, values: Tensor, out: Tensor) -> None:
        """As the protocol says."""
        out.copy_(values)

    def mask_rows(self, ids_TK: Tensor, keep_T: NDArray[np.bool_]) -> Tensor:
        """As the protocol says."""
        masked_TK = self.empty(len(ids_TK), ids_TK.shape[1], "int32")
        self._mask(ids_TK, self.array(keep_T), masked_TK)
        return masked_TK

    def _mask(self, ids_TK: Tensor, keep_T: Tensor, out_TK: Tensor) -> None:
        out_TK.copy_(torch.where(keep_T[:, None], ids_TK, -1))

    def mark(self) -> Callable[[], None]:
        """As the protocol says."""
        if self._device.type != "cuda":
            return lambda: None
        event = torch.cuda.current_stream(self._device).record_event()
        return lambda: event.synchronize()

    def recorder(self) -> Recorder:
        """Nothing is recorded."""
        raise UnsupportedModelError(f"{self.name} records nothing")

    def settle(self) -> None:
        """As the protocol says."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def leave(self, array: Tensor) -> Tensor:
        """The tensor itself: PyTorch orders the streams of two GPUs."""
        return array

    def take(self, array: Tensor | NDArray[Any], out: Tensor) -> None:
        """As the protocol says."""
        out.copy_(array if isinstance(array, Tensor) else torch.from_numpy(array))

    def clear(self, array: Tensor) -> None:
        """As the protocol says."""
        array.zero_()

    def sum_ranks(self, group: RankGroup, array: Tensor) -> None:
        """As the protocol says."""
        group.sum(array)

    def gather_ranks(self, group: RankGroup, part_RV: Tensor, columns: int) -> Tensor:
        """As the protocol says."""
        return group.gather(part_RV, columns)

    def gate_mul(self, gate_up_T2F: Tensor, activation: Activation, out_TF: Tensor) -> None:
        """As the protocol says."""
        gate, up = gate_up_T2F.chunk(2, dim=-1)
        gelu = activation.kind == "gelu_tanh"
        torch.mul(F.gelu(gate, approximate="tanh") if gelu else F.silu(gate), up, out=out_TF)

    def add(self, x_TM: Tensor, out_TM: Tensor) -> None:
        """As the protocol says."""
        out_TM.add_(x_TM)

    def scale(self, x_TN: Tensor, factor: float | NDArray[np.float32]) -> None:
        """As the protocol says."""
        x_TN.mul_(factor if isinstance(factor, float) else self.array(factor)[:, None])

    def wanted_rows(self, x_TM: Tensor, step: TorchStep) -> Tensor:
        """As the protocol says."""
        return x_TM.index_select(0, step.logit_rows_R)

    def to_numpy(self, array: Tensor) -> NDArray[Any]:
        """As the protocol says; waits for the device."""
        values: NDArray[Any] = array.cpu().numpy()
        return values

    def bound(self, x_TN: Tensor, limit: float) -> None:
        """As the protocol says."""
        x_TN.div_(limit).tanh_().mul_(limit)

    def step_guard(self) -> AbstractContextManager[Any]:
        """Nothing is kept for gradients."""
        return torch.inference_mode()


def _own_softmax(q_BHTD: Tensor, k: Tensor, v: Tensor, seen: Tensor, spec: AttentionSpec) -> Tensor:
    """With what PyTorch's attention lacks: bounded scores, and a sink, which takes its share and
    gives nothing.
    """
    shared_by = spec.heads // spec.kv_heads
    k, v = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
    scores = (q_BHTD @ k.transpose(-1, -2)).float() * spec.scale
    if spec.softcap:
        scores = (scores / spec.softcap).tanh() * spec.softcap
    scores = scores.masked_fill(~seen, -torch.inf)
    if spec.sinks_H is None:
        return scores.softmax(-1).to(v.dtype) @ v
    sinks = spec.sinks_H.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    return weights.to(v.dtype) @ v
