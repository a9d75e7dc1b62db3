"""The matrices of checkpoints some or all of which are quantised, under their makers' names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.quantization import Quantization
from inlay.models.embedding import FloatEmbedding
from inlay.models.float_arrays import Array
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.layouts import LAYOUTS
from inlay.models.published.rows import Matrix, floats_of
from inlay.models.weight_files import Index, WeightFiles
from inlay.models.weight_names import Expected

# Of keys and values where those are quantised, which they are not here.
_OF_CACHES = (".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale")
_OF_CACHES_TOO = (".k_proj.output_scale", ".v_proj.output_scale")


class QuantizedFiles:
    """`Tensors` of a checkpoint whose matrices are quantised, some or all."""

    def __init__(self, files: WeightFiles, quantization: Quantization) -> None:
        self._files, self._quantization = files, quantization
        self._layouts = LAYOUTS[quantization.method]

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As `WeightFiles.check`, of what the files hold of each."""
        needed = list(expected)
        more = chain(optional, self._of_no_account({one.name for one in needed}))
        self._files.check(chain.from_iterable(map(self._stored, needed)), more)

    def is_bfloat16(self, name: str) -> bool:
        """Whether its floats are."""
        return self._files.is_bfloat16(name)

    def fingerprint(self, shape: ModelShape) -> str:
        """As `WeightFiles.fingerprint`."""
        return self._files.fingerprint(shape)

    def _of_no_account(self, needed: set[str]) -> Iterator[str]:
        """Scales of caches, and the biases of zeros that some tools add to what they quantise."""
        for name in self._files.tensors:
            if name.endswith((*_OF_CACHES, *_OF_CACHES_TOO)):
                yield name
            elif name.endswith(".bias") and name not in needed:
                of = name.removesuffix("bias") + "weight"
                if self._layout(of) is not None and not self._files.get(name).any():
                    yield name

    def _stored(self, expected: Expected) -> tuple[Expected, ...]:
        layout = self._layout(expected.name)
        if layout is None:
            return (expected,)
        return layout.all_tensors(Parts(self._files, expected.name), expected)

    def stored(self, expected: Expected) -> tuple["StoredTensor", ...]:
        """The tensors in which the files have a matrix, or the one of floats.

        Raises:
            UnsupportedModelError: they are packed in a way that is not written.
        """
        layout = self._layout(expected.name)
        if layout is not None and layout.quantize is None:
            raise UnsupportedModelError(
                f"{self._files.directory}: {expected.name} is quantised in a way of "
                f"{self._quantization.method} that is read and not written: export floats "
                "(export_as=floats)"
            )
        together = layout.rows_together if layout else 1
        return tuple(
            StoredTensor(
                matrix=expected.name,
                number=number if layout else None,
                name=one.name,
                shape=one.shape,
                dtype=self._files.tensors[one.name].dtype,
                rows_together=together if number == 0 else 1,
                matrix_rows=together if number == 1 else 1,
            )
            for number, one in enumerate(self._stored(expected))
        )

    def get_stored(self, name: str, rows: slice) -> Array:
        """Some rows of a tensor as the files have it."""
        return self._files.get(name, rows)

    def quantize(self, name: str, rows_NK: Array) -> tuple[Array, Array]:
        """Rows of a matrix as codes and scales, each weight the nearest that there is.

        Args:
            name: of one for which `stored` was asked.
            rows_NK: float32; as many at a time as share scales.
        """
        layout = self._layout(name)
        assert layout is not None and layout.quantize is not None
        return layout.quantize(Parts(self._files, name), rows_NK)

    def holds(self, name: str) -> bool:
        """Whether it is there, as floats or quantised."""
        return name in self._files.tensors or self._layout(name) is not None

    def is_quantized(self, name: str) -> bool:
        """Whether it is there, and not as floats."""
        return self._layout(name) is not None

    def same(self, other: "QuantizedFiles", name: str, index: int | None = None) -> bool:
        """As `WeightFiles.same`, of all that there is for a matrix."""
        own, its = self._names(name), other._names(name)
        return (
            self._quantization == other._quantization
            and own == its
            and all(self._files.same(other._files, part, index) for part in own)
        )

    def _names(self, name: str) -> list[str]:
        """Of all tensors that have a part in a matrix."""
        begins = (f"{name}.", f"{name}_", f"{name.removesuffix('.weight')}.")
        if self._layout(name) is None:
            return [name]
        return sorted(one for one in self._files.tensors if one == name or one.startswith(begins))

    def view(self, name: str) -> Matrix:
        """As `WeightFiles.view`; what is quantised is read."""
        return self._files.view(name) if self._layout(name) is None else self.get(name)

    def embedding(self, name: str) -> FloatEmbedding:
        """As `WeightFiles.embedding`; what is quantised is read."""
        return FloatEmbedding(floats_of(self.view(name)))

    def give_back(self) -> None:
        """As `WeightFiles.give_back`."""
        self._files.give_back()

    def get(self, name: str, index: Index = None) -> Matrix:
        """The tensor, or its quantised rows; or one matrix or some rows of it.

        Raises:
            ModelFileError: codes have another dtype than the method's.
        """
        layout = self._layout(name)
        if layout is None:
            return self._files.get(name, index)
        parts = Parts(self._files, name, index if isinstance(index, int) else None)
        if parts.dtype(layout.codes) not in layout.dtypes:
            raise ModelFileError(
                f"{self._files.directory}: {parts.named(layout.codes)} has dtype "
                f"{parts.dtype(layout.codes)} instead of "
                f"{' or '.join(map(str, layout.dtypes))}: config.json names another quantisation "
                "than the files have"
            )
        rows = layout.rows(parts)
        if not isinstance(index, slice):
            return layout.read(parts, slice(0, rows))
        first, end, step = index.indices(rows)
        found = layout.read(parts, slice(first, max(first, end)))
        return found if step == 1 else found[::step]

    def _layout(self, name: str) -> Layout | None:
        """How a matrix is packed; None: it is of floats, or not there."""
        parts = Parts(self._files, name)
        with_scales = [one for one in self._layouts if parts.has(one.scales)]
        fitting = (one for one in with_scales if one.is_of(parts))
        return next(fitting, with_scales[0] if with_scales else None)


@dataclass(frozen=True)
class StoredTensor:
    """One of the tensors in which files have a matrix.

    Attributes:
        matrix: its name.
        number: 0 has the codes of a quantised matrix, 1 the scales, others nothing that depends on
            its weights; None: it is a tensor of floats.
        rows_together: of this tensor, that share scales.
        matrix_rows: for which one of its rows stands.
    """

    matrix: str
    number: int | None
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows_together: int
    matrix_rows: int
