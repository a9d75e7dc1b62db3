"""The operations that the generic decoder is made of. Two backends implement them.

`native_ops` calls the CPU kernels of `inlay.kernels` on NumPy arrays; `torch_ops` is plain
PyTorch for any device, and the second implementation that the tests compare the first with.

All activations are float32 rows, in the backend's own arrays, whose first rows are taken with
`array[:rows]`. Weights come as NumPy arrays, with dtypes of `ml_dtypes` where NumPy has none of its
own. Shapes: T tokens, B requests, P pages per request, M model width, N output width,
F MLP or expert width, H heads, G key/value heads, D head width, E experts, K experts per token,
C rotated pairs, S positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.model_shape import Activation, RouterShape
from inlay.models import float_arrays
from inlay.models.batch import ForwardBatch
from inlay.models.embedding import Embedding
from inlay.models.hand_over import HandOverLine, Residents
from inlay.models.kv_pool import KvPart
from inlay.models.published.rows import Matrix

if TYPE_CHECKING:
    from inlay.models.rank_group import RankGroup
    from inlay.models.recorder import Recorder

Array = Any  # numpy.ndarray or torch.Tensor, of one backend
HostArray = float_arrays.Array  # of weights
RopeTables = tuple[Array, Array]
Linear = Any  # a backend's packed matrix with its bias
Experts = Any  # a backend's packed experts of one layer
Step = Any  # what a backend prepares once per step
LinearAdapter = Any  # what a backend adds to a linear layer for an adapter; has `nbytes`
ExpertAdapter = Any  # and to the experts of a layer
ExpertPairs = dict[tuple[int, str], tuple[HostArray, HostArray, float]]
"""For an expert and `gate`, `up` or `down`: A, B and the scale, as in `AdapterPart`."""


class ExpertTensors(NamedTuple):
    """One expert as its files have it: gate and up `[F, M]`, down `[M, F]`, and their biases."""

    gate_FM: Matrix
    up_FM: Matrix
    down_MF: Matrix
    biases: tuple[HostArray, HostArray, HostArray] | None = None


class AdapterPart(NamedTuple):
    """What an adapter adds to some columns of a product, `scale * B A x` of some columns of x.

    Attributes:
        x_column, out_column: the first of them.
        a, b: float32, contiguous, `[r, K]` and `[N, r]`.
    """

    x_column: int
    out_column: int
    a: HostArray
    b: HostArray
    scale: float


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """What one layer's attention does besides its matrices.

    Attributes:
        layer: number of the layer, its place in a page.
        window: tokens that a query sees, 0 for all.
        scale: of the scores.
        softcap: bounds them, `softcap * tanh(score / softcap)`; 0: they are not bounded.
        rope: which of the step's tables of rotary positions it takes.
        eps: of the norms of q and k.
        q_norm_D, k_norm_D: norm weights of heads, or None.
        rotate_first: those norms come after the rotation.
        sinks_H: a score per head that takes part in the softmax alone, or None.
        value_dim: in latent attention the leading elements of a key that are its value, and what is
            rotated are its last; 0: values are stored beside keys.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    scale: float
    eps: float
    q_norm_D: Array | None
    k_norm_D: Array | None
    rotate_first: bool = False
    softcap: float = 0.0
    rope: int = 0
    sinks_H: Array | None = None
    value_dim: int = 0


class Ops(Protocol):
    """What a backend provides. Results are written into the arrays given."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def device(self) -> str:
        """Where it computes: `cpu`, or a kind and number such as `cuda:0`."""
        ...

    def free_bytes(self) -> int:
        """Memory of the device that can still be taken."""
        ...

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """Formats in which it holds matrices."""
        ...

    def auto_format(self, float_dtype: str) -> str:
        """What `auto` means for files of this dtype."""
        ...

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Dtypes of keys and values that it reads and writes."""
        ...

    def empty(self, rows: int, width: int, dtype: str = "float32") -> Array:
        """Memory for activations; `dtype` is `float32` or `int32`."""
        ...

    def zeros(self, size: tuple[int, ...], dtype: str) -> Array:
        """Memory for keys and values; on a CPU the system provides it when it is first used."""
        ...

    def array(self, values: NDArray[Any]) -> Array:
        """The values on the backend's device."""
        ...

    def vector(self, values: HostArray) -> Array:
        """A copy as float32, for norms."""
        ...

    def pack_linear(
        self, parts_NM: Sequence[Matrix], bias_parts_N: Sequence[HostArray], weight_format: str
    ) -> Linear:
        """Stack matrices by rows into one weight; copies, the parts may go."""
        ...

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
        """Memory for the experts of a layer, with biases or without.

        Args:
            down_format: of the matrices back to `hidden`, where that is another; of backends whose
                `weight_formats` have blocks.
        """
        ...

    def set_expert(self, experts: Experts, number: int, tensors: ExpertTensors) -> None:
        """Pack one of them. Threads may pack different ones at once.

        Raises:
            OSError: a file of the tensors cannot be read any more.
        """
        ...

    def pack_heads(self, parts_HNK: Sequence[HostArray], weight_format: str) -> Linear:
        """A matrix for each head."""
        ...

    def linear_adapter(self, parts: Sequence[AdapterPart]) -> LinearAdapter:
        """What an adapter adds to a linear layer.

        Raises:
            UnsupportedModelError: the backend adds nothing.
        """
        ...

    def expert_adapter(
        self, experts: int, hidden: int, width: int, pairs: ExpertPairs
    ) -> ExpertAdapter:
        """What an adapter adds to the experts of a layer. Raises as `linear_adapter`."""
        ...

    def add_adapters(
        self, x_TK: Array, adapters: Sequence[tuple[LinearAdapter, int, int]], out_TN: Array
    ) -> None:
        """Add what adapters do to rows first to end of a product; theirs are apart, in order."""
        ...

    def begin(self, batch: ForwardBatch, pool: KvPart, ropes: Sequence[RopeTables]) -> Step:
        """Bring a batch to the device and derive what all layers need.

        Args:
            ropes: cosines and sines, each `[S, C]`, which layers take by `AttentionSpec.rope`.
        """
        ...

    def embed(self, embedding: Embedding, step: Step, out_TM: Array) -> None:
        """Rows of the embedding for the step's tokens."""
        ...

    def rms_norm(self, x_TM: Array, weight_M: Array, eps: float, out_TM: Array) -> None:
        """`x / sqrt(mean(x^2) + eps) * weight`; out may be x."""
        ...

    def linear(
        self, x_TM: Array, weight: Linear, out_TN: Array, *, accumulate: bool = False
    ) -> None:
        """`x W^T + bias`, added to what `out` holds if `accumulate`."""
        ...

    def linear_heads(self, x_THK: Array, weight: Linear, out_THN: Array) -> None:
        """`x W^T` with the matrix of each head."""
        ...

    def rope_and_store(self, qkv_TN: Array, spec: AttentionSpec, step: Step) -> None:
        """Normalise and rotate q and k of fused rows in place; write k and v to the pool. In latent
        attention there is one k, and no v.
        """
        ...

    def attention(self, q_THD: Array, spec: AttentionSpec, step: Step, out_THD: Array) -> None:
        """Causal attention of the new queries over the pool's keys and values."""
        ...

    def route(
        self,
        logits_TE: Array,
        router: RouterShape,
        correction_E: Array | None,
        out_ids_TK: Array,
        out_weights_TK: Array,
    ) -> None:
        """Choose K experts for each token, and weigh them, as `RouterShape` says."""
        ...

    def moe(
        self,
        x_TM: Array,
        experts: Experts | None,
        ids_TK: Array,
        weights_TK: Array,
        out_TM: Array,
        *,
        activation: Activation,
        shared: Experts | None,
        adapters: Sequence[tuple[ExpertAdapter | None, ExpertAdapter | None, int, int]] = (),
    ) -> None:
        """Add the weighted outputs of the chosen experts to `out`, and those of shared ones. Of
        experts that are not all there (`residents` made them) those that are.

        Args:
            adapters: of routed and of shared experts, and their rows first to end; apart, in order.
        """
        ...

    def residents(self, host: kernels.ExpertWeights, slots: int) -> Residents:
        """Memory for some of a layer's host experts; a backend on the CPU has none.

        Raises:
            ResourceError: the device has too little memory.
        """
        ...

    def slotted(
        self, experts: Experts, num_experts: int, fill: Callable[[int, int], None]
    ) -> Residents:
        """Memory of `new_experts` as some of so many; `fill(slot, expert)` brings one there."""
        ...

    def ask(self, line: HandOverLine, layer: int, x_TM: Array, ids_TK: Array, w_TK: Array) -> None:
        """Give rows to the host's experts of a layer, once what came before is done."""
        ...

    def add_answer(self, line: HandOverLine, layer: int, out_TM: Array) -> None:
        """Add what the host made of them, once it has answered."""
        ...

    def copy(self, values: Array, out: Array) -> None:
        """Copy between arrays of this backend, in the order of its operations."""
        ...

    def mask_rows(self, ids_TK: Array, keep_T: NDArray[np.bool_]) -> Array:
        """Chosen experts of some tokens alone; the others have chosen none (-1)."""
        ...

    def mark(self) -> Callable[[], None]:
        """What waits until all operations so far are over; it may be called in another thread."""
        ...

    def recorder(self) -> "Recorder":
        """What records operations, to give them to the device again with one launch.

        Raises:
            UnsupportedModelError: they cannot be recorded; the message says why.
        """
        ...

    def settle(self) -> None:
        """Wait until all operations are over.

        Raises:
            Exception: what one of them raised.
        """
        ...

    def leave(self, array: Array) -> Array:
        """The array, ready for another backend's `take`, or for whoever reads logits."""
        ...

    def take(self, array: Array, out: Array) -> None:
        """Copy what another backend left."""
        ...

    def clear(self, array: Array) -> None:
        """Zeros."""
        ...

    def sum_ranks(self, group: "RankGroup", array: Array) -> None:
        """What all ranks have, summed in place."""
        ...

    def gather_ranks(self, group: "RankGroup", part_RV: Array, columns: int) -> Array:
        """See `RankGroup.gather`."""
        ...

    def gate_mul(self, gate_up_T2F: Array, activation: Activation, out_TF: Array) -> None:
        """What `Activation` says of the two halves of each row, gate and up."""
        ...

    def add(self, x_TM: Array, out_TM: Array) -> None:
        """`out + x`, in `out`."""
        ...

    def scale(self, x_TN: Array, factor: float | NDArray[np.float32]) -> None:
        """Multiply in place, all by one number, or each row by its own, `[T]`."""
        ...

    def wanted_rows(self, x_TM: Array, step: Step) -> Array:
        """A copy of the rows whose logits are wanted."""
        ...

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """The values as a NumPy array."""
        ...

    def bound(self, x_TN: Array, limit: float) -> None:
        """Bring numbers below a limit, `limit * tanh(x / limit)`, in place."""
        ...

    def step_guard(self) -> AbstractContextManager[Any]:
        """A context in which a step is computed: PyTorch keeps nothing for gradients there."""
        ...


def on_host(array: Array) -> NDArray[Any]:
    """A backend's array as a NumPy array; waits for its device."""
    values: NDArray[Any] = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return values


def slots_of(batch: ForwardBatch, page_tokens: int) -> NDArray[np.int64]:
    """Place of each new token in the pool, `page_id * page_tokens + offset`."""
    counts = batch.query_starts_B1[1:] - batch.query_starts_B1[:-1]
    requests_T = np.repeat(np.arange(len(counts)), counts)
    page_T, offset_T = np.divmod(batch.positions_T, np.int32(page_tokens))
    slots: NDArray[np.int64] = (
        batch.page_table_BP[requests_T, page_T].astype(np.int64) * page_tokens + offset_T
    )
    return slots
