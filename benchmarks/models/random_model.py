"""Random weights in the shape of a known model, a matrix at a time and the same for every program.

A model of 30e9 weights is never drawn as a whole: the experts of a layer are one matrix per role,
each with its rows rolled one further, and a table of the vocabulary is 16 blocks, each with its
columns rolled by 128, or by as large a power of two below that as divides them. Rolling keeps
quantisation groups whole, so a writer quantises the first copy and rolls the result.

Legend: R rows, K columns (the side that a product sums over).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.models.weight_names import layer_parts

Array = np.ndarray[Any, Any]

ROLLED_COLUMNS = 128
TABLE_BLOCKS = 16
DEVIATION = 0.02


class RandomModel:
    """A model whose weights follow from a seed.

    Args:
        known: one of `inlay.core.known_models`.
        changed: entries of its config.json to replace, e.g. `num_hidden_layers=12`.

    Attributes:
        config: its config.json.
        shape: what that means.
    """

    def __init__(self, known: str, seed: int, **changed: Any) -> None:
        config = known_config(known)
        if config is None:
            raise ValueError(f"{known} is no known model")
        self.config = config | changed
        self.shape: ModelShape = shape_of(self.config)
        self.seed = seed
        self._matrices = list(self.matrices())

    def vectors(self) -> Iterator[tuple[str, int | None, int]]:
        """Part, layer and length of every norm and bias."""
        yield "final_norm", None, self.shape.hidden
        for layer in range(self.shape.layers):
            for part, size in layer_parts(self.shape, layer).items():
                if len(size) == 1:
                    yield part, layer, size[0]

    def matrices(self) -> Iterator[tuple[str, int | None, tuple[int, int], int]]:
        """Part, layer, shape [R, K] of one copy, and number of copies, in the order of `stacks`."""
        shape = self.shape
        block = (shape.vocab // TABLE_BLOCKS, shape.hidden)
        yield "embedding", None, block, TABLE_BLOCKS
        if not shape.tie_embeddings:
            yield "head", None, block, TABLE_BLOCKS
        for layer in range(shape.layers):
            for part, size in layer_parts(shape, layer).items():
                if len(size) == 2:
                    yield part, layer, (size[0], size[1]), 1
            if layer in shape.sparse_layers:
                yield "expert_gate", layer, (shape.moe_intermediate, shape.hidden), shape.experts
                yield "expert_up", layer, (shape.moe_intermediate, shape.hidden), shape.experts
                yield "expert_down", layer, (shape.hidden, shape.moe_intermediate), shape.experts

    def stacks(self) -> Iterator["Stack"]:
        """All matrices, drawn as they are asked for."""
        for index in range(len(self._matrices)):
            yield self.stack(index)

    def stack(self, index: int) -> "Stack":
        """One of `matrices`, by its place there."""
        part, layer, shape, copies = self._matrices[index]
        draw = np.random.default_rng((self.seed, index))
        base_RK = draw.standard_normal(shape, np.float32) * np.float32(DEVIATION)
        base_RK.view(np.uint32)[...] &= 0xFFFF0000
        return Stack(part=part, layer=layer, base_RK=base_RK, copies=copies)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Copies of one random matrix, each rolled further.

    Attributes:
        part: the role, in the words of `inlay.models.weight_names`.
        layer: None for the tables of the vocabulary.
        base_RK: the first copy: float32 that bf16 holds exactly.
        copies: experts of a layer, blocks of a table, or 1.
    """

    part: str
    layer: int | None
    base_RK: Array
    copies: int = 1

    def copy(self, index: int, array: Array | None = None) -> Array:
        """One copy of the base, or of what quantisation made of it: rows first, K second.

        An array with one column, a scale per row, is common to the blocks of a table.
        """
        array = self.base_RK if array is None else array
        if self.layer is not None:
            return np.roll(array, index, 0)
        if array.shape[1] == 1:
            return array
        width = self.base_RK.shape[1]
        columns = array.reshape(len(array), width // math.gcd(width, ROLLED_COLUMNS), -1)
        return np.roll(columns, index, 1).reshape(array.shape)
