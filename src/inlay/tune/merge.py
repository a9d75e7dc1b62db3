"""A checkpoint whose tensors have adapters merged into them, a tensor at a time as it is read."""

from collections.abc import Iterable, Mapping, Sequence

from inlay.core.model_shape import ModelShape
from inlay.models.adapter import Adapter, AdapterPair
from inlay.models.checkpoint import Checkpoint
from inlay.models.embedding import FloatEmbedding
from inlay.models.float_arrays import Array, to_float32
from inlay.models.published.rows import Matrix, floats_of
from inlay.models.weight_files import Index
from inlay.models.weight_names import Expected, names_of
from inlay.tune.lora import seed_of


class MergedTensors:
    """Implements `Checkpoint`: W + scale B A, of the adapters in their order.

    What an adapter adds to is float32; what none adds to is as its file has it.

    Args:
        tensors: of the model, experts fused or not.
        adapters: of the same model.

    Cost: a product of the tensor's size and the rank, each time that it is read.
    """

    def __init__(self, tensors: Checkpoint, shape: ModelShape, adapters: Sequence[Adapter]) -> None:
        self._tensors, self._adapters = tensors, adapters
        self._stacked: Mapping[str, list[tuple[str, ...]]] = _stacked_modules(shape)

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        return self._tensors.holds(name)

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As `Checkpoint.check`."""
        self._tensors.check(expected, optional)

    def is_bfloat16(self, name: str) -> bool:
        """Whether its file is."""
        return self._tensors.is_bfloat16(name)

    def fingerprint(self, shape: ModelShape) -> str:
        """Of the weights and all adapters."""
        whole = self._tensors.fingerprint(shape)
        for adapter in self._adapters:
            whole = f"{seed_of(whole, adapter.fingerprint):032x}"
        return whole

    def view(self, name: str) -> Matrix:
        """The tensor; where something is added it is read."""
        return self.get(name) if self.is_changed(name) else self._tensors.view(name)

    def get(self, name: str, index: Index = None) -> Matrix:
        """The tensor; or one matrix or some rows of it."""
        stored = self._tensors.get(name, index)
        if not self.is_changed(name):
            return stored
        merged = to_float32(floats_of(stored), copy=True)
        if name not in self._stacked:
            rows = slice(None) if index is None else index
            assert isinstance(rows, slice)
            self._add([name.removesuffix(".weight")], merged, rows)
            return merged
        modules = self._stacked[name]
        if isinstance(index, int):
            self._add(modules[index], merged, slice(None))
            return merged
        for one, matrix in zip(modules[index or slice(None)], merged, strict=True):
            self._add(one, matrix, slice(None))
        return merged

    def embedding(self, name: str) -> FloatEmbedding:
        """As `Checkpoint.embedding`."""
        return FloatEmbedding(floats_of(self.view(name)))

    def give_back(self) -> None:
        """As `Checkpoint.give_back`."""
        self._tensors.give_back()

    def is_changed(self, name: str) -> bool:
        """Whether something is added to a tensor, by its makers' name for its floats."""
        modules = self._stacked.get(name, [(name.removesuffix(".weight"),)])
        return any(
            module in adapter.pairs
            for adapter in self._adapters
            for of_one in modules
            for module in of_one
        )

    def _add(self, modules: Sequence[str], merged: Array, rows: slice) -> None:
        """To matrices that lie one below the other, such as gate and up."""
        each = len(merged) // len(modules)
        for number, module in enumerate(modules):
            for pair in self._pairs(module):
                merged[number * each : (number + 1) * each] += pair.rows(rows)

    def _pairs(self, module: str) -> list[AdapterPair]:
        return [a.pairs[module] for a in self._adapters if module in a.pairs]


def _stacked_modules(shape: ModelShape) -> dict[str, list[tuple[str, ...]]]:
    """For each tensor of all experts of a layer: the modules in it, expert by expert."""
    names, found = names_of(shape).names, {}
    for layer in shape.sparse_layers:
        for stacked, parts in (
            ("experts_gate_up", ("expert_gate", "expert_up")),
            ("experts_down", ("expert_down",)),
        ):
            found[names[stacked].format(layer=layer)] = [
                tuple(
                    names[part].format(layer=layer, expert=expert).removesuffix(".weight")
                    for part in parts
                )
                for expert in range(shape.experts)
            ]
    return found
