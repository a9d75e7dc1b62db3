"""Packs the tensors of a checkpoint part by part for a backend.

At any time each thread has at most one part (a matrix, or one expert) besides the packed weights:
the files themselves are mapped, and what has been packed of them is given back to the system. The
embedding stays a view of its file, because a step reads only a few of its rows.
"""

import logging
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from inlay import kernels
from inlay.core.architectures import ARCHITECTURES
from inlay.core.errors import ModelFileError, NotFiniteError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU
from inlay.core.quantization import NEAREST, BlockTypes
from inlay.core.tensor_parallel import ALONE, Rank, shape_of_rank
from inlay.core.weight_format import BLOCK_FORMATS, format_named
from inlay.models.background import ColdExperts, Loading, Piece
from inlay.models.checkpoint import Checkpoint, Tensors, open_checked, same_content
from inlay.models.embedding import Embedding
from inlay.models.float_arrays import to_float32
from inlay.models.formats import PartFormats, block_formats, full_name, packed_bytes, part_formats
from inlay.models.hand_over import Residents
from inlay.models.making import Made, Making
from inlay.models.native_ops import NativeOps
from inlay.models.ops import Array, Experts, ExpertTensors, Linear, Ops
from inlay.models.placed import Placed
from inlay.models.published.files import QuantizedFiles
from inlay.models.published.rows import (
    BlockRows,
    Matrix,
    QuantizedRows,
    floats_of,
    held_format,
)
from inlay.models.rank_slices import RankSlices
from inlay.models.weight_files import Index, WeightFiles
from inlay.models.weight_names import NORMS, layer_parts, names_of
from inlay.models.weights import (
    DenseWeights,
    GqaWeights,
    LayerWeights,
    MixtureWeights,
    MlaWeights,
    OpenWeights,
)

log = logging.getLogger(__name__)

# Matrices by the part of `PartFormats` that they belong to.
_ATTENTION = ("q", "k", "v", "output", "q_down", "q_up", "kv_down")
_MLP = ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")


def open_checkpoint(
    directory: Path,
    shape: ModelShape,
    placed: Placed,
    weight_format: str = "auto",
    *,
    keep_blocks: bool = True,
) -> OpenWeights:
    """Open and check the safetensors of a model directory.

    Args:
        shape: of the whole model; a rank of several reads its part.
        weight_format: one of `WEIGHT_FORMATS`.
        keep_blocks: with `auto` matrices of GGUF files stay in their own types, where the kernels
            of a CPU have all of them; else they are held in the nearest of `WEIGHT_FORMATS`.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFileError: a file is damaged, or does not hold exactly what the shape needs.
        UnsupportedModelError: a dtype, or a weight format that the backend does not have or that
            cannot sum such long rows.
    """
    tensors, fused = open_checked(directory, shape)
    # float32 holds float16 exactly, too.
    is_bfloat16 = tensors.is_bfloat16(names_of(shape).names["embedding"])
    float_dtype = "bfloat16" if is_bfloat16 else "float32"
    blocks = None
    if keep_blocks and weight_format == "auto":
        blocks = _blocks_that_stay(shape, placed)
    weight_format = full_name(
        _auto_format(shape, placed, _matrix_dtype(tensors, float_dtype))
        if weight_format == "auto"
        else weight_format
    )
    if blocks is None:
        formats = part_formats(shape, weight_format, float_dtype)
        placed.check_formats(shape, formats)
    else:
        formats, weight_format = block_formats(blocks), blocks.experts
    stored = shape.quantization
    if stored is not None and weight_format == stored.weight_format and blocks is None:
        _say_what_is_rounded(directory, tensors, shape, formats)
    return OpenWeights(
        source=TensorWeights(
            tensors, shape, placed, formats, fused_experts=fused, rank=placed.rank
        ),
        weight_format=weight_format,
        float_dtype=float_dtype,
        held_bytes=blocks.file_bytes
        if blocks is not None
        else packed_bytes(shape_of_rank(shape, placed.rank.degree), weight_format, float_dtype),
        fingerprint=tensors.fingerprint(shape),
    )


def _say_what_is_rounded(
    directory: Path, tensors: Tensors, shape: ModelShape, formats: PartFormats
) -> None:
    """Log what becomes of quantised files that kernels cannot hold, and of floats in them."""
    stored = shape.quantization
    if stored is not None and stored.again:
        log.info(
            "%s: no kernels have all of its codes (%s): they are read as floats, matrix by matrix, "
            "and quantised again as %s",
            directory,
            stored.method,
            stored.weight_format,
        )
    if not isinstance(tensors, QuantizedFiles):
        return
    held_as = dict.fromkeys(_ATTENTION, formats.attention) | dict.fromkeys(_MLP, formats.mlp)
    names = names_of(shape).names
    floats = [
        name
        for layer in range(shape.layers)
        for part in layer_parts(shape, layer).keys() & held_as.keys()
        if format_named(held_as[part]).bits == 4
        and not tensors.is_quantized(name := names[part].format(layer=layer))
    ]
    if floats:
        log.warning(
            "%s: %s and %d more are floats, which config.json does not say: they become 4 bits, as "
            "what is beside them; --weight-format int8:g32 holds all nearly",
            directory,
            min(floats),
            len(floats) - 1,
        )


def _matrix_dtype(tensors: Checkpoint, float_dtype: str) -> str:
    """`float16` where all matrices of safetensors have it; else that of other floats."""
    if not isinstance(tensors, WeightFiles):
        return float_dtype
    matrices = [one for one in tensors.tensors.values() if len(one.shape) > 1]
    return "float16" if all(one.dtype == np.float16 for one in matrices) else float_dtype


def _blocks_that_stay(shape: ModelShape, placed: Placed) -> BlockTypes | None:
    """Of a GGUF file all of whose matrices are multiplied on the CPU, by one process."""
    on_cpu = all(isinstance(ops, NativeOps) for ops in placed.backends.values())
    if shape.quantization is None or not on_cpu or not placed.rank.is_alone:
        return None
    return shape.quantization.blocks


def _auto_format(shape: ModelShape, placed: Placed, float_dtype: str) -> str:
    """What the files hold, where the backends have that."""

    def own(ops: Ops) -> str:
        stored = shape.quantization
        if stored is not None and stored.weight_format in ops.weight_formats:
            return stored.weight_format
        return ops.auto_format(float_dtype)

    if placed.host is None or not placed.splits(shape):
        return own(placed.first)
    experts, rest = own(placed.host), own(placed.first)
    return experts if experts == rest else f"{experts}+{placed.first.auto_format(float_dtype)}"


class TensorWeights:
    """A `WeightSource` that packs tensors when it is asked for them.

    Args:
        tensors: with the names and shapes of `expected_tensors`.
        shape: of the whole model.
        formats: of the matrices.
        fused_experts: the experts of a layer are one tensor.
        rank: whose part of the tensors it packs.

    Attributes:
        making: what it has packed of which tensors.
    """

    def __init__(
        self,
        tensors: Tensors,
        shape: ModelShape,
        placed: Placed,
        formats: PartFormats,
        *,
        fused_experts: bool,
        rank: Rank = ALONE,
        making: Making | None = None,
    ) -> None:
        self.making = Making() if making is None else making
        self._tensors, self._placed, self._formats = tensors, placed, formats
        self._shape = shape_of_rank(shape, rank.degree)
        self._row = names_of(shape)
        self._norm_offset = ARCHITECTURES[shape.architecture].norm_offset
        self._fused = fused_experts
        self._rank = rank
        self._slices: RankSlices | None = None
        self._of_host = self
        if not rank.is_alone:
            self._slices = RankSlices(shape, rank, columns_first=self._row.columns_first)
            # The host computes whole experts, for all ranks.
            self._of_host = TensorWeights(
                tensors, shape, placed, formats, fused_experts=fused_experts, making=self.making
            )

    def take_over(self, earlier: "TensorWeights") -> Mapping[str, int]:
        """Pack only what differs from what another source has packed; all else is that one's.

        Returns:
            Memory that is not needed a second time, of each device.

        Cost: reads the tensors of both, as fast as memory is, unless they are in one file.
        """
        if self._packs_as() != earlier._packs_as():
            return {}
        return self.making.keep(
            earlier.making, lambda read: same_content(self._tensors, earlier._tensors, *read)
        )

    def _packs_as(self) -> tuple[object, ...]:
        """What the packed form depends on besides the tensors."""
        placed = self._placed
        backends = {device: ops.name for device, ops in placed.backends.items()}
        return self._shape, self._formats, self._fused, self._rank, placed.placement, backends

    def embedding(self) -> Embedding:
        """As the protocol says."""
        return self._tensors.embedding(self._row.names["embedding"])

    def final_norm(self) -> Array:
        """As the protocol says."""
        return self.vector("final_norm", self._shape.layers - 1)

    def head(self) -> Linear:
        """As the protocol says; of tied models made from the embedding."""
        part = "embedding" if self._shape.tie_embeddings else "head"
        return self._linear((part,), self._shape.layers - 1, self._formats.head)

    def layer(self, layer: int, loading: Loading | None = None) -> LayerWeights:
        """As the protocol says; routed experts come later."""
        there, sparse = layer_parts(self._shape, layer), layer in self._shape.sparse_layers
        return LayerWeights(
            attention_norm_M=self._optional("attention_norm", layer, there),
            attention=self._mla(layer, there) if self._shape.mla else self._gqa(layer, there),
            attention_post_norm_M=self._optional("attention_post_norm", layer, there),
            mlp_norm_M=self._optional("mlp_norm", layer, there),
            mlp=self._mixture(layer, there, loading) if sparse else self._dense(layer, there),
            mlp_post_norm_M=self._optional("mlp_post_norm", layer, there),
        )

    def _gqa(self, layer: int, there: Container[str]) -> GqaWeights:
        shape, attention = self._shape, self._formats.attention
        return GqaWeights(
            qkv=self._linear(("q", "k", "v"), layer, attention, shape.qkv_bias),
            output=self._linear(("output",), layer, attention, shape.output_bias),
            q_norm=self._optional("q_norm", layer, there),
            k_norm=self._optional("k_norm", layer, there),
            sinks_H=self._optional("sinks", layer, there),
        )

    def _mla(self, layer: int, there: Container[str]) -> MlaWeights:
        shape, attention = self._shape, self._formats.attention
        q = "q_down" if "q_down" in there else "q"
        latent = self._formats.latent
        ops = self._placed.ops(layer)

        def heads(part: str) -> Linear:
            with _damage(f"kv_up of layer {layer}"):
                return ops.pack_heads(self.heads(part, layer), latent)

        absorb, expand = (
            self.making.once((part, layer), ops.device, partial(heads, part))
            for part in ("absorb", "expand")
        )
        return MlaWeights(
            down=self._linear((q, "kv_down"), layer, attention, shape.qkv_bias),
            q_latent_norm_L=self._optional("q_latent_norm", layer, there),
            q_up=self._linear(("q_up",), layer, attention) if "q_up" in there else None,
            kv_latent_norm_L=self.vector("kv_latent_norm", layer),
            absorb=absorb,
            expand=expand,
            output=self._linear(("output",), layer, attention, shape.output_bias),
        )

    def heads(self, part: str, layer: int) -> list[Array]:
        """What latent attention has for each head: `absorb` `[L, D]` or `expand` `[D, L]`."""
        mla = self._shape.mla
        assert mla is not None
        kv_up = floats_of(self._get("kv_up", layer)).reshape(self._shape.heads, -1, mla.kv_rank)
        if part == "absorb":
            return [head.T for head in kv_up[:, : mla.nope_dim]]
        return list(kv_up[:, mla.nope_dim :])

    def _dense(self, layer: int, there: Container[str]) -> DenseWeights:
        bias, mlp = self._shape.mlp_bias, self._formats.mlp
        return DenseWeights(
            gate_up=self._linear(("gate", "up"), layer, mlp, bias),
            down=self._linear(("down",), layer, mlp, bias),
        )

    def _mixture(
        self, layer: int, there: Container[str], loading: Loading | None
    ) -> MixtureWeights:
        shape, ops = self._shape, self._placed.ops(layer)
        router = self._linear(("router",), layer, self._formats.router, "router_bias" in there)
        host: kernels.ExpertWeights | None = None
        cold: ColdExperts | None = None
        if not self._placed.has_host_experts(layer, shape):
            experts, cold = self._pack_experts(ops, layer, loading)
        else:
            host, experts = self._host_experts(layer, loading)
        return MixtureWeights(
            router=router,
            correction_E=self._optional("correction", layer, there),
            experts=experts,
            shared=self._shared(layer) if "shared_gate" in there else None,
            shared_score=self._linear(("shared_score",), layer, self._formats.router)
            if "shared_score" in there
            else None,
            host=host,
            cold=cold,
        )

    def _pack_experts(
        self, ops: Ops, layer: int, loading: Loading | None
    ) -> tuple[Experts, ColdExperts | None]:
        """All of a layer; with `loading` later."""
        count = self._shape.experts
        if all(self.making.kept(("expert", layer, expert)) for expert in range(count)):
            of_all = [self.making.take(("expert", layer, expert)) for expert in range(count)]
            return of_all[0], None
        experts = self._new_experts(ops, layer)
        calls = [partial(self._set_expert, ops, experts, layer, e) for e in range(count)]
        if loading is None:
            for call in calls:
                call()
            return experts, None
        pieces = [Piece(experts.nbytes // count, call) for call in calls]
        loading.add(pieces, order=layer)
        # A device does not say which it chose before it asks for them: nothing is lazy there.
        is_lazy = self._placed.placement.layers[layer].device == CPU
        return experts, ColdExperts(loading, pieces) if is_lazy else None

    def _new_experts(self, ops: Ops, layer: int) -> Experts:
        shape, asked = self._shape, self._formats.experts
        # All of a layer are one tensor where they have blocks, and so are alike.
        first = self.expert(layer, 0) if asked in BLOCK_FORMATS else None
        gate_up, down = (asked, asked) if first is None else self._held_formats(first, asked)
        return ops.new_experts(
            shape.experts,
            shape.hidden,
            shape.moe_intermediate,
            gate_up,
            down_format=down,
            biases=shape.expert_bias,
        )

    def _held_formats(self, expert: ExpertTensors, asked: str) -> tuple[str, str]:
        """Of gate and up, which lie in one matrix, and of down, where `asked` has blocks. Where
        gate and up differ, or floats are beside codes, all have the nearest format without blocks.
        """
        matrices = (expert.gate_FM, expert.up_FM, expert.down_MF)
        gate, up, down = (held_format(matrix, asked) for matrix in matrices)
        alike = gate == up and len({type(matrix) for matrix in matrices}) == 1
        if alike and (isinstance(expert.gate_FM, BlockRows) or gate == down):
            return gate, down
        return NEAREST, NEAREST

    def _host_experts(
        self, layer: int, loading: Loading | None
    ) -> tuple[kernels.ExpertWeights | None, Residents | None]:
        """What the host has of a layer, and memory for some of it on the layer's device. Of several
        ranks the first has the host's.
        """
        slots = self._placed.placement.layers[layer].resident
        host: kernels.ExpertWeights | None = None
        if self._rank.is_first:
            assert self._placed.host is not None
            host, _ = self._of_host._pack_experts(self._placed.host, layer, loading)
        if not slots:
            return host, None
        if self._slices is not None or host is None:
            return host, self._sliced_residents(layer, slots)
        return host, self._placed.ops(layer).residents(host, slots)

    def _sliced_residents(self, layer: int, slots: int) -> Residents:
        """Memory for a rank's part of some experts, which come from the files."""
        ops, shape, name = self._placed.ops(layer), self._shape, self._formats.experts
        held = name if name in ops.weight_formats else ops.auto_format("float32")
        experts = ops.new_experts(
            slots, shape.hidden, shape.moe_intermediate, held, biases=shape.expert_bias
        )

        def fill(slot: int, expert: int) -> None:
            with _damage(f"expert {expert} of layer {layer}"):
                ops.set_expert(experts, slot, self.expert(layer, expert))
            self.give_back()

        return ops.slotted(experts, shape.experts, fill)

    def _get(self, part: str, layer: int, index: Index = None, **more: int) -> Matrix:
        name = self._row.names[part].format(layer=layer, **more)
        self.making.read(name, index if isinstance(index, int) else None)
        if self._slices is None:
            return self._tensors.get(name, index)
        return self._slices.read(self._tensors, part, name, index)

    def vector(self, part: str, layer: int = 0) -> Array:
        """A norm, or another part of one dimension."""
        values = floats_of(self._get(part, layer)).flatten()
        if part in NORMS and self._norm_offset:
            values = to_float32(values) + np.float32(self._norm_offset)
        return self._placed.ops(layer).vector(values)

    def _optional(self, part: str, layer: int, there: Container[str]) -> Array | None:
        return self.vector(part, layer) if part in there else None

    def _linear(
        self, parts: tuple[str, ...], layer: int, weight_format: str, bias: bool = False
    ) -> Linear:
        ops = self._placed.ops(layer)

        def pack() -> Linear:
            with _damage(f"{', '.join(parts)} of layer {layer}"):
                rows = [self.rows(part, layer) for part in parts]
                biases = [self.bias(part, layer) for part in parts] if bias else []
                packed = ops.pack_linear(rows, biases, weight_format)
            self.give_back()
            return packed

        return self.making.once((*parts, layer), ops.device, pack)

    def bias(self, part: str, layer: int) -> Array:
        """Of a matrix; zeros for what has none beside one that has."""
        if part == "q" and self._shape.mla:
            return np.zeros(self._shape.heads * self._shape.head_dim, np.float32)
        return floats_of(self._apart(part, f"{part}_bias", layer))

    def rows(self, part: str, layer: int, rows: slice | None = None) -> Matrix:
        """Of a matrix, in the decoder's order; all or some."""
        return self._apart(part, part, layer, rows)

    def _apart(self, part: str, name: str, layer: int, rows: slice | None = None) -> Matrix:
        """In the decoder's order; see `rows_order`."""
        shape = self._shape
        if not is_reordered(shape, part):
            return self._get(name, layer, rows)
        whole = self._get(name, layer)
        wanted = rows_order(shape, part, len(whole))
        return whole[wanted if rows is None else wanted[rows]]

    def expert(self, layer: int, expert: int) -> ExpertTensors:
        """One that is routed to."""
        if not self._fused:
            gate, up, down = (
                self._get(part, layer, expert=expert)
                for part in ("expert_gate", "expert_up", "expert_down")
            )
            if not self._shape.expert_bias:
                return ExpertTensors(gate, up, down)
            gate_bias, up_bias, down_bias = (
                floats_of(self._get(f"expert_{part}_bias", layer, expert=expert))
                for part in ("gate", "up", "down")
            )
            return ExpertTensors(gate, up, down, (gate_bias, up_bias, down_bias))
        gate_up = self._get("experts_gate_up", layer, expert)
        down = self._get("experts_down", layer, expert)
        if not self._row.columns_first:
            half = len(gate_up) // 2
            return ExpertTensors(gate_up[:half], gate_up[half:], down)
        biases = None
        if self._shape.expert_bias:
            gate_up_bias = floats_of(self._get("experts_gate_up_bias", layer, expert))
            down_bias = floats_of(self._get("experts_down_bias", layer, expert))
            biases = (gate_up_bias[::2], gate_up_bias[1::2], down_bias)
        if not isinstance(gate_up, QuantizedRows | BlockRows):  # those have rows first
            gate_up, down = gate_up.T, floats_of(down).T
        return ExpertTensors(gate_up[::2], gate_up[1::2], down, biases)

    def _set_expert(self, ops: Ops, experts: Experts, layer: int, expert: int) -> None:
        key, nbytes = ("expert", layer, expert), experts.nbytes // self._shape.experts
        kept = self.making.kept(key)
        if kept is not None and isinstance(experts, kernels.ExpertWeights):
            # What lies beside one that has changed moves, as it is packed.
            experts.copy(expert, kept.value, expert)
            self.making.move(key, experts)
            return
        with self.making.reading() as reads, _damage(f"expert {expert} of layer {layer}"):
            ops.set_expert(experts, expert, self.expert(layer, expert))
        self.making.add(key, Made(experts, ops.device, nbytes, frozenset(reads)))
        self.give_back()

    def shared(self, layer: int) -> ExpertTensors:
        """The shared experts as one."""
        gate, up, down = (self._get(f"shared_{part}", layer) for part in ("gate", "up", "down"))
        return ExpertTensors(gate, up, down)

    def _shared(self, layer: int) -> Experts:
        shape = self._shape
        ops = self._placed.ops(layer)

        def pack() -> Experts:
            gate_up = down = self._formats.mlp
            with _damage(f"the shared experts of layer {layer}"):
                tensors = self.shared(layer)
                if gate_up in BLOCK_FORMATS:
                    gate_up, down = self._held_formats(tensors, gate_up)
                shared = ops.new_experts(
                    1, shape.hidden, shape.shared_intermediate, gate_up, down_format=down
                )
                ops.set_expert(shared, 0, tensors)
            return shared

        return self.making.once(("shared", layer), ops.device, pack)

    def give_back(self) -> None:
        """As `Tensors.give_back`."""
        self._tensors.give_back()


def is_reordered(shape: ModelShape, part: str) -> bool:
    """Whether the decoder has the rows of a matrix in another order than files."""
    reordered = ("q", "q_up", "kv_down") if shape.mla else ("q", "k")
    return shape.rope.interleaved and part in reordered


def rows_order(shape: ModelShape, part: str, rows: int) -> Array:
    """Which row of a file's matrix is each of the decoder's.

    Where rotated pairs are neighbours: the first of each, then the second of each, as the decoder
    rotates them. Scores are the same.
    """
    numbers = np.arange(rows)
    if not is_reordered(shape, part):
        return numbers
    size = rows if part == "kv_down" else shape.head_dim
    of_head = numbers.reshape(-1, size)
    # Latent attention rotates the last elements, other attention the first ones.
    first = size - shape.mla.rope_dim if shape.mla else 0
    end = size if shape.mla else shape.rope.rotary_dim
    rotated = of_head[:, first:end]
    order = (of_head[:, :first], rotated[:, ::2], rotated[:, 1::2], of_head[:, end:])
    return np.concatenate(order, axis=1).flatten()


@contextmanager
def _damage(part: str) -> Iterator[None]:
    """Weights that are not finite are the file's fault, whatever else fails is not."""
    try:
        yield
    except NotFiniteError as error:
        raise ModelFileError(f"{part} cannot be packed ({error}): the file is damaged") from error
