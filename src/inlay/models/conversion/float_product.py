"""An ordinary Hugging Face directory of floats as pieces: tensors by rows, under their names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from inlay.core.model_shape import ModelShape
from inlay.models.checkpoint import Checkpoint, Tensors
from inlay.models.conversion.fused import FusedExperts
from inlay.models.conversion.shards import Shards, ShardTensor
from inlay.models.float_arrays import BFLOAT16, Array
from inlay.models.published.rows import BlockRows, QuantizedRows, floats_of
from inlay.models.weight_names import expected_tensors, names_of


class FloatProduct(Shards):
    """Shards of limited size, their index and checksums. Implements `Product`.

    Matrices become one dtype, whatever they are; what has one dimension (norms, biases, the
    corrections of a router) keeps its dtype, and with it its bits.

    Args:
        tensors: of a model whose experts are `fused` or not; they stay so where makers publish
            both.
        dtype: of matrices.
        shard_bytes: as `Shards` takes it.
    """

    def __init__(
        self,
        shape: ModelShape,
        tensors: Checkpoint,
        *,
        fused: bool,
        dtype: np.dtype[Any] = BFLOAT16,
        shard_bytes: int | None = None,
    ) -> None:
        self._dtype = dtype
        self._transposed = names_of(shape).columns_first
        self._source: Tensors = tensors
        if shape.experts and self._transposed and not fused:
            self._source, fused = FusedExperts(tensors, shape), True
        expected = expected_tensors(shape, fused_experts=fused)
        super().__init__(
            [self._tensor(one.name, one.shape) for one in expected],
            fingerprint=tensors.fingerprint(shape),
            shard_bytes=shard_bytes,
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        return {
            "target": f"{self._dtype.name} in {len(self.files)} safetensors",
            "source": self.fingerprint,
        }

    def give_back(self) -> None:
        """As the protocol says."""
        self._source.give_back()

    def _tensor(self, name: str, shape: tuple[int, ...]) -> ShardTensor:
        dtype = self._dtype if len(shape) > 1 else floats_of(self._source.get(name)).dtype
        return ShardTensor(name, shape, dtype)

    def make_rows(self, tensor: ShardTensor, rows: slice) -> Array:
        """As `Shards` says."""
        stored = self._source.get(tensor.name, rows)
        values = floats_of(stored)
        if isinstance(stored, QuantizedRows | BlockRows) and self._transposed and values.ndim > 2:
            values = values.swapaxes(-1, -2)  # quantised experts have rows first
        return values.astype(tensor.dtype, copy=False)
