"""What a decode step of a fixed number of rows brings to a device, always in the same memory.

Shapes: T rows, B = T requests of one token each, P pages of each, M model width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.models.batch import ForwardBatch
from inlay.models.embedding import Embedding
from inlay.models.kv_pool import KvPart
from inlay.models.ops import RopeTables, slots_of
from inlay.models.recorder import make_current
from inlay.models.torch_ops import TorchStep

_ALIGNED = 4  # int32 numbers: 16 bytes, which is what a GPU loads at once


class StepInputs:
    """Buffers of the host and of a device for the same, and the step that they make.

    Rows that a batch does not fill store nothing, see nothing, and begin as zeros.

    Args:
        rows: T.
        pages: P.
        hidden: M where the stage begins with tokens; else 0.
        pairs: that are rotated, of each table of rotary positions.

    Attributes:
        step: in the device's memory. What it has of `batch` are the host's buffers.
        embedded_TM: float32, of the device.
    """

    def __init__(
        self,
        rows: int,
        pages: int,
        hidden: int,
        pairs: Sequence[int],
        pool: KvPart,
        device: torch.device,
    ) -> None:
        sizes = {
            "slots": 2 * rows,  # int64
            "positions": rows,
            "contexts": rows,
            "logit_rows": rows,
            "pages": rows * pages,
            "embedded": rows * hidden,  # float32
        }
        total = sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes.values())
        self._here = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._there = torch.zeros(total, dtype=torch.int32, device=device)
        here, there = _cut(self._here, sizes), _cut(self._there, sizes)
        self._slots_T: NDArray[np.int64] = here["slots"].view(torch.int64).numpy()
        self._positions_T: NDArray[np.int32] = here["positions"].numpy()
        self._contexts_B: NDArray[np.int32] = here["contexts"].numpy()
        self._logit_rows_R: NDArray[np.int32] = here["logit_rows"].numpy()
        self._page_table_BP: NDArray[np.int32] = here["pages"].view(rows, pages).numpy()
        embedded_TM = here["embedded"].view(torch.float32).view(rows, hidden)
        self._embedded_TM: NDArray[np.float32] = embedded_TM.numpy()
        self.embedded_TM = there["embedded"].view(torch.float32).view(rows, hidden)
        self._there_positions_T = there["positions"]
        starts = np.arange(rows + 1, dtype=np.int32)
        batch = ForwardBatch(
            token_ids_T=np.zeros(rows, np.int32),
            positions_T=self._positions_T,
            query_starts_B1=starts,
            context_lens_B=self._contexts_B,
            page_table_BP=self._page_table_BP,
            logit_rows_R=self._logit_rows_R,
        )
        self.step = TorchStep(
            batch=batch,
            pool=pool,
            ropes=tuple(
                (
                    torch.zeros((rows, 1, count), device=device),
                    torch.zeros((rows, 1, count), device=device),
                )
                for count in pairs
            ),
            slots_T=there["slots"].view(torch.int64),
            query_starts_B1=torch.from_numpy(starts).to(device),
            context_lens_B=there["contexts"],
            page_table_BP=there["pages"].view(rows, pages),
            logit_rows_R=there["logit_rows"],
        )

    def load(
        self, batch: ForwardBatch, embedding: Embedding | None, ropes: Sequence[RopeTables]
    ) -> TorchStep:
        """Bring a batch; the buffers' last one has arrived.

        Args:
            embedding: None: the stage does not begin with tokens.
            ropes: cosines and sines of rotary positions, each `[S, C]`.

        Returns:
            The step with the batch's wanted rows.

        Cost: one copy, and a launch for each table of cosines or sines.
        """
        make_current(self._there.device)
        rows, wanted = len(batch.token_ids_T), len(batch.logit_rows_R)
        pages = min(batch.page_table_BP.shape[1], self._page_table_BP.shape[1])
        self._slots_T[:rows] = slots_of(batch, self.step.pool.format.page_tokens)
        self._slots_T[rows:] = -1
        for buffer, values in (
            (self._positions_T, batch.positions_T),
            (self._contexts_B, batch.context_lens_B),
        ):
            buffer[:rows] = values
            buffer[rows:] = 0
        self._logit_rows_R[:wanted] = batch.logit_rows_R
        self._page_table_BP[:rows, :pages] = batch.page_table_BP[:, :pages]
        if embedding is not None:
            embedding.gather(batch.token_ids_T, self._embedded_TM[:rows])
            self._embedded_TM[rows:] = 0
        self._there.copy_(self._here, non_blocking=True)
        for tables, outs in zip(ropes, self.step.ropes, strict=True):
            for table_SC, out_T1C in zip(tables, outs, strict=True):
                torch.index_select(table_SC, 0, self._there_positions_T, out=out_T1C[:, 0])
        return replace(self.step, logit_rows_R=self.step.logit_rows_R[:wanted])


def _cut(buffer: Tensor, sizes: dict[str, int]) -> dict[str, Any]:
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = buffer[start : start + size]
        start += -(-size // _ALIGNED) * _ALIGNED
    return parts
