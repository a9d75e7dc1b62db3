"""Model directories with packed weights, `weights.inlay` beside config.json and the tokenizer.

    convert(Path("models/mine"), Path("models/mine-int4"), weight_format="int4")
    model = load_model(Path("models/mine-int4"))

The file holds what `load_model` would make of the checkpoint, so loading it costs page faults
instead of quantising, and several processes share one copy in memory. `packed_entries` has the
names of its parts, `inlay.models.conversion` writes it. Only the CPU kernels read it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.errors import ArgumentError, ModelFileError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.models.background import Loading, Piece
from inlay.models.embedding import FloatEmbedding
from inlay.models.formats import part_formats
from inlay.models.memory import free_memory_bytes
from inlay.models.native_ops import NativeLinear, NativeOps
from inlay.models.os_pages import bring_in
from inlay.models.packed_entries import (
    Entry,
    ExpertsEntry,
    HeadsEntry,
    LinearEntry,
    TableEntry,
    VectorEntry,
    packed_entries,
)
from inlay.models.packed_metadata import packed_metadata
from inlay.models.placed import Placed
from inlay.models.weights import (
    DenseWeights,
    GqaWeights,
    LayerWeights,
    MixtureWeights,
    MlaWeights,
    OpenWeights,
)

_PIECE_BYTES = 16 << 20  # some milliseconds of a fast disk

_Held = TypeVar("_Held")
_Kind = TypeVar("_Kind", bound=Entry)


def open_packed(
    file: Path, shape: ModelShape, placed: Placed, weight_format: str, *, verify: bool = False
) -> OpenWeights:
    """Map a file that `convert` wrote.

    Args:
        weight_format: `auto`, or the one that the file has.
        verify: compare all of the file with its checksums.

    Raises:
        ModelFileError: the file is damaged, or belongs to another config.json.
        UnsupportedModelError: another weight format, or not the CPU kernels.
    """
    other = [ops for ops in placed.backends.values() if not isinstance(ops, NativeOps)]
    if other:
        raise UnsupportedModelError(
            f"{file} holds weights packed for the CPU kernels, not for {other[0].name}: take the "
            "model's safetensors"
        )
    packed = kernels.PackedFile(file)
    about = packed_metadata(packed)
    about.check_shape(file, shape)
    about.check_format(file, weight_format)
    if verify:
        packed.verify()
    formats = part_formats(shape, about.weight_format, about.float_dtype)
    return OpenWeights(
        PackedWeights(packed, packed_entries(shape, formats), shape.layers),
        about.weight_format,
        about.float_dtype,
        packed.nbytes,
        about.fingerprint,
    )


class PackedWeights:
    """A `WeightSource` that maps. Its weights keep the mapping alive.

    Args:
        entries: what the file should hold; what is asked for is compared with it.
    """

    def __init__(self, file: kernels.PackedFile, entries: dict[str, Entry], layers: int) -> None:
        self._file, self._entries, self._layers = file, entries, layers

    def embedding(self) -> FloatEmbedding:
        """As the protocol says."""
        entry = self._entry("embedding_VM", TableEntry)
        return FloatEmbedding(self._array("embedding_VM", entry.rows, entry.columns))

    def final_norm(self) -> NDArray[Any]:
        """As the protocol says."""
        return self._vector("final_norm_M")

    def head(self) -> NativeLinear:
        """As the protocol says."""
        return self._linear("head")

    def layer(self, layer: int, loading: Loading | None = None) -> LayerWeights:
        """As the protocol says; all of it is there at once, and `loading` brings the pages in."""
        if loading is not None:
            self._bring_in(layer, loading)
        at = f"layers.{layer}"
        is_latent = f"{at}.attention.absorb" in self._entries
        is_sparse = f"{at}.mlp.experts" in self._entries
        return LayerWeights(
            attention_norm_M=self._optional(f"{at}.attention_norm_M", self._vector),
            attention=(self._mla if is_latent else self._gqa)(f"{at}.attention"),
            attention_post_norm_M=self._optional(f"{at}.attention_post_norm_M", self._vector),
            mlp_norm_M=self._optional(f"{at}.mlp_norm_M", self._vector),
            mlp=(self._mixture if is_sparse else self._dense)(f"{at}.mlp"),
            mlp_post_norm_M=self._optional(f"{at}.mlp_post_norm_M", self._vector),
        )

    def _bring_in(self, layer: int, loading: Loading) -> None:
        """Queue what steps read of a layer; behind that of all layers its routed experts."""
        layers = self._layers
        starts = (f"layers.{layer}.", "final_norm", "head")[: 3 if layer == layers - 1 else 1]
        for name in (name for name in self._file.names if name.startswith(starts)):
            order = layer + layers * name.endswith(".mlp.experts")
            for part in self._file.parts(name):
                pieces = (part[at : at + _PIECE_BYTES] for at in range(0, len(part), _PIECE_BYTES))
                loading.add(
                    [Piece(len(one), partial(self._read, one, loading)) for one in pieces], order
                )

    def _read(self, piece: NDArray[np.uint8], loading: Loading) -> bool:
        """Bring pages in, if they fit into memory beside those that came before."""
        # Those count as free, too.
        if loading.brought_bytes + len(piece) > free_memory_bytes():
            return False
        try:
            bring_in(piece.ctypes.data, len(piece))
        except OSError as error:
            raise ModelFileError(
                f"{self._file.path} cannot be read ({error}): it was cut off meanwhile, or its "
                "disk fails; convert the model again"
            ) from error
        return True

    def _gqa(self, at: str) -> GqaWeights:
        return GqaWeights(
            qkv=self._linear(f"{at}.qkv"),
            output=self._linear(f"{at}.output"),
            q_norm=self._optional(f"{at}.q_norm_D", self._vector),
            k_norm=self._optional(f"{at}.k_norm_D", self._vector),
            sinks_H=self._optional(f"{at}.sinks_H", self._vector),
        )

    def _mla(self, at: str) -> MlaWeights:
        return MlaWeights(
            down=self._linear(f"{at}.down"),
            q_latent_norm_L=self._optional(f"{at}.q_latent_norm_L", self._vector),
            q_up=self._optional(f"{at}.q_up", self._linear),
            kv_latent_norm_L=self._vector(f"{at}.kv_latent_norm_L"),
            absorb=self._heads(f"{at}.absorb"),
            expand=self._heads(f"{at}.expand"),
            output=self._linear(f"{at}.output"),
        )

    def _dense(self, at: str) -> DenseWeights:
        return DenseWeights(gate_up=self._linear(f"{at}.gate_up"), down=self._linear(f"{at}.down"))

    def _mixture(self, at: str) -> MixtureWeights:
        return MixtureWeights(
            router=self._linear(f"{at}.router"),
            correction_E=self._optional(f"{at}.correction_E", self._vector),
            experts=self._experts(f"{at}.experts"),
            shared=self._optional(f"{at}.shared", self._experts),
            shared_score=self._optional(f"{at}.shared_score", self._linear),
        )

    def _optional(self, name: str, get: Callable[[str], _Held]) -> _Held | None:
        return get(name) if name in self._entries else None

    def _vector(self, name: str) -> NDArray[Any]:
        return self._array(name, self._entry(name, VectorEntry).size)

    def _array(self, name: str, *size: int) -> NDArray[Any]:
        array = self._held(name, self._file.array)
        self._check(name, array.shape, size)
        return array

    def _linear(self, name: str) -> NativeLinear:
        entry = self._entry(name, LinearEntry)
        weight = self._matrix(name, entry)
        bias = self._array(f"{name}.bias", entry.rows) if entry.bias else None
        return NativeLinear((weight,), bias)

    def _heads(self, name: str) -> kernels.LinearWeight:
        return self._matrix(name, self._entry(name, HeadsEntry))

    def _matrix(self, name: str, entry: LinearEntry | HeadsEntry) -> kernels.LinearWeight:
        weight = self._held(name, self._file.linear)
        self._check(name, (*weight.shape, weight.format), (entry.rows, entry.columns, entry.format))
        return weight

    def _experts(self, name: str) -> kernels.ExpertWeights:
        entry, experts = self._entry(name, ExpertsEntry), self._held(name, self._file.experts)
        found = (experts.num_experts, experts.hidden, experts.intermediate, experts.format)
        self._check(name, found, (entry.count, entry.hidden, entry.width, entry.format))
        return experts

    def _entry(self, name: str, kind: type[_Kind]) -> _Kind:
        entry = self._entries[name]
        assert isinstance(entry, kind)
        return entry

    def _held(self, name: str, get: Callable[[str], _Held]) -> _Held:
        try:
            return get(name)
        except ArgumentError as error:
            raise ModelFileError(f"{error}: convert the model again") from error

    def _check(
        self, name: str, found: tuple[int | str, ...], wanted: tuple[int | str, ...]
    ) -> None:
        if found != wanted:
            raise ModelFileError(
                f"{self._file.path}: {name} is {list(found)} instead of {list(wanted)}: convert "
                "the model again"
            )
