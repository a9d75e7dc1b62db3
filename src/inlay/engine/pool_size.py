"""How many KV pages an engine gets, and the context that they can hold."""

from dataclasses import dataclass

from inlay.cache import CacheConfig
from inlay.core.errors import ConfigError, ResourceError
from inlay.core.kv_format import KvFormat
from inlay.core.units import format_bytes, parse_bytes, size_to_set
from inlay.engine.config import EngineConfig
from inlay.models.memory import POOL_SHARE, pages_that_fit

_CPU_SHARE = 0.3  # of the memory that is free when the weights are loaded
_USUAL_CONTEXT_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """Number of pages, and the longest request that they serve."""

    num_pages: int
    max_context_tokens: int


def choose_pool_size(
    config: EngineConfig,
    kv_format: KvFormat,
    *,
    model_context_tokens: int,
    free_bytes: int,
    device: str,
) -> PoolSize:
    """Choose the size of the page pool.

    `cache.pages` or `cache.memory` are taken as they are. Without them a GPU gives 85 % of its
    free memory; a CPU gives what `max_running` requests of 4,096 tokens need, at most 30 % of
    the free memory. A context that the pool cannot hold is shortened to it, unless
    `max_context_tokens` asks for it.

    Args:
        model_context_tokens: the model's own limit.
        free_bytes: free memory of the device.

    Raises:
        ConfigError: the memory given is less than a page, or than `max_context_tokens`; or that
            is beyond the model's own limit.
        ResourceError: it is more than what is free; or not one page fits.

    The messages name the settings to change, with values that fit.
    """
    page_tokens = kv_format.page_tokens
    context = config.max_context_tokens or model_context_tokens
    if context > model_context_tokens:
        raise ConfigError(
            f"max_context_tokens {context} is more than the model's own limit of "
            f"{model_context_tokens}: ask for at most that, or leave it out"
        )
    context_pages = -(-context // page_tokens)
    num_pages = _asked_pages(config.cache, kv_format, context_pages)
    if num_pages is None:
        share = POOL_SHARE if device.startswith("cuda") else _CPU_SHARE
        num_pages = int(free_bytes * share) // kv_format.page_bytes
        if num_pages < 1:
            raise ResourceError(
                f"{format_bytes(free_bytes)} are free on {device} beside the weights, and KV pages "
                f"of {format_bytes(kv_format.page_bytes)} get {share:.0%} of that: "
                + pages_that_fit(kv_format, int(free_bytes * POOL_SHARE) // kv_format.page_bytes)
            )
        if device == "cpu":
            usual = -(-min(context, _USUAL_CONTEXT_TOKENS) // page_tokens)
            wanted = max(context_pages, usual * config.scheduler.max_running)
            num_pages = min(num_pages, wanted)
    elif num_pages * kv_format.page_bytes > free_bytes:
        fit = int(free_bytes * POOL_SHARE) // kv_format.page_bytes
        raise ResourceError(
            f"{num_pages} KV pages of {format_bytes(kv_format.page_bytes)}, as the cache's "
            f"settings say, need {format_bytes(num_pages * kv_format.page_bytes)}, and "
            f"{format_bytes(free_bytes)} are free on {device}: {pages_that_fit(kv_format, fit)}"
        )
    held = min(context, num_pages * page_tokens)
    if config.max_context_tokens is not None and held < context:
        raise ConfigError(
            f"max_context_tokens {context} needs {context_pages} KV pages of "
            f"{format_bytes(kv_format.page_bytes)}, but the cache has {num_pages}: set "
            + _more_room(config.cache, kv_format, context_pages, free_bytes)
            + f"max_context_tokens={held}"
        )
    return PoolSize(num_pages=num_pages, max_context_tokens=held)


def _asked_pages(cache: CacheConfig, kv_format: KvFormat, context_pages: int) -> int | None:
    if cache.memory is None:
        return cache.pages
    pages = parse_bytes(cache.memory) // kv_format.page_bytes
    if pages < 1:
        context = size_to_set(context_pages * kv_format.page_bytes, up=True)
        raise ConfigError(
            f"cache.memory {cache.memory} is less than one KV page of "
            f"{format_bytes(kv_format.page_bytes)}: set cache.memory={context} (--kv-memory "
            f"{context}) for one request of {context_pages * kv_format.page_tokens} tokens"
        )
    return pages


def _more_room(cache: CacheConfig, kv_format: KvFormat, num_pages: int, free_bytes: int) -> str:
    """The setting, the user's own if there is one, that makes so many pages; empty: none can."""
    size = size_to_set(num_pages * kv_format.page_bytes, up=True)
    if parse_bytes(size) > free_bytes:
        return ""
    if cache.pages is not None:
        return f"cache.pages={num_pages}, or "
    return f"cache.memory={size} (--kv-memory {size}), or "
