"""What a rank of a tensor parallel model reads of each tensor, and adds of an adapter.

Rows of matrices are read alone; of columns, which lie apart in a file, the whole matrix passes
through memory and the rank's part stays.
"""

from dataclasses import replace

import numpy as np

from inlay.core.model_shape import ModelShape
from inlay.core.tensor_parallel import Rank
from inlay.models.adapter import AdapterPair
from inlay.models.checkpoint import Tensors
from inlay.models.published.rows import BlockRows, Matrix, QuantizedRows, columns_of
from inlay.models.weight_files import Index

_AFTER_A_SUM = ("output_bias", "down_bias", "expert_down_bias", "experts_down_bias")
"""Of each of these one rank has what is added, the others zeros."""


class RankSlices:
    """The parts of a model's tensors that one rank has.

    Args:
        shape: of the whole model.
        columns_first: as in `NameRow`.
    """

    def __init__(self, shape: ModelShape, rank: Rank, *, columns_first: bool) -> None:
        self._zeros = () if rank.is_first else _AFTER_A_SUM
        self._columns_first = columns_first
        heads, kv_heads = rank.part(shape.heads), rank.kv_part(shape.kv_heads)
        wide, expert = rank.part(shape.intermediate), rank.part(shape.moe_intermediate)
        shared, vocab = rank.part(shape.shared_intermediate), rank.part(shape.vocab)
        queries, values = _rows(heads, shape.head_dim), _rows(heads, shape.value_dim)
        self._of_rows = {
            **dict.fromkeys(("q", "q_bias", "q_up"), queries),
            **dict.fromkeys(("k", "k_bias", "v", "v_bias"), _rows(kv_heads, shape.head_dim)),
            "sinks": _rows(heads),
            **dict.fromkeys(("gate", "gate_bias", "up", "up_bias"), _rows(wide)),
            **dict.fromkeys(("shared_gate", "shared_up"), _rows(shared)),
            **dict.fromkeys(
                ("expert_gate", "expert_gate_bias", "expert_up", "expert_up_bias"), _rows(expert)
            ),
            # The embedding itself is viewed, not read: these are rows of a tied output matrix.
            **dict.fromkeys(("head", "embedding"), _rows(vocab)),
        }
        if shape.mla:
            self._of_rows["kv_up"] = _rows(heads, shape.mla.nope_dim + shape.mla.value_dim)
        self._of_columns = {
            "output": values,
            "down": _rows(wide),
            "shared_down": _rows(shared),
            "expert_down": _rows(expert),
        }
        gates = np.arange(shape.moe_intermediate)[_rows(expert)]
        fused = np.concatenate((gates, gates + shape.moe_intermediate))
        both = _rows(expert, 2) if columns_first else fused  # gate and up alternate, or follow
        self._of_one = {"experts_gate_up": both, "experts_gate_up_bias": both}
        self._down = _rows(expert)

    def read(self, tensors: Tensors, part: str, name: str, index: Index) -> Matrix:
        """This rank's part of a tensor, or of one expert's of those that have all."""
        if part in self._of_rows and index is None:
            return tensors.get(name, self._of_rows[part])
        matrix = tensors.get(name, index)
        if isinstance(matrix, BlockRows):  # columns are no blocks
            matrix = matrix.taken_apart()
        if part in self._zeros:
            assert not isinstance(matrix, QuantizedRows)
            return np.zeros_like(matrix)
        if part in self._of_columns:
            return columns_of(matrix, self._of_columns[part])
        # Quantised experts have rows first, in files whose floats have columns first, too.
        turned = self._columns_first and not isinstance(matrix, QuantizedRows) and matrix.ndim == 2
        if part in self._of_one:
            both = self._of_one[part]
            return matrix[:, both] if turned else matrix[both]
        if part == "experts_down":
            return matrix[self._down] if turned else columns_of(matrix, self._down)
        return matrix

    def pair(self, part: str, pair: AdapterPair) -> AdapterPair:
        """What this rank adds of a pair: rows of the matrix are rows of B, its columns those of A,
        whose products join the sum over ranks. What is the same in all ranks stays whole.
        """
        if part in self._of_rows:
            return replace(pair, b=pair.b[self._of_rows[part]])
        if part in self._of_columns:
            return replace(pair, a=pair.a[:, self._of_columns[part]])
        return pair


def _rows(part: range, each: int = 1) -> slice:
    return slice(part.start * each, part.stop * each)
