"""Model directories with packed weights: config.json, tokenizer, and one `weights.inlay`.

    pack(Path("models/mine"), Path("models/mine-int4"), weight_format="int4")
    model = load_model(Path("models/mine-int4"))

The file holds what `load_model` would make of the checkpoint, so loading it costs page faults
instead of quantising, and several processes share one copy in memory. Entries are named after
the fields of `Weights` and `LayerWeights`, `layers.<n>.` before the latter; a bias is
`<entry>.bias`. Only the CPU kernels read it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.errors import (
    ArgumentError,
    ModelFileError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.core.model_config import read_shape
from inlay.core.model_shape import MlaShape, ModelShape
from inlay.core.units import format_bytes
from inlay.models.formats import full_name
from inlay.models.native_ops import NativeLinear, NativeOps
from inlay.models.ops import Ops
from inlay.models.weights import (
    DenseWeights,
    GqaWeights,
    LayerWeights,
    MixtureWeights,
    MlaWeights,
    OpenWeights,
    open_checkpoint,
)

_Entry = TypeVar("_Entry")

PACKED_FILE = "weights.inlay"
# What a directory is made of besides weights and their index.
_COPIED = ("config.json", "generation_config.json", "*token*.json", "chat_template.*")


def pack(source: Path, target: Path, *, weight_format: str = "auto") -> None:
    """Write a directory with packed weights from any model directory that can be loaded.

    Args:
        source: holds config.json and *.safetensors.
        target: made if missing; an older `weights.inlay` in it is replaced when the new one is
            complete.
        weight_format: one of `WEIGHT_FORMATS` that the CPU kernels have.

    Raises:
        ModelError: as `load_model`.
        ArgumentError: both directories are the same, or another process packs into `target`.
        ResourceError: the disk is too small.

    Cost: one layer in memory at a time; quantising reads 0.5 to 4 GB/s of source per core.
    """
    shape = read_shape(source)
    opened = open_checkpoint(source, shape, NativeOps(), weight_format)
    target.mkdir(parents=True, exist_ok=True)
    if target.samefile(source):
        raise ArgumentError(f"target: {target} is the source, too: name another directory")
    write_packed(target / PACKED_FILE, shape, opened)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            shutil.copyfile(file, target / file.name)


def write_packed(file: Path, shape: ModelShape, opened: OpenWeights) -> None:
    """Write weights of any source of the CPU backend, layer by layer.

    Raises:
        ArgumentError: another process is writing this file.
        ResourceError: the disk is too small.
    """
    metadata = {
        "shape": _plain(shape),
        "weight_format": opened.weight_format,
        "float_dtype": opened.float_dtype,
        "fingerprint": opened.fingerprint,
    }
    source = opened.source
    with kernels.PackedWriter(file, metadata) as writer:
        # Asked now, as the writer has removed what a killed one left.
        needed = opened.held_bytes + 4 * shape.vocab * shape.hidden
        free = shutil.disk_usage(file.parent).free
        if needed > free:
            raise ResourceError(
                f"{file} needs {format_bytes(needed)} of disk, and {format_bytes(free)} are free"
            )
        # A dtype that the file does not know (float16) fits float32.
        embedding = source.embedding()
        known = embedding.dtype in (np.uint16, np.float32)
        writer.add_array("embedding_VM", embedding if known else embedding.astype(np.float32))
        for layer in range(shape.layers):
            for name, value in vars(source.layer(layer)).items():
                _add(writer, f"layers.{layer}.{name}", value)
        _add(writer, "final_norm_M", source.final_norm())
        _add(writer, "head", source.head())


def _add(writer: kernels.PackedWriter, name: str, value: Any) -> None:
    match value:
        case None:
            return
        case NativeLinear(weight, bias_N):
            writer.add_linear(name, weight)
            if bias_N is not None:
                writer.add_array(f"{name}.bias", bias_N)
        case kernels.LinearWeight():
            writer.add_linear(name, value)
        case np.ndarray():
            writer.add_array(name, value)
        case GqaWeights() | MlaWeights() | DenseWeights() | MixtureWeights():
            for part, held in vars(value).items():
                _add(writer, f"{name}.{part}", held)
        case _:
            writer.add_experts(name, value)


def open_packed(
    file: Path, shape: ModelShape, ops: Ops, weight_format: str, *, verify: bool = False
) -> OpenWeights:
    """Map a file that `pack` wrote.

    Args:
        weight_format: `auto`, or the one that the file has.
        verify: compare all of the file with its checksums.

    Raises:
        ModelFileError: the file is damaged, or belongs to another config.json.
        UnsupportedModelError: another weight format, or not the CPU kernels.
    """
    if not isinstance(ops, NativeOps):
        raise UnsupportedModelError(
            f"{file} holds weights packed for the CPU kernels, not for {ops.name}: take the "
            "model's safetensors"
        )
    packed = kernels.PackedFile(file)
    metadata = packed.metadata
    try:
        written, held = metadata["shape"], metadata["weight_format"]
        float_dtype, fingerprint = metadata["float_dtype"], metadata["fingerprint"]
    except KeyError as error:
        raise ModelFileError(f"{file} lacks {error}, it is no packed model") from error
    mine = _plain(shape)
    if wrong := [key for key in mine if written.get(key) != mine[key]]:
        differences = ", ".join(f"{key} {written.get(key)} instead of {mine[key]}" for key in wrong)
        raise ModelFileError(
            f"{file} belongs to another model than config.json beside it: it has {differences}"
        )
    if weight_format != "auto" and full_name(weight_format) != held:
        raise UnsupportedModelError(
            f"{file} holds weights as {held}, and weight_format {weight_format!r} was asked for: "
            "leave it out, or take the model's safetensors"
        )
    if verify:
        packed.verify()
    source = PackedWeights(packed, shape)
    return OpenWeights(source, held, float_dtype, packed.nbytes, fingerprint)


class PackedWeights:
    """A `WeightSource` that maps. Its weights keep the mapping alive."""

    def __init__(self, file: kernels.PackedFile, shape: ModelShape) -> None:
        self._file, self._shape = file, shape
        self._names = frozenset(file.names)

    def embedding(self) -> NDArray[Any]:
        """As the protocol says."""
        return self._array("embedding_VM", self._shape.vocab, self._shape.hidden)

    def final_norm(self) -> NDArray[Any]:
        """As the protocol says."""
        return self._array("final_norm_M", self._shape.hidden)

    def head(self) -> NativeLinear:
        """As the protocol says."""
        return self._linear("head", self._shape.vocab, self._shape.hidden)

    def layer(self, layer: int) -> LayerWeights:
        """As the protocol says."""
        shape, at = self._shape, f"layers.{layer}"
        attention = f"{at}.attention"
        sparse = layer in shape.sparse_layers
        return LayerWeights(
            attention_norm_M=self._array(f"{at}.attention_norm_M", shape.hidden),
            attention=self._mla(attention, shape.mla) if shape.mla else self._gqa(attention),
            mlp_norm_M=self._array(f"{at}.mlp_norm_M", shape.hidden),
            mlp=self._mixture(f"{at}.mlp") if sparse else self._dense(f"{at}.mlp"),
        )

    def _gqa(self, at: str) -> GqaWeights:
        shape = self._shape
        q_width = shape.heads * shape.head_dim
        qkv_width = q_width + 2 * shape.kv_heads * shape.head_dim
        norm_D = {
            name: self._array(f"{at}.{name}", shape.head_dim) if shape.qk_norm else None
            for name in ("q_norm_D", "k_norm_D")
        }
        return GqaWeights(
            qkv=self._linear(f"{at}.qkv", qkv_width, shape.hidden),
            output=self._linear(f"{at}.output", shape.hidden, q_width),
            **norm_D,
            sinks_H=self._array(f"{at}.sinks_H", shape.heads) if shape.sinks else None,
        )

    def _mla(self, at: str, mla: MlaShape) -> MlaWeights:
        shape = self._shape
        q_width, q_rank = shape.heads * shape.head_dim, mla.q_rank
        down_width = (q_rank or q_width) + mla.kv_rank + mla.rope_dim
        return MlaWeights(
            down=self._linear(f"{at}.down", down_width, shape.hidden),
            q_latent_norm_L=self._array(f"{at}.q_latent_norm_L", q_rank) if q_rank else None,
            q_up=self._linear(f"{at}.q_up", q_width, q_rank) if q_rank else None,
            kv_latent_norm_L=self._array(f"{at}.kv_latent_norm_L", mla.kv_rank),
            absorb=self._heads(f"{at}.absorb", mla.kv_rank, mla.nope_dim),
            expand=self._heads(f"{at}.expand", mla.value_dim, mla.kv_rank),
            output=self._linear(f"{at}.output", shape.hidden, shape.heads * mla.value_dim),
        )

    def _heads(self, name: str, rows: int, columns: int) -> kernels.LinearWeight:
        weight = self._entry(name, self._file.linear)
        self._check(
            name, tuple(weight.shape), (self._shape.heads * kernels.head_rows(rows), columns)
        )
        return weight

    def _dense(self, at: str) -> DenseWeights:
        hidden, width = self._shape.hidden, self._shape.intermediate
        return DenseWeights(
            gate_up=self._linear(f"{at}.gate_up", 2 * width, hidden),
            down=self._linear(f"{at}.down", hidden, width),
        )

    def _mixture(self, at: str) -> MixtureWeights:
        shape = self._shape
        corrected, shared = shape.router.correction, shape.shared_intermediate
        return MixtureWeights(
            router=self._linear(f"{at}.router", shape.experts, shape.hidden),
            correction_E=self._array(f"{at}.correction_E", shape.experts) if corrected else None,
            experts=self._experts(f"{at}.experts", shape.experts, shape.moe_intermediate),
            shared=self._experts(f"{at}.shared", 1, shared) if shared else None,
        )

    def _array(self, name: str, *size: int) -> NDArray[Any]:
        array = self._entry(name, self._file.array)
        self._check(name, array.shape, size)
        return array

    def _linear(self, name: str, *size: int) -> NativeLinear:
        weight = self._entry(name, self._file.linear)
        self._check(name, tuple(weight.shape), size)
        bias = f"{name}.bias"
        return NativeLinear(weight, self._array(bias, size[0]) if bias in self._names else None)

    def _experts(self, name: str, count: int, width: int) -> kernels.ExpertWeights:
        experts = self._entry(name, self._file.experts)
        found = (experts.num_experts, experts.hidden, experts.intermediate)
        self._check(name, found, (count, self._shape.hidden, width))
        return experts

    def _entry(self, name: str, get: Callable[[str], _Entry]) -> _Entry:
        try:
            return get(name)
        except ArgumentError as error:
            raise ModelFileError(f"{error}: pack the model again") from error

    def _check(self, name: str, found: tuple[int, ...], size: tuple[int, ...]) -> None:
        if found != size:
            raise ModelFileError(
                f"{self._file.path}: {name} is {list(found)} instead of {list(size)}: pack the "
                "model again"
            )


def _plain(shape: ModelShape) -> dict[str, Any]:
    """The shape as it comes back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(shape)))
    return plain
