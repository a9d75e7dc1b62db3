"""Brings a model, its text and its pages up for an engine."""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inlay import kernels
from inlay.cache import KvStore, open_store
from inlay.core.block_hash import DIGEST_BYTES
from inlay.core.errors import InlayError
from inlay.core.kv_format import KvFormat
from inlay.core.messages import EngineInfo
from inlay.core.model_config import read_shape
from inlay.core.placement import CPU
from inlay.core.tensor_parallel import shape_of_rank
from inlay.core.units import parse_bytes
from inlay.engine.config import EngineConfig
from inlay.engine.deferral import choose_deferral
from inlay.engine.placing import Where, place_model
from inlay.engine.pool_size import choose_pool_size
from inlay.engine.rank_wire import PoolSetup, RankSetup
from inlay.models.host_share import ShareConfig
from inlay.models.memory import num_gpus
from inlay.models.model import Model, load_model

if TYPE_CHECKING:
    from inlay.engine.ranks import Ranks
    from inlay.models.kv_pool import KvPool
    from inlay.models.rank_group import RankGroup
    from inlay.models.text import Text

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class LoadedModel:
    """All that an engine runs on.

    Attributes:
        name: what the user called the model.
        max_context_tokens: what model, configuration and pages allow.
        store: where blocks are kept besides the pool, if anywhere; the engine closes it.
        ranks: other processes that share each layer; None: there are none. The engine closes them.
        directory: where it lies; None: it was not loaded from one.
        reload: loads another directory's weights as these were, on all ranks, given the model that
            serves, of which it takes over what is equal, and the number of the new weights; None:
            they cannot be replaced.
    """

    name: str
    model: Model
    text: "Text"
    kv_format: KvFormat
    pool: "KvPool"
    max_context_tokens: int
    store: KvStore | None = None
    ranks: "Ranks | None" = None
    directory: Path | None = None
    reload: Callable[[Path, Model, int], Model] | None = None

    @property
    def held_as(self) -> str:
        """What keys and values depend on besides the weights: their format, and deferral."""
        deferred = self.model.deferred
        return self.model.weight_format + (f", {deferred} deferred" if deferred else "")

    def info(self, config: EngineConfig, load_s: float) -> EngineInfo:
        """What is served, with what."""
        shape = self.model.shape
        return EngineInfo(
            model=self.name,
            architecture=shape.architecture,
            parameters=shape.parameters,
            max_context_tokens=self.max_context_tokens,
            vocab_size=shape.vocab,
            layers=shape.layers,
            moe_layers=len(shape.sparse_layers),
            experts=shape.experts,
            experts_per_token=shape.experts_per_token,
            device=self.model.device,
            weight_format=self.model.weight_format,
            kv_dtype=self.kv_format.dtype,
            isa=_isa(self.model.device),
            page_tokens=self.kv_format.page_tokens,
            num_pages=self.pool.num_pages,
            page_bytes=self.kv_format.whole.page_bytes,
            load_s=load_s,
            placement=self.model.placement_line,
            deferred=self.model.deferred,
        )


def load(config: EngineConfig) -> LoadedModel:
    """Load the model that a configuration names.

    Raises:
        ModelError: it cannot be found, read or held in memory.
        ConfigError: the page pool does not fit the configuration.
        ResourceError: the page pool does not fit the memory that is free.
        StoreError: `cache.store` cannot be reached, or `cache.disk` cannot be used.
    """
    on_cpu = _device(config.device) == CPU
    set_threads(config.threads, config.placement.tensor_parallel if on_cpu else 1, on_cpu=on_cpu)
    # First: it takes memory that the pool of pages must not count on, and may fail early.
    store = open_store(config.cache)
    try:
        return _load(config, store)
    except BaseException:
        if store is not None:
            store.close()
        raise


def _load(config: EngineConfig, store: KvStore | None) -> LoadedModel:
    from inlay.models.source import resolve_model
    from inlay.models.text import Text

    source = resolve_model(config.model, weight_format=config.weight_format, offline=config.offline)
    config = replace(config, weight_format=source.weight_format(config.weight_format))
    device = _device(config.device)
    where = place_model(config, source.directory, device)
    text = partial(Text.load, source.directory, encodes=False)
    if config.placement.tensor_parallel == 1:
        model = load_placed(config, source.directory, device, where)
        loaded = prepare(config, source.name, model, text(), store)
        loaded.directory = source.directory
        loaded.reload = lambda directory, previous, _: load_placed(
            config, directory, device, where, previous=previous
        )
        return loaded
    ranks = _start_ranks(config, source.directory, device, where)
    try:
        device = _device_of(device, 0)
        group = ranks.meet(device)
        model = load_placed(config, source.directory, device, where, group)
        model.around_step = partial(ranks.step, 0)
        loaded = prepare(config, source.name, model, text(), store, ranks)
        loaded.directory = source.directory
        loaded.reload = partial(
            _reload_ranks,
            ranks,
            lambda directory, previous: load_placed(
                config, directory, device, where, group, previous=previous
            ),
        )
        return loaded
    except BaseException:
        ranks.close()
        raise


def _reload_ranks(
    ranks: "Ranks",
    load: Callable[[Path, Model], Model],
    directory: Path,
    previous: Model,
    number: int,
) -> Model:
    """The first rank's part, when all have theirs. Raises what any of them cannot do."""
    ranks.load(number, directory)
    try:
        model = load(directory, previous)
    except BaseException:
        with contextlib.suppress(InlayError):
            ranks.loaded_weights()
        raise
    model.made_bytes += ranks.loaded_weights()
    model.around_step = partial(ranks.step, number)
    return model


def load_placed(
    config: EngineConfig,
    directory: Path,
    device: str,
    where: Where,
    group: "RankGroup | None" = None,
    *,
    previous: Model | None = None,
) -> Model:
    """Load a model's weights, or one rank's part of them, and all of that: others would wait for
    what a step of one lacks. Raises as `load_model`.
    """
    experts, gpu_memory = config.experts, config.placement.gpu_memory
    return load_model(
        directory,
        device=device,
        weight_format=where.weight_format,
        verify=config.verify_weights,
        load=config.load if group is None else "whole",
        placement=where.placement,
        gpu_bytes=None if gpu_memory is None else parse_bytes(gpu_memory),
        sharing=ShareConfig(
            deferred=0 if experts.deferral == "auto" else experts.deferral,
            moves_per_s=experts.moves_per_s,
            stream=experts.stream,
        ),
        group=group,
        graph=config.graph == "auto",
        previous=previous,
    )


def _start_ranks(config: EngineConfig, directory: Path, device: str, where: Where) -> "Ranks":
    from inlay.engine.ranks import Ranks  # loads torch

    degree, placement = config.placement.tensor_parallel, where.placement
    shape_of_rank(read_shape(directory), degree)  # refused before any process starts

    def setup(number: int, port: int) -> RankSetup:
        own = _device_of(device, number)
        return RankSetup(
            config=config,
            directory=str(directory),
            device=own,
            weight_format=where.weight_format,
            placement=None if placement is None else placement.moved(own),
            number=number,
            degree=degree,
            port=port,
            parent_pid=os.getpid(),
        )

    return Ranks(setup, degree)


def _device_of(device: str, rank: int) -> str:
    return device if device == CPU else f"{device}:{rank}"


def free_for_pages(config: EngineConfig, model: Model) -> int:
    """What weights that are still to come, and a step, leave."""
    unfilled_bytes = model.unfilled_bytes  # asked first: it shrinks as what is free does
    return model.free_for_pages(config.scheduler.max_batch_tokens) - unfilled_bytes


def prepare(
    config: EngineConfig,
    name: str,
    model: Model,
    text: "Text",
    store: KvStore | None = None,
    ranks: "Ranks | None" = None,
) -> LoadedModel:
    """Give a model its page pool, and the store that stands behind it."""
    kv_format = model.kv_format(dtype=config.cache.dtype, page_tokens=config.cache.page_tokens)
    free_bytes = free_for_pages(config, model)
    if ranks is not None:
        free_bytes = min(free_bytes, ranks.loaded())
        if model.device == CPU:
            free_bytes //= config.placement.tensor_parallel  # all of them see the same memory
    size = choose_pool_size(
        config,
        kv_format,
        model_context_tokens=model.shape.max_context_tokens,
        free_bytes=free_bytes,
        device=model.device,
    )
    pool = model.new_kv_pool(kv_format, size.num_pages)
    if ranks is not None:
        ranks.open_pool(PoolSetup(kv_format.dtype, kv_format.page_tokens, size.num_pages))
    if config.experts.deferral == "auto" and model.host_share is not None:
        chosen, changed = choose_deferral(model, pool, text, config.experts.max_divergence)
        model.host_share.deferred = chosen
        log.info("%d experts of a token are deferred, which changes %.4f nats", chosen, changed)
    return LoadedModel(
        name=name,
        model=model,
        text=text,
        kv_format=kv_format,
        pool=pool,
        max_context_tokens=size.max_context_tokens,
        store=store,
        ranks=ranks,
    )


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if num_gpus() else CPU


def set_threads(threads: int | None, sharing: int = 1, *, on_cpu: bool) -> None:
    """Of the kernels: so many, or all processors, divided among the processes that share them; and
    of PyTorch, where it computes.
    """
    threads = max(1, (threads or kernels.usable_processors()) // sharing)
    kernels.set_num_threads(threads)
    if not on_cpu:
        import torch

        torch.set_num_threads(threads)


def _isa(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return kernels.selected_isa()


def hash_chain(
    namespace_key: bytes, token_ids: Sequence[int], block_tokens: int, parent: bytes
) -> list[bytes]:
    """`core.block_hash.chain` in native code, about three times as fast."""
    joined = kernels.block_hash_chain(namespace_key, parent, token_ids, block_tokens)
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]
