"""A quantised model with adapters merged into it, in the form that its makers published."""

from collections.abc import Mapping
from typing import Any

from inlay.core.model_shape import ModelShape
from inlay.models.conversion.shards import Shards, ShardTensor
from inlay.models.float_arrays import Array, to_float32
from inlay.models.published.files import QuantizedFiles, StoredTensor
from inlay.models.published.rows import floats_of
from inlay.models.weight_names import expected_tensors
from inlay.tune.merge import MergedTensors


class RequantizedProduct(Shards):
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
        self._stored = {
            one.name: one
            for expected in expected_tensors(shape, fused_experts=fused)
            for one in files.stored(expected)
        }
        super().__init__(
            [
                ShardTensor(one.name, one.shape, one.dtype, one.rows_together)
                for one in self._stored.values()
            ],
            fingerprint=merged.fingerprint(shape),
            shard_bytes=shard_bytes,
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        return {
            "target": f"as published in {len(self.files)} safetensors",
            "source": self.fingerprint,
        }

    def give_back(self) -> None:
        """As the protocol says."""
        self._merged.give_back()

    def make_rows(self, tensor: ShardTensor, rows: slice) -> Array:
        """As `Shards` says."""
        one = self._stored[tensor.name]
        if not self._merged.is_changed(one.matrix) or (one.number or 0) > 1:
            return self._files.get_stored(one.name, rows)
        if one.number is None:
            values = floats_of(self._merged.get(one.matrix, rows))
        else:
            values = self._quantized(one, rows)
        return values.astype(tensor.dtype, copy=False)

    def _quantized(self, one: StoredTensor, rows: slice) -> Array:
        of_matrix = slice(rows.start * one.matrix_rows, rows.stop * one.matrix_rows)
        merged = to_float32(floats_of(self._merged.get(one.matrix, of_matrix)))
        assert one.number is not None
        return self._files.quantize(one.matrix, merged)[one.number]
