"""A quantised model with adapters merged into it, in the form that its makers published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.core.model_shape import ModelShape
from inlay.models.conversion.pieces import Each, Piece
from inlay.models.conversion.shards import Shards, ShardTensor
from inlay.models.quantized import QuantizedFiles, StoredTensor, floats_of
from inlay.models.weight_names import expected_tensors
from inlay.tune.merge import MergedTensors


class RequantizedProduct:
    """Shards in which what adapters change is quantised anew. Implements `Product`.

    What they leave alone keeps its bits, codes and scales too.

    Args:
        files: of the model.
        merged: the same with adapters.
        fused: whether their experts are fused.
        shard_bytes: as `Shards` takes it.

    Cost: what an adapter changes is merged twice, once for its codes and once for its scales.
    """

    def __init__(
        self,
        shape: ModelShape,
        files: QuantizedFiles,
        merged: MergedTensors,
        *,
        fused: bool,
        shard_bytes: int | None = None,
    ) -> None:
        self._files, self._merged = files, merged
        self._fingerprint = merged.fingerprint(shape)
        self._stored = {
            one.name: one
            for expected in expected_tensors(shape, fused_experts=fused)
            for one in files.stored(expected)
        }
        self._shards = Shards(
            [
                ShardTensor(one.name, one.shape, one.dtype, one.rows_together)
                for one in self._stored.values()
            ],
            self._make,
            fingerprint=self._fingerprint,
            shard_bytes=shard_bytes,
        )

    @property
    def files(self) -> Mapping[str, int]:
        """As the protocol says."""
        return self._shards.files

    @property
    def pieces(self) -> Sequence[Piece]:
        """As the protocol says."""
        return self._shards.pieces

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        return {
            "target": f"as published in {len(self.files)} safetensors",
            "source": self._fingerprint,
        }

    def give_back(self) -> None:
        """As the protocol says."""
        self._merged.give_back()

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """As `Shards.seal`."""
        return self._shards.seal(files, each)

    def is_in(self, directory: Path) -> bool:
        """As the protocol says."""
        return self._shards.is_in(directory)

    def _make(self, tensor: ShardTensor, rows: slice) -> Tensor:
        one = self._stored[tensor.name]
        if not self._merged.is_changed(one.matrix) or (one.number or 0) > 1:
            return self._files.get_stored(one.name, rows)
        if one.number is None:
            return floats_of(self._merged.get(one.matrix, rows)).to(tensor.dtype)
        return self._quantized(one, rows).to(tensor.dtype)

    def _quantized(self, one: StoredTensor, rows: slice) -> Tensor:
        of_matrix = slice(rows.start * one.matrix_rows, rows.stop * one.matrix_rows)
        merged = floats_of(self._merged.get(one.matrix, of_matrix)).to(torch.float32)
        assert one.number is not None
        return self._files.quantize(merged)[one.number]
