"""One step's work as the engine hands it to the model: NumPy arrays, no torch.

Shapes: T tokens of the step, B requests, P pages per request (padded), R rows whose logits are
wanted, L mixture-of-experts layers, K experts per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights

Int32Array = NDArray[np.int32]
LayerDone = Callable[[int, Any], None]
"""`(layer, mark)`: a layer's keys and values are in the pool when `mark()` returns, which waits for
the device and may be called in any thread; None: they are there now."""


class AdapterRows(NamedTuple):
    """Rows `first` to `end` of a step, which an adapter adds to."""

    adapter: "AdapterWeights"
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """New tokens of B requests, laid end to end. All arrays are int32 and C-contiguous.

    Attributes:
        token_ids_T: the new tokens.
        positions_T: their positions in their requests, ascending without gaps per request.
        query_starts_B1: rows of request b are `query_starts[b]` to `query_starts[b + 1]`.
        context_lens_B: tokens of each request in the pool after this step.
        page_table_BP: page ids of each request in order, padded with any valid id.
        logit_rows_R: rows of T whose logits are wanted.
        decode_T: bool, contiguous; the tokens that were generated, whose experts may be deferred.
            None: none of them.
        layer_done: called when a layer has written its keys and values, in all ranks, while the
            step goes on.
        expert_ids_LTK: if given, filled with the experts chosen per mixture-of-experts layer.
        adapters: which rows of T have one, in the order of these rows.
    """

    token_ids_T: Int32Array
    positions_T: Int32Array
    query_starts_B1: Int32Array
    context_lens_B: Int32Array
    page_table_BP: Int32Array
    logit_rows_R: Int32Array
    decode_T: NDArray[np.bool_] | None = None
    expert_ids_LTK: Int32Array | None = None
    layer_done: LayerDone | None = None
    adapters: Sequence[AdapterRows] = ()

    def __post_init__(self) -> None:
        tokens, requests = len(self.token_ids_T), len(self.context_lens_B)
        for name, array, ndim in (
            ("token_ids_T", self.token_ids_T, 1),
            ("positions_T", self.positions_T, 1),
            ("query_starts_B1", self.query_starts_B1, 1),
            ("context_lens_B", self.context_lens_B, 1),
            ("page_table_BP", self.page_table_BP, 2),
            ("logit_rows_R", self.logit_rows_R, 1),
        ):
            if array.dtype != np.int32 or array.ndim != ndim or not array.flags.c_contiguous:
                raise ArgumentError(
                    f"{name} must be a contiguous int32 array of {ndim} dimensions, got "
                    f"{array.dtype} of shape {array.shape}"
                )
        if tokens < 1 or len(self.positions_T) != tokens:
            raise ArgumentError(
                f"positions_T has {len(self.positions_T)} entries for {tokens} tokens (at least 1)"
            )
        if (
            len(self.query_starts_B1) != requests + 1
            or len(self.page_table_BP) != requests
            or self.query_starts_B1[0] != 0
            or self.query_starts_B1[-1] != tokens
        ):
            raise ArgumentError(
                f"query_starts_B1 {self.query_starts_B1.tolist()} and page_table_BP of "
                f"{len(self.page_table_BP)} rows do not describe {requests} requests of together "
                f"{tokens} tokens"
            )
