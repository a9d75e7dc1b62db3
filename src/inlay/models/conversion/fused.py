"""Experts of files that have them one by one, as the tensors of a layer that makers publish."""

from collections.abc import Callable

import numpy as np

from inlay.core.model_shape import ModelShape
from inlay.models.checkpoint import Checkpoint, Tensors
from inlay.models.embedding import Embedding
from inlay.models.float_arrays import Array
from inlay.models.published.rows import Matrix, floats_of, in_turn
from inlay.models.weight_files import Index
from inlay.models.weight_names import names_of


class FusedExperts:
    """`Tensors` of an architecture with columns first and gate and up in turn, as gpt-oss."""

    def __init__(self, tensors: Checkpoint, shape: ModelShape) -> None:
        self._tensors: Tensors = tensors
        self._names = names_of(shape).names
        self._experts = range(shape.experts)
        makers: dict[str, Callable[[int, int], Array]] = {
            "experts_gate_up": self._gate_up,
            "experts_down": lambda layer, expert: self._part("down", layer, expert).T,
            "experts_gate_up_bias": self._gate_up_bias,
            "experts_down_bias": lambda layer, expert: self._part("down_bias", layer, expert),
        }
        self._fused = {
            self._names[part].format(layer=layer): (maker, layer)
            for part, maker in makers.items()
            for layer in shape.sparse_layers
        }

    def view(self, name: str) -> Matrix:
        """As `get`."""
        return self.get(name)

    def embedding(self, name: str) -> Embedding:
        """As the protocol says."""
        return self._tensors.embedding(name)

    def give_back(self) -> None:
        """As the protocol says."""
        self._tensors.give_back()

    def get(self, name: str, index: Index = None) -> Matrix:
        """As the protocol says; rows of experts' tensors are experts."""
        if name not in self._fused:
            return self._tensors.get(name, index)
        maker, layer = self._fused[name]
        if isinstance(index, int):
            return maker(layer, index)
        experts = self._experts if index is None else self._experts[index]
        return np.stack([maker(layer, expert) for expert in experts])

    def _gate_up(self, layer: int, expert: int) -> Array:
        return in_turn(*(self._part(part, layer, expert).T for part in ("gate", "up")))

    def _gate_up_bias(self, layer: int, expert: int) -> Array:
        return in_turn(*(self._part(part, layer, expert) for part in ("gate_bias", "up_bias")))

    def _part(self, part: str, layer: int, expert: int) -> Array:
        name = self._names[f"expert_{part}"].format(layer=layer, expert=expert)
        return floats_of(self._tensors.get(name))
