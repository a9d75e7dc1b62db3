"""The decoder's operations on the CPU kernels of `inlay.kernels`.

Activations are NumPy arrays, because the kernels take them ten times faster than tensors. A
token's result is the same bit for bit whatever else is in the step.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import Activation, RouterShape
from inlay.core.placement import CPU
from inlay.core.weight_format import BLOCK_FORMATS
from inlay.models.batch import ForwardBatch
from inlay.models.embedding import Embedding
from inlay.models.float_arrays import BFLOAT16, bits_of, to_float32
from inlay.models.hand_over import HandOverLine, Residents, activation_of
from inlay.models.kv_pool import KvPart
from inlay.models.memory import free_memory_bytes
from inlay.models.ops import (
    AdapterPart,
    AttentionSpec,
    ExpertPairs,
    Experts,
    ExpertTensors,
    HostArray,
    RopeTables,
    on_host,
    slots_of,
)
from inlay.models.published.rows import (
    BlockRows,
    Matrix,
    QuantizedRows,
    floats_of,
    held_format,
)

if TYPE_CHECKING:
    from inlay.models.rank_group import RankGroup
    from inlay.models.recorder import Recorder

_GATES = {"silu": kernels.silu_mul, "gelu_tanh": kernels.gelu_mul}
_PIECE_WEIGHTS = 16 << 20  # that are floats at a time
_NO_RESIDENTS = "experts in host memory are nowhere else on a CPU"


@dataclass(frozen=True)
class NativeLinear:
    """A packed matrix and its bias.

    Attributes:
        weights: the matrix, or parts of its rows one after the other, each in a format of its own.
    """

    weights: tuple[kernels.LinearWeight, ...]
    bias_N: NDArray[np.float32] | None

    @property
    def nbytes(self) -> int:
        """Memory of the matrix."""
        return sum(weight.nbytes for weight in self.weights)


@dataclass(frozen=True)
class _Step:
    batch: ForwardBatch
    slots_T: NDArray[np.int64]
    ropes: Sequence[RopeTables]
    pool: NDArray[np.uint8]
    geometry: kernels.KvGeometry


class NativeOps:
    """See `inlay.models.ops.Ops`.

    Raises:
        ArgumentError: INLAY_ISA names a variant that cannot run here.
    """

    def __init__(self) -> None:
        kernels.selected_isa()  # an impossible choice is refused before any file is read
        self._pool: KvPart | None = None
        self._pool_bytes: NDArray[np.uint8] = np.empty((0, 0), np.uint8)
        self._geometry: Any = None
        # One packs while the next one gets ready: more would only queue up before a step's kernels.
        self._turns = threading.Semaphore(2)

    @property
    def name(self) -> str:
        """As the protocol says."""
        return "the CPU kernels"

    @property
    def device(self) -> str:
        """As the protocol says."""
        return CPU

    def free_bytes(self) -> int:
        """As the protocol says."""
        return free_memory_bytes()

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """What the kernels multiply with, but for blocks, which nothing becomes."""
        return kernels.FORMATS

    def auto_format(self, float_dtype: str) -> str:
        """That dtype."""
        return float_dtype

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """What the attention kernels read."""
        return ("float32", "bfloat16")

    def empty(self, rows: int, width: int, dtype: str = "float32") -> NDArray[Any]:
        """As the protocol says."""
        return np.empty((rows, width), dtype)

    def zeros(self, size: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """As the protocol says."""
        return np.zeros(size, BFLOAT16 if dtype == "bfloat16" else dtype)

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return values

    def vector(self, values: HostArray) -> NDArray[np.float32]:
        """As the protocol says."""
        return to_float32(values, copy=True)

    def pack_linear(
        self, parts_NM: Sequence[Matrix], bias_parts_N: Sequence[HostArray], weight_format: str
    ) -> NativeLinear:
        """Packs part by part; parts that a format with blocks leaves in several make several."""
        weights = []
        for held, alike in groupby(parts_NM, lambda part: held_format(part, weight_format)):
            parts = list(alike)
            weight = kernels.LinearWeight(sum(map(len, parts)), parts[0].shape[1], held)
            start = 0
            for part in parts:
                _set_rows(weight, start, part)
                start += len(part)
            weights.append(weight)
        bias = np.concatenate([to_float32(part) for part in bias_parts_N]) if bias_parts_N else None
        return NativeLinear(tuple(weights), bias)

    def new_experts(
        self,
        experts: int,
        hidden: int,
        width: int,
        weight_format: str,
        *,
        down_format: str | None = None,
        biases: bool = False,
    ) -> kernels.ExpertWeights:
        """Untouched memory, which costs nothing before an expert is there."""
        return kernels.ExpertWeights(experts, hidden, width, weight_format, biases, down_format)

    def set_expert(
        self, experts: kernels.ExpertWeights, number: int, tensors: ExpertTensors
    ) -> None:
        """As the protocol says. What is read and converted is that beside the kernels; each takes
        a turn with all their threads.
        """
        formats = (experts.format, experts.format, experts.down_format)
        parts = tuple(map(_in_codes, (tensors.gate_FM, tensors.up_FM, tensors.down_MF), formats))
        biases = tuple(map(self.vector, tensors.biases or ()))
        held = all(map(_is_held_as, parts, formats))
        put: Callable[..., None]
        given: tuple[HostArray, ...]
        if held and experts.format in BLOCK_FORMATS:
            put, given = experts.set_blocks, tuple(map(_blocks, parts))
        elif held:
            put, given = experts.set_quantized, tuple(chain.from_iterable(map(_held, parts)))
        else:
            put, given = experts.set, tuple(_readable(floats_of(part)) for part in parts)
        with self._turns:
            put(number, *given, *biases)

    def pack_heads(
        self, parts_HNK: Sequence[HostArray], weight_format: str
    ) -> kernels.LinearWeight:
        """One matrix, in which each head begins with a panel of its own."""
        rows, columns = parts_HNK[0].shape
        stride = kernels.head_rows(rows)
        weight = kernels.LinearWeight(len(parts_HNK) * stride, columns, weight_format)
        for head, part in enumerate(parts_HNK):
            weight.set_rows(head * stride, _readable(part))
        return weight

    def linear_adapter(self, parts: Sequence[AdapterPart]) -> kernels.LinearAdapter:
        """As the protocol says."""
        return kernels.LinearAdapter(
            [(x, out, bits_of(a), bits_of(b), scale) for x, out, a, b, scale in parts]
        )

    def expert_adapter(
        self, experts: int, hidden: int, width: int, pairs: ExpertPairs
    ) -> kernels.ExpertAdapter:
        """As the protocol says."""
        adapter = kernels.ExpertAdapter(experts, hidden, width)
        for (expert, matrix), (a, b, scale) in pairs.items():
            adapter.set(expert, matrix, bits_of(a), bits_of(b), scale)
        return adapter

    def add_adapters(
        self,
        x_TK: NDArray[np.float32],
        adapters: Sequence[tuple[kernels.LinearAdapter, int, int]],
        out_TN: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        kernels.add_adapters(x_TK, adapters, out_TN)

    def begin(
        self,
        batch: ForwardBatch,
        pool: KvPart,
        ropes: Sequence[RopeTables],
    ) -> _Step:
        """As the protocol says."""
        if pool is not self._pool:
            self._pool, self._pool_bytes = pool, pool.as_bytes()
            self._geometry = kernels.kv_geometry(pool.format, pool.data.shape[-1])
        slots_T = slots_of(batch, pool.format.page_tokens)
        return _Step(batch, slots_T, ropes, self._pool_bytes, self._geometry)

    def embed(self, embedding: Embedding, step: _Step, out_TM: NDArray[np.float32]) -> None:
        """As the protocol says."""
        embedding.gather(step.batch.token_ids_T, out_TM)

    def rms_norm(
        self,
        x_TM: NDArray[np.float32],
        weight_M: NDArray[np.float32],
        eps: float,
        out_TM: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        kernels.rms_norm(x_TM, weight_M, eps, out_TM)

    def linear(
        self,
        x_TM: NDArray[np.float32],
        weight: NativeLinear,
        out_TN: NDArray[np.float32],
        *,
        accumulate: bool = False,
    ) -> None:
        """As the protocol says."""
        start = 0
        for part in weight.weights:
            rows = slice(start, start + part.shape[0])
            bias_N = None if weight.bias_N is None else weight.bias_N[rows]
            kernels.linear(x_TM, part, out_TN[:, rows], bias_N=bias_N, accumulate=accumulate)
            start = rows.stop

    def linear_heads(
        self,
        x_THK: NDArray[np.float32],
        weight: kernels.LinearWeight,
        out_THN: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        kernels.linear_heads(x_THK, weight, out_THN)

    def rope_and_store(self, qkv_TN: NDArray[np.float32], spec: AttentionSpec, step: _Step) -> None:
        """As the protocol says."""
        kernels.rope_and_store(
            qkv_TN,
            step.batch.positions_T,
            *step.ropes[spec.rope],
            step.pool,
            step.geometry,
            spec.layer,
            step.slots_T,
            q_norm_D=spec.q_norm_D,
            k_norm_D=spec.k_norm_D,
            norm_eps=spec.eps,
            rotate_first=spec.rotate_first,
        )

    def attention(
        self,
        q_THD: NDArray[np.float32],
        spec: AttentionSpec,
        step: _Step,
        out_THD: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        kernels.paged_attention(
            q_THD,
            step.pool,
            step.geometry,
            spec.layer,
            step.batch.page_table_BP,
            step.batch.query_starts_B1,
            step.batch.context_lens_B,
            spec.scale,
            out_THD,
            sliding_window=spec.window,
            softcap=spec.softcap,
            sinks_H=spec.sinks_H,
        )

    def route(
        self,
        logits_TE: NDArray[np.float32],
        router: RouterShape,
        correction_E: NDArray[np.float32] | None,
        out_ids_TK: NDArray[np.int32],
        out_weights_TK: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        kernels.router_topk(
            logits_TE,
            out_ids_TK.shape[1],
            router.normalize,
            out_ids_TK,
            out_weights_TK,
            score=router.score,
            correction_E=correction_E,
            groups=router.groups,
            groups_per_token=router.groups_per_token,
            group_score=router.group_score,
            scale=router.scale,
        )

    def moe(
        self,
        x_TM: NDArray[np.float32],
        experts: kernels.ExpertWeights | None,
        ids_TK: NDArray[np.int32],
        weights_TK: NDArray[np.float32],
        out_TM: NDArray[np.float32],
        *,
        activation: Activation,
        shared: kernels.ExpertWeights | None,
        adapters: Sequence[
            tuple[kernels.ExpertAdapter | None, kernels.ExpertAdapter | None, int, int]
        ] = (),
    ) -> None:
        """As the protocol says."""
        if experts is None:  # the host's line has the routed ones
            assert shared is not None
            experts, shared = shared, None
            ids_TK = np.zeros((len(x_TM), 1), np.int32)
            weights_TK = np.ones((len(x_TM), 1), np.float32)
            adapters = [(of_shared, None, first, end) for _, of_shared, first, end in adapters]
        kernels.moe(
            x_TM,
            experts,
            ids_TK,
            weights_TK,
            out_TM,
            accumulate=True,
            activation=activation_of(activation),
            shared=shared,
            adapters=adapters,
        )

    def residents(self, host: kernels.ExpertWeights, slots: int) -> Residents:
        """There are none: all experts are the host's."""
        raise UnsupportedModelError(_NO_RESIDENTS)

    def slotted(
        self, experts: Experts, num_experts: int, fill: Callable[[int, int], None]
    ) -> Residents:
        """As `residents`."""
        raise UnsupportedModelError(_NO_RESIDENTS)

    def ask(
        self,
        line: HandOverLine,
        layer: int,
        x_TM: NDArray[np.float32],
        ids_TK: NDArray[np.int32],
        w_TK: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        slot, rows = line.slot(layer), line.rows
        line.x_2TM[slot, :rows] = x_TM
        line.ids_2TK[slot, :rows] = ids_TK
        line.routing_2TK[slot, :rows] = w_TK
        line.ask(layer)

    def add_answer(self, line: HandOverLine, layer: int, out_TM: NDArray[np.float32]) -> None:
        """As the protocol says."""
        line.wait_answer(layer)
        out_TM += line.out_2TM[line.slot(layer), : line.rows]

    def copy(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """As the protocol says."""
        out[:] = values

    def mask_rows(self, ids_TK: NDArray[np.int32], keep_T: NDArray[np.bool_]) -> NDArray[np.int32]:
        """As the protocol says."""
        return np.where(keep_T[:, None], ids_TK, np.int32(-1))

    def mark(self) -> Callable[[], None]:
        """Nothing is under way."""
        return lambda: None

    def recorder(self) -> "Recorder":
        """As the protocol says: a call takes little beside its work."""
        raise UnsupportedModelError(f"{self.name} record nothing")

    def settle(self) -> None:
        """Nothing is under way."""

    def leave(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array

    def take(self, array: Any, out: NDArray[Any]) -> None:
        """As the protocol says; a tensor comes to the host first."""
        out[:] = on_host(array)

    def clear(self, array: NDArray[Any]) -> None:
        """As the protocol says."""
        array.fill(0)

    def sum_ranks(self, group: "RankGroup", array: NDArray[np.float32]) -> None:
        """As the protocol says."""
        group.sum(array)

    def gather_ranks(
        self, group: "RankGroup", part_RV: NDArray[np.float32], columns: int
    ) -> NDArray[np.float32]:
        """As the protocol says."""
        return np.asarray(group.gather(part_RV, columns))

    def gate_mul(
        self,
        gate_up_T2F: NDArray[np.float32],
        activation: Activation,
        out_TF: NDArray[np.float32],
    ) -> None:
        """As the protocol says."""
        _GATES[activation.kind](gate_up_T2F, out_TF)

    def add(self, x_TM: NDArray[np.float32], out_TM: NDArray[np.float32]) -> None:
        """As the protocol says."""
        np.add(out_TM, x_TM, out=out_TM)

    def scale(self, x_TN: NDArray[np.float32], factor: float | NDArray[np.float32]) -> None:
        """As the protocol says."""
        by_row = np.float32(factor) if isinstance(factor, float) else factor[:, None]
        np.multiply(x_TN, by_row, out=x_TN)

    def wanted_rows(self, x_TM: NDArray[np.float32], step: _Step) -> NDArray[np.float32]:
        """As the protocol says."""
        return x_TM[step.batch.logit_rows_R]

    def to_numpy(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array

    def bound(self, x_TN: NDArray[np.float32], limit: float) -> None:
        """As the protocol says."""
        x_TN /= np.float32(limit)
        np.tanh(x_TN, out=x_TN)
        x_TN *= np.float32(limit)

    def step_guard(self) -> AbstractContextManager[Any]:
        """There is nothing to guard."""
        return nullcontext()


def _set_rows(weight: kernels.LinearWeight, start: int, part: Matrix) -> None:
    part = _in_codes(part, weight.format)
    if _is_held_as(part, weight.format):
        if weight.format in BLOCK_FORMATS:
            weight.set_rows_blocks(start, _blocks(part))
        else:
            weight.set_rows_quantized(start, *_held(part))
        return
    # Floats of a whole output matrix would take more than the rest of the model.
    step = kernels.head_rows(max(1, _PIECE_WEIGHTS // part.shape[1]))  # whole panels
    for at in range(0, len(part), step):
        weight.set_rows(start + at, _readable(floats_of(part[at : at + step])))


def _in_codes(part: Matrix, weight_format: str) -> Matrix:
    """A matrix whose blocks are not what a format holds, without them: it may hold its codes."""
    if isinstance(part, BlockRows) and part.weight_format != weight_format:
        return part.taken_apart()
    return part


def _is_held_as(part: Matrix, weight_format: str) -> bool:
    return isinstance(part, QuantizedRows | BlockRows) and part.weight_format == weight_format


def _held(part: Matrix) -> tuple[HostArray, HostArray]:
    """What is held in a weight's own format is taken as it is: its codes and scales."""
    assert isinstance(part, QuantizedRows)
    return part.for_kernels()


def _blocks(part: Matrix) -> HostArray:
    """The same of blocks."""
    assert isinstance(part, BlockRows)
    return part.blocks


def _readable(part: HostArray) -> HostArray:
    """Float16 is widened, which is exact; the kernels read the other two as they are, by rows."""
    floats = to_float32(part) if part.dtype == np.float16 else bits_of(part)
    return np.ascontiguousarray(floats)
