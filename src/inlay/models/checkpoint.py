"""The tensors of a model directory by their names, whatever form its makers published."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from inlay.core.model_shape import ModelShape
from inlay.models.embedding import Embedding
from inlay.models.published.files import QuantizedFiles
from inlay.models.published.rows import Matrix
from inlay.models.weight_files import Index, WeightFiles
from inlay.models.weight_names import Expected, expected_tensors, names_of


class Tensors(Protocol):
    """Tensors by their names in a checkpoint; `WeightFiles` and `QuantizedFiles` are such."""

    def view(self, name: str) -> Matrix:
        """The tensor, to be read only; where possible it is not read before it is used."""
        ...

    def get(self, name: str, index: Index = None) -> Matrix:
        """The tensor in memory, to be read only; or one matrix or some rows of it."""
        ...

    def embedding(self, name: str) -> Embedding:
        """The tensor as rows that steps read."""
        ...

    def give_back(self) -> None:
        """Take what this thread has read out of the process's memory."""
        ...


class Checkpoint(Tensors, Protocol):
    """All tensors of a model, in one of the forms that makers publish."""

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        ...

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """Compare names and shapes with what the model needs.

        Raises:
            ModelFileError: tensors are missing, left over, or have other shapes; names them.
        """
        ...

    def is_bfloat16(self, name: str) -> bool:
        """Whether bfloat16 holds all of a tensor of floats."""
        ...

    def fingerprint(self, shape: ModelShape) -> str:
        """Of the content: 32 hex digits."""
        ...


def open_tensors(directory: Path, shape: ModelShape) -> Checkpoint:
    """The files of a model directory, by what its config.json says of them.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFileError: a file is damaged.
        UnsupportedModelError: a dtype.
    """
    files = _open_files(directory, shape)
    if not names_of(shape).stacked:
        return files
    from inlay.models.stacked_tensors import StackedTensors

    return StackedTensors(files, shape)


def _open_files(directory: Path, shape: ModelShape) -> Checkpoint:
    stored, names = shape.quantization, names_of(shape).names
    parts = ("embedding",) if shape.tie_embeddings else ("embedding", "head")
    vocabulary = [Expected(names[part], (shape.vocab, shape.hidden)) for part in parts]
    if stored is None:
        return WeightFiles(directory, vocabulary)
    if stored.method == "gguf":
        # Loads the format's library.
        from inlay.models.gguf.tensors import GgufTensors

        return GgufTensors(directory, shape)
    return QuantizedFiles(WeightFiles(directory, vocabulary, quantized=True), stored)


def same_content(one: Tensors, other: Tensors, name: str, index: int | None = None) -> bool:
    """Whether `one` has of a tensor, or of one matrix of it, what `other` had when it was opened.
    Files whose matrices are stacked, and those of GGUF, are not compared.
    """
    if isinstance(one, WeightFiles) and isinstance(other, WeightFiles):
        return one.same(other, name, index)
    if isinstance(one, QuantizedFiles) and isinstance(other, QuantizedFiles):
        return one.same(other, name, index)
    return False


def open_checked(directory: Path, shape: ModelShape) -> tuple[Checkpoint, bool]:
    """The files, which hold exactly what the shape needs, and whether their experts are fused.

    Raises as `open_tensors`; ModelFileError also where they hold something else.
    """
    tensors, names = open_tensors(directory, shape), names_of(shape).names
    first_sparse = shape.sparse_layers[0] if shape.sparse_layers else 0
    fused = tensors.holds(names["experts_gate_up"].format(layer=first_sparse))
    tensors.check(expected_tensors(shape, fused_experts=fused), optional=(names["head"],))
    return tensors, fused
