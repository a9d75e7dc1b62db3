"""Random weights in the shape of Qwen3-MoE, one matrix at a time and the same for every program.

The writers of both sides read them from here, also in a peer's environment: NumPy only. A model of
30e9 weights is never drawn as a whole: the experts of a layer are one matrix per role, each with
its rows rolled one further, and a table of the vocabulary is 16 blocks, each with its columns
rolled by 128. Rolling keeps quantisation groups whole, so a writer quantises the first copy and
rolls the result.

Legend: R rows, K columns (the side that a product sums over).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROLLED_COLUMNS = 128
TABLE_BLOCKS = 16
DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of a model; the defaults are Qwen3-30B-A3B's."""

    layers: int = 48
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    top_k: int = 8
    intermediate: int = 768
    vocab: int = 151936
    rope_theta: float = 1e6


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
        columns = array.reshape(len(array), self.base_RK.shape[1] // ROLLED_COLUMNS, -1)
        return np.roll(columns, index, 1).reshape(array.shape)


def vectors(size: Size) -> Iterator[tuple[str, int | None, int]]:
    """Part, layer and length of every norm; their weights are all 1."""
    yield "final_norm", None, size.hidden
    for layer in range(size.layers):
        yield "attention_norm", layer, size.hidden
        yield "mlp_norm", layer, size.hidden
        yield "q_norm", layer, size.head_dim
        yield "k_norm", layer, size.head_dim


def matrices(size: Size) -> Iterator[tuple[str, int | None, tuple[int, int], int]]:
    """Part, layer, shape [R, K] of one copy, and number of copies, in the order of `stacks`."""
    block = (size.vocab // TABLE_BLOCKS, size.hidden)
    yield "embedding", None, block, TABLE_BLOCKS
    yield "head", None, block, TABLE_BLOCKS
    for layer in range(size.layers):
        yield "q", layer, (size.heads * size.head_dim, size.hidden), 1
        yield "k", layer, (size.kv_heads * size.head_dim, size.hidden), 1
        yield "v", layer, (size.kv_heads * size.head_dim, size.hidden), 1
        yield "output", layer, (size.hidden, size.heads * size.head_dim), 1
        yield "router", layer, (size.experts, size.hidden), 1
        yield "expert_gate", layer, (size.intermediate, size.hidden), size.experts
        yield "expert_up", layer, (size.intermediate, size.hidden), size.experts
        yield "expert_down", layer, (size.hidden, size.intermediate), size.experts


def stacks(size: Size, seed: int) -> Iterator[Stack]:
    """All matrices of the model that belongs to a seed, drawn as they are asked for."""
    for index in range(len(list(matrices(size)))):
        yield draw_stack(size, seed, index)


def draw_stack(size: Size, seed: int, index: int) -> Stack:
    """One of `matrices`, by its place there."""
    part, layer, shape, copies = list(matrices(size))[index]
    draw = np.random.default_rng((seed, index))
    base_RK = draw.standard_normal(shape, np.float32) * np.float32(DEVIATION)
    base_RK.view(np.uint32)[...] &= 0xFFFF0000
    return Stack(part=part, layer=layer, base_RK=base_RK, copies=copies)
