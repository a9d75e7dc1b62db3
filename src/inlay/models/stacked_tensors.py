"""Checkpoints in which several of the decoder's matrices lie by rows in one tensor, as Phi-3's."""

from collections.abc import Iterable

from inlay.core.model_shape import ModelShape
from inlay.models.checkpoint import Checkpoint
from inlay.models.embedding import Embedding
from inlay.models.published.rows import Matrix
from inlay.models.weight_files import Index
from inlay.models.weight_names import Expected, stacked_rows


class StackedTensors:
    """A `Checkpoint` with each matrix under a name of its own.

    Args:
        whole: the files as they are.
        shape: of the model.
    """

    def __init__(self, whole: Checkpoint, shape: ModelShape) -> None:
        self._whole = whole
        self._rows = {
            name: (tensor, rows)
            for layer in range(shape.layers)
            for name, tensor, rows in stacked_rows(shape, layer)
            # Files of another form may have each matrix by itself.
            if whole.holds(tensor) or not whole.holds(name)
        }

    def view(self, name: str) -> Matrix:
        """As the protocol says."""
        tensor, rows = self._rows.get(name, (name, None))
        whole = self._whole.view(tensor)
        return whole if rows is None else whole[rows]

    def get(self, name: str, index: Index = None) -> Matrix:
        """As the protocol says."""
        if name not in self._rows:
            return self._whole.get(name, index)
        tensor, rows = self._rows[name]
        if isinstance(index, slice):
            first, end, step = index.indices(rows.stop - rows.start)
            rows = slice(rows.start + first, rows.start + end, step)
        return self._whole.get(tensor, rows)

    def embedding(self, name: str) -> Embedding:
        """As the protocol says."""
        return self._whole.embedding(name)

    def give_back(self) -> None:
        """As the protocol says."""
        self._whole.give_back()

    def holds(self, name: str) -> bool:
        """As the protocol says."""
        return self._whole.holds(self._rows.get(name, (name,))[0])

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As the protocol says."""
        wholes: dict[str, tuple[int, ...]] = {}
        for one in expected:
            if one.name not in self._rows:
                wholes[one.name] = one.shape
                continue
            tensor, rows = self._rows[one.name]
            before = wholes.get(tensor, (0,))[0]
            wholes[tensor] = (max(before, rows.stop), *one.shape[1:])
        self._whole.check((Expected(name, size) for name, size in wholes.items()), optional)

    def is_bfloat16(self, name: str) -> bool:
        """As the protocol says."""
        return self._whole.is_bfloat16(self._rows.get(name, (name,))[0])

    def fingerprint(self, shape: ModelShape) -> str:
        """As the protocol says."""
        return self._whole.fingerprint(shape)
