"""A random model as a checkpoint would hold it: its tensors by name, drawn when asked for."""

from functools import lru_cache

import numpy as np

from benchmarks.models.random_model import Array, RandomModel, Stack
from inlay.models.float_arrays import BFLOAT16
from inlay.models.weight_files import Index
from inlay.models.weight_names import names_of

# The matrices of one layer: experts are asked for one by one, with gate, up and down in turn.
KEPT_STACKS = 8


class RandomTensors:
    """Named bf16 tensors of a random model; norms are 1, biases 0."""

    def __init__(self, model: RandomModel) -> None:
        names = names_of(model.shape).names
        self._vectors = {
            names[part].format(layer=layer): (n, float(part.endswith("norm")))
            for part, layer, n in model.vectors()
        }
        self._places: dict[str, tuple[int, int | None]] = {}
        for index, (part, layer, _, copies) in enumerate(model.matrices()):
            if part.startswith("expert_"):
                for expert in range(copies):
                    name = names[part].format(layer=layer, expert=expert)
                    self._places[name] = (index, expert)
            else:
                self._places[names[part].format(layer=layer)] = (index, None)

        @lru_cache(KEPT_STACKS)
        def stack(index: int) -> tuple[Stack, Array]:
            drawn = model.stack(index)
            return drawn, (drawn.base_RK.view(np.uint32) >> 16).astype(np.uint16)

        self._stack = stack

    def view(self, name: str) -> Array:
        """As `get`."""
        return self.get(name)

    def give_back(self) -> None:
        """No file is mapped."""

    def get(self, name: str, index: Index = None) -> Array:
        """A new tensor, or some rows of it. Raises KeyError for a name it does not have."""
        if name in self._vectors:
            length, value = self._vectors[name]
            return np.full(length, value, BFLOAT16)
        number, expert = self._places[name]
        stack, bits_RK = self._stack(number)
        if expert is not None:
            bits = stack.copy(expert, bits_RK)
        else:
            bits = np.concatenate([stack.copy(copy, bits_RK) for copy in range(stack.copies)])
        return (bits if index is None else bits[index]).view(BFLOAT16)
