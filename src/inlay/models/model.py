"""A loaded model: from a directory to logits.

    model = load_model(directory)
    pool = model.new_kv_pool(model.kv_format(), num_pages=64)
    logits = model.forward(batch, pool)

Knows pages only as numbers in a `ForwardBatch`; who may use which page, and sampling, are the
engine's business.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from inlay import kernels
from inlay.core.errors import ArgumentError, ConfigError, ResourceError, UnsupportedModelError
from inlay.core.kv_format import KvFormat, gqa_format, mla_format
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.core.offload import activation_bytes
from inlay.core.placement import CPU, Placement
from inlay.core.tensor_parallel import ALONE, shape_of_rank
from inlay.models.adapter import read_adapter
from inlay.models.adapter_weights import AdapterWeights, pack_adapter
from inlay.models.backends import backend_of, backends_of, check_memory
from inlay.models.background import Loading
from inlay.models.batch import ForwardBatch
from inlay.models.decoder import Decoder
from inlay.models.formats import halves
from inlay.models.hand_over import fill_first
from inlay.models.host_share import HostShare, ShareConfig, SharedMixture
from inlay.models.kv_pool import KvPool
from inlay.models.memory import (
    device_memory_errors,
    free_memory_bytes,
    give_back_device_memory,
    give_back_freed,
)
from inlay.models.ops import Array, Ops
from inlay.models.packed import open_packed
from inlay.models.packed_metadata import PACKED_FILE
from inlay.models.placed import Placed, placement_words
from inlay.models.tensor_weights import TensorWeights, open_checkpoint
from inlay.models.weights import (
    MixtureWeights,
    OpenWeights,
    Weights,
    WeightSource,
    load_weights,
)

if TYPE_CHECKING:
    from inlay.models.rank_group import RankGroup

_MERGE = "merge the adapter into the model (inlay tune export)"
# For each weight, while a matrix is read and converted: floats, and what they are made of.
_CONVERTED_BYTES = 12


class Model:
    """One model, on one device or several; made by `load_model`. `forward` is not thread-safe.

    Routed experts that are not there yet are loaded when a step needs them.

    Attributes:
        shape: sizes and options.
        device: of the first layers: `cpu`, `cuda` or `cuda:<n>`.
        placement: of all layers.
        host_share: what the host computes for devices; None: nothing.
        weight_format: how the matrices are held; see `part_formats` for which ones.
        fingerprint: content fingerprint of the weights; see `WeightFiles.fingerprint`.
        loading: brings in what is missing; `wait` waits for it, `close` ends it.
        source: what the weights were packed from.
        made_bytes: memory of the matrices that were packed, not taken over from another model.
        around_step: entered with each step, by which the first of several ranks has the others run
            it, too; None: there are no others.
    """

    def __init__(
        self,
        *,
        shape: ModelShape,
        placed: Placed,
        weight_format: str,
        fingerprint: str,
        weights: Weights,
        source: WeightSource,
        loading: Loading,
        made_bytes: int,
        mapped: bool,
        kv_dtype: str,
        share: HostShare | None,
        group: "RankGroup | None",
        graph: bool,
    ) -> None:
        self.shape = shape
        self._rank = placed.rank
        self._own = shape_of_rank(shape, placed.rank.degree)
        self.device = placed.first.device
        self.placement = placed.placement
        self.host_share = share
        self.around_step: Callable[[ForwardBatch], AbstractContextManager[None]] | None = None
        self._placed = placed
        self.weight_format = weight_format
        self.fingerprint = fingerprint
        self.source = source
        self.made_bytes = made_bytes
        self.loading = loading
        # Threads must not outlive the model, nor run while the interpreter ends.
        weakref.finalize(self, loading.close)
        if share is not None:
            weakref.finalize(self, share.close)
        self._decoder = Decoder(self._own, weights, placed, self.host_share, group, graph)
        self._mapped = mapped
        self._kv_dtype = kv_dtype
        self._kv_dtypes = placed.kv_dtypes

    @property
    def unfilled_bytes(self) -> int:
        """Memory that is free yet, and that weights will take. Pages of files do not count: they
        come and go.
        """
        return 0 if self._mapped else self.loading.missing_bytes

    def kv_format(self, *, dtype: str = "auto", page_tokens: int = 16) -> KvFormat:
        """The layout of one page, of what this rank has of it; `auto` is the dtype of the weights,
        or of the files where those are held as integers.

        Raises:
            ConfigError: a dtype that the backend cannot read, or an impossible page size.
        """
        if dtype == "auto":
            dtype = self._kv_dtype
        if dtype not in self._kv_dtypes:
            raise ConfigError(
                f"kv dtype {dtype!r} is not supported on {self.device}; supported are auto, "
                f"{', '.join(self._kv_dtypes)}"
            )
        shape = self.shape
        if shape.mla:
            whole = mla_format(
                layers=shape.layers, width=shape.kv_width, dtype=dtype, page_tokens=page_tokens
            )
        else:
            whole = gqa_format(
                layers=shape.layers,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                dtype=dtype,
                page_tokens=page_tokens,
            )
        return whole.of_rank(self._rank)

    def free_for_pages(self, step_tokens: int) -> int:
        """Free memory of the device, on a GPU beside the activations of a step; of several, as if
        the scarcest had all layers.
        """
        activations = int(activation_bytes(self._own, step_tokens))
        free = []
        for device in self.placement.devices:
            own = sum(layer.device == device for layer in self.placement.layers)
            left = self._placed.backends[device].free_bytes() - (device != CPU) * activations
            free.append(max(0, left) * self.shape.layers // own)
        return min(free)

    def new_kv_pool(self, kv_format: KvFormat, num_pages: int) -> KvPool:
        """Reserve pages on the model's device. Raises as `KvPool`."""
        mine = self.kv_format(dtype=kv_format.dtype, page_tokens=kv_format.page_tokens)
        if mine != kv_format:
            raise ConfigError(f"KV format {kv_format} does not fit this model, which needs {mine}")
        stages = [
            (stage.end - stage.first, self._placed.backends[stage.device])
            for stage in self.placement.stages
        ]
        return KvPool(kv_format, num_pages, self._own, stages)

    def forward(self, batch: ForwardBatch, pool: KvPool) -> Array:
        """Run one step: logits of the wanted rows, keys and values of all tokens to the pool.

        Of several ranks each runs the same step; the first gets the logits.

        Returns:
            float32 `[R, V]` in new memory of the device of the last layers: a NumPy array where
            that is the CPU kernels', else a tensor.

        Raises:
            ArgumentError: a token id or page id is outside its range.
            ModelFileError: weights that were still to come are damaged.
        """
        self._check(batch, pool)
        if self.around_step is None:
            return self._run(batch, pool)
        with self.around_step(batch):
            return self._run(batch, pool)

    def load_adapter(self, directory: Path) -> AdapterWeights:
        """Read an adapter, for steps to name in `ForwardBatch.adapters`. They may run meanwhile.
        Of several ranks each reads its part.

        Raises:
            UnsupportedModelError: it is no LoRA.
            ResourceError: a device has too little memory for it.
            ModelNotFoundError: the directory holds no adapter.
            ModelFileError: a file is damaged, or the adapter is another model's.

        Cost: see `pack_adapter`.
        """
        adapter = read_adapter(directory, self.shape)
        try:
            return pack_adapter(adapter, self.shape, self._placed, self.host_share)
        except device_memory_errors() as error:
            raise ResourceError(
                f"the adapter of {directory} finds too little free memory beside the model "
                f"({error}): set cache.memory or cache.pages to less, or have a GPU keep fewer "
                f"experts (placement.gpu_experts), or {_MERGE}"
            ) from error

    def _run(self, batch: ForwardBatch, pool: KvPool) -> Array:
        if self.loading.over or self._mapped:
            return self._decoder.forward(batch, pool)
        # Packing takes turns with kernels: a step would wait for an expert before each of them.
        with self.loading.give_way():
            return self._decoder.forward(batch, pool)

    @property
    def deferred(self) -> int:
        """How many experts of a token that decodes may be added one layer later."""
        return 0 if self.host_share is None else self.host_share.deferred

    @property
    def placement_line(self) -> str:
        """What is where, for people; empty where one device, or the CPU, has all."""
        degree = self._rank.degree
        words = [] if self._rank.is_alone else [f"each layer shared by {degree} processes"]
        devices = self.placement.devices
        if len(devices) > 1 or (self.host_share is not None and devices != (CPU,)):
            words += placement_words(self.placement, self.shape)
        return ", ".join(words)

    def relieve(self, error: BaseException) -> bool:
        """After a step that failed: give memory of devices back, if that was why.

        Returns:
            Whether the step may be tried again.
        """
        if not isinstance(error, device_memory_errors()) or self.host_share is None:
            return False
        if not self._rank.is_alone:  # the others have their parts of the same experts
            return False
        if not self.host_share.relieve():
            return False
        give_back_device_memory()
        return True

    def _check(self, batch: ForwardBatch, pool: KvPool) -> None:
        """Keep bad numbers from reading or writing foreign memory. Cost: a few microseconds."""
        for name, array, limit in (
            ("token id", batch.token_ids_T, self.shape.vocab),
            ("page id", batch.page_table_BP, pool.num_pages),
            ("logit row", batch.logit_rows_R, len(batch.token_ids_T)),
        ):
            if array.size and not (array.min() >= 0 and array.max() < limit):
                raise ArgumentError(
                    f"{name}s go from {array.min()} to {array.max()}, outside 0..{limit - 1}"
                )
        end = 0
        for rows in batch.adapters:
            if not end <= rows.first <= rows.end <= len(batch.token_ids_T):
                raise ArgumentError(
                    f"adapters: rows {rows.first} to {rows.end} do not follow those before"
                )
            end = rows.end
        capacity = batch.page_table_BP.shape[1] * pool.format.page_tokens
        longest = max(batch.context_lens_B.max(), batch.positions_T.max() + 1)
        if longest > capacity or batch.positions_T.min() < 0:
            raise ArgumentError(
                f"a context of {longest} tokens does not fit {batch.page_table_BP.shape[1]} pages "
                f"of {pool.format.page_tokens} tokens"
            )


def load_model(
    directory: Path,
    *,
    device: str = "cpu",
    weight_format: str = "auto",
    backend: str = "auto",
    verify: bool = False,
    load: Literal["lazy", "whole"] = "whole",
    placement: Placement | None = None,
    backends: Mapping[str, Ops] | None = None,
    gpu_bytes: int | None = None,
    sharing: ShareConfig = ShareConfig(),  # noqa: B008 - it is frozen
    group: "RankGroup | None" = None,
    graph: bool = False,
    previous: Model | None = None,
) -> Model:
    """Load the model in a Hugging Face directory. Runs no code from it.

    Args:
        directory: holds config.json and *.safetensors, or `weights.inlay` as `convert` makes it.
        device: `cpu`, `cuda` or `cuda:<n>`.
        weight_format: one of `WEIGHT_FORMATS` that the backend has. `auto` is what the files hold
            on a CPU, and bfloat16 on CUDA.
            Packed weights have theirs.
        backend: `auto` (native kernels on a CPU; on CUDA those in Triton, or PyTorch where Triton
            is missing), `native` or `torch`.
        verify: compare packed weights with their checksums, which reads all of them; damaged ones
            would give wrong answers otherwise. Safetensors carry no checksums.
        load: `whole` returns when all weights are in memory. `lazy` returns before the routed
            experts are, and before the pages of packed weights are; `Model.loading` brings them in
            beside the steps. Where a device other than the CPU has a layer, and with the torch
            backend, it is `whole`.
        placement: where each layer and its experts run; by default all on `device`.
        backends: what computes on the devices of `placement`; by default made by their names.
        gpu_bytes: most of each GPU's memory for weights, cache and activations.
        sharing: of experts between host and devices. Where ranks share each layer, none move.
        group: the processes that share each layer; this one reads its rank's part of the tensors,
            and the first the host's experts.
        graph: replay decode steps on GPUs; see `DecodeGraphs`.
        previous: a model of other weights, loaded with the same arguments. What is packed of equal
            tensors is that one's, and stays in memory as long as either needs it; only the rest is
            packed, all of it before this returns. Of packed directories and GGUF files nothing is
            taken over.

    Raises:
        ConfigError: the ranks cannot share this model, or not with this placement.
        ModelNotFoundError: no such directory or file.
        ModelFileError: a file is damaged, or the files contradict each other.
        UnsupportedModelError: architecture, weight format or device not supported.
        ResourceError: too little free memory for the weights.

    Cost: all threads of the kernels, and in each at most one matrix or expert beside its packed
        form.
    """
    directory = Path(directory)
    rank = ALONE if group is None else group.rank
    if placement is None:  # an impossible device is refused before any file is read
        ops = backend_of(device, backend)
        shape = read_shape(directory)
        placed = Placed.whole(ops, shape, rank)
    else:
        shape = read_shape(directory)
        placed = Placed.by(placement, backends or backends_of(placement, gpu_bytes), shape, rank)
    own = shape_of_rank(shape, rank.degree)
    packed = directory / PACKED_FILE
    if packed.is_file():
        if not rank.is_alone:
            raise UnsupportedModelError(
                f"{packed} holds whole matrices, which placement.tensor_parallel cannot divide: "
                "name the directory that it was converted from"
            )
        opened = open_packed(packed, shape, placed, weight_format, verify=verify)
    else:
        opened = open_checkpoint(directory, shape, placed, weight_format)
    source, made_bytes = opened.source, opened.held_bytes
    if previous is not None:
        opened = _taking_over(opened, previous)
    check_memory(directory, opened, own, placed, packed=packed.is_file())
    whole = load == "whole" or previous is not None
    weights, loading = _load(opened, own, placed, whole=whole)
    if previous is not None and isinstance(source, TensorWeights):
        made_bytes = source.making.end()
    if not rank.is_alone:
        sharing = replace(sharing, moves_per_s=0)
    weights, share = _share(shape, weights, placed, sharing)
    _, rest = halves(opened.weight_format)
    return Model(
        shape=shape,
        placed=placed,
        weight_format=opened.weight_format,
        fingerprint=opened.fingerprint,
        weights=weights,
        source=source,
        loading=loading,
        made_bytes=made_bytes,
        mapped=packed.is_file(),
        kv_dtype=rest if rest in placed.kv_dtypes else opened.float_dtype,
        share=share,
        group=group,
        graph=graph,
    )


def _taking_over(opened: OpenWeights, previous: Model) -> OpenWeights:
    """The same, without what another model has already."""
    new, old = opened.source, previous.source
    if not isinstance(new, TensorWeights) or not isinstance(old, TensorWeights):
        return opened
    return replace(opened, shared_bytes=new.take_over(old))


def _load(
    opened: OpenWeights, shape: ModelShape, placed: Placed, *, whole: bool
) -> tuple[Weights, Loading]:
    if placed.host is None:
        loading = Loading(threads=0)
        weights = load_weights(opened.source, shape.layers)
        loading.seal(opened.held_bytes)
        return weights, loading
    loading = Loading(_num_threads(opened, shape))
    try:
        weights = load_weights(opened.source, shape.layers, loading)
        loading.seal(opened.held_bytes)
        if whole or placed.placement.devices != (CPU,):
            loading.wait()
    except BaseException:
        loading.close()
        raise
    give_back_freed()
    return weights, loading


def _num_threads(opened: OpenWeights, shape: ModelShape) -> int:
    """Those of the kernels, or so many that what they convert fits beside the weights."""
    largest = max(
        shape.hidden * shape.intermediate,
        shape.hidden * shape.heads * shape.head_dim,
        shape.expert_parameters,
    )
    spare_bytes = free_memory_bytes() - opened.held_bytes + opened.shared_bytes.get(CPU, 0)
    return max(1, min(kernels.num_threads(), spare_bytes // 4 // (_CONVERTED_BYTES * largest)))


def _share(
    shape: ModelShape, weights: Weights, placed: Placed, config: ShareConfig
) -> tuple[Weights, HostShare | None]:
    """Layers that share their experts with the host; with deferral the CPU's own, too.

    Returns:
        The weights without the experts of these layers, which are the share's, and that.
    """
    mixtures: dict[int, SharedMixture] = {}
    layers = list(weights.layers)
    for mixture, number in enumerate(shape.sparse_layers):
        mlp, ops = layers[number].mlp, placed.ops(number)
        assert isinstance(mlp, MixtureWeights)
        if mlp.host is not None:
            prefill = placed.placement.layers[number].prefill
            mixtures[mixture] = SharedMixture(mlp.host, ops, mlp.experts, prefill)
        elif config.deferred and isinstance(mlp.experts, kernels.ExpertWeights):
            mixtures[mixture] = SharedMixture(mlp.experts, ops, None)
        else:
            if placed.has_host_experts(number, shape) and mlp.experts is not None:
                fill_first(mlp.experts, shape.experts)  # the first rank's host has the others
            continue
        # A device gets its memory back when the share lets go of it.
        layers[number] = replace(layers[number], mlp=replace(mlp, experts=None, host=None))
    if not mixtures:
        return weights, None
    share = HostShare(shape, mixtures, config, sliced=not placed.rank.is_alone)
    return replace(weights, layers=tuple(layers)), share
