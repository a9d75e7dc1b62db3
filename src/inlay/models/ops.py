"""The operations that the generic decoder is made of. Two backends implement them.

`native_ops` calls the CPU kernels of `inlay.kernels`; `torch_ops` is plain PyTorch for any
device, and the second implementation that the tests compare the first with.

All activations are float32 rows. Shapes: T tokens, B requests, P pages per request, M model
width, N output width, F MLP or expert width, H heads, G key/value heads, D head width, E
experts, K experts per token, C rotated pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.models.batch import ForwardBatch
from inlay.models.kv_pool import KvPool

Linear = Any  # a backend's own packed weight, with `bytes_of` in `Ops`
Experts = Any
ExpertSource = Callable[[int], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class StepInputs:
    """A `ForwardBatch` on the model's device, and what all layers derive from it.

    Attributes:
        batch: the arrays as given, on the CPU.
        slots_T: place of each new token in the pool, `page_id * page_tokens + offset`.
    """

    batch: ForwardBatch
    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    query_starts_B1: Tensor
    context_lens_B: Tensor
    page_table_BP: Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, page_tokens: int, device: torch.device) -> "StepInputs":
        """Move the batch to the device and find the slots of its tokens."""

        def on_device(array: NDArray[Any]) -> Tensor:
            tensor = torch.from_numpy(array)
            return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)

        counts = np.diff(batch.query_starts_B1)
        requests_T = np.repeat(np.arange(len(counts)), counts)
        page_T, offset_T = np.divmod(batch.positions_T, np.int32(page_tokens))
        slots_T = batch.page_table_BP[requests_T, page_T].astype(np.int64) * page_tokens + offset_T
        return cls(
            batch=batch,
            token_ids_T=on_device(batch.token_ids_T),
            positions_T=on_device(batch.positions_T),
            slots_T=on_device(slots_T),
            query_starts_B1=on_device(batch.query_starts_B1),
            context_lens_B=on_device(batch.context_lens_B),
            page_table_BP=on_device(batch.page_table_BP),
        )


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """What one layer's attention does besides its weights.

    Attributes:
        layer: number of the layer, its place in a page.
        window: tokens that a query sees, 0 for all.
        scale: of the scores.
        q_norm_D, k_norm_D: norm weights of heads, or None.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    scale: float
    eps: float
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None


class Ops(Protocol):
    """What a backend provides. Outputs are written into the tensors given; nothing is returned."""

    kv_dtypes: tuple[str, ...]

    def pack_linear(
        self, parts_NM: Sequence[Tensor], bias_parts_N: Sequence[Tensor], dtype: torch.dtype
    ) -> Linear:
        """Stack matrices by rows into one weight of `dtype`; copies, the parts may go."""
        ...

    def pack_experts(
        self, experts: int, hidden: int, width: int, source: ExpertSource, dtype: torch.dtype
    ) -> Experts:
        """Pack all experts of a layer; `source(e)` gives gate `[F, M]`, up and down `[M, F]`."""
        ...

    def embed(self, table_VM: Tensor, token_ids_T: Tensor, out_TM: Tensor) -> None:
        """Rows of the embedding."""
        ...

    def rms_norm(self, x_TM: Tensor, weight_M: Tensor, eps: float, out_TM: Tensor) -> None:
        """`x / sqrt(mean(x^2) + eps) * weight`."""
        ...

    def linear(
        self, x_TM: Tensor, weight: Linear, out_TN: Tensor, *, accumulate: bool = False
    ) -> None:
        """`x W^T + bias`, added to what `out` holds if `accumulate`."""
        ...

    def rope_and_store(
        self,
        qkv_TN: Tensor,
        spec: AttentionSpec,
        step: StepInputs,
        cos_SC: Tensor,
        sin_SC: Tensor,
        pool: KvPool,
    ) -> None:
        """Normalise and rotate q and k of fused rows in place; write k and v to the pool."""
        ...

    def attention(
        self, qkv_TN: Tensor, spec: AttentionSpec, step: StepInputs, pool: KvPool, out_TN: Tensor
    ) -> None:
        """Causal attention of the new queries over the pool's keys and values."""
        ...

    def route(
        self, logits_TE: Tensor, normalize: bool, out_ids_TK: Tensor, out_weights_TK: Tensor
    ) -> None:
        """Softmax, then the K largest; their weights scaled to sum 1 if `normalize`."""
        ...

    def moe(
        self, x_TM: Tensor, experts: Experts, ids_TK: Tensor, weights_TK: Tensor, out_TM: Tensor
    ) -> None:
        """Add the weighted outputs of the chosen experts to `out`."""
        ...

    def silu_mul(self, gate_up_T2F: Tensor, out_TF: Tensor) -> None:
        """`silu(gate) * up` of the two halves of each row."""
        ...

    def bytes_of(self, weight: Linear | Experts) -> int:
        """Memory that a packed weight holds."""
        ...
