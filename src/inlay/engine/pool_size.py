"""How many KV pages an engine gets, and the context that they can hold."""

from dataclasses import dataclass

from inlay.cache import CacheConfig
from inlay.core.errors import ConfigError
from inlay.core.kv_format import KvFormat
from inlay.core.units import format_bytes, parse_bytes
from inlay.engine.config import EngineConfig

# Shares of the memory that is free when the weights are loaded.
_CPU_SHARE = 0.3
_CUDA_SHARE = 0.85
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
    """
    cache, page_tokens = config.cache, kv_format.page_tokens
    context = config.max_context_tokens or model_context_tokens
    if context > model_context_tokens:
        raise ConfigError(
            f"max_context_tokens {context} is more than the model's own limit of "
            f"{model_context_tokens}: ask for at most that, or leave it out"
        )
    context_pages = -(-context // page_tokens)
    num_pages = _asked_pages(cache, kv_format)
    if num_pages is None:
        share = _CUDA_SHARE if device.startswith("cuda") else _CPU_SHARE
        num_pages = max(1, int(free_bytes * share) // kv_format.page_bytes)
        if device == "cpu":
            usual = -(-min(context, _USUAL_CONTEXT_TOKENS) // page_tokens)
            wanted = max(context_pages, usual * config.scheduler.max_running)
            num_pages = min(num_pages, wanted)
    held = min(context, num_pages * page_tokens)
    if config.max_context_tokens is not None and held < context:
        raise ConfigError(
            f"max_context_tokens {context} needs {context_pages} KV pages of "
            f"{format_bytes(kv_format.page_bytes)}, but the cache has {num_pages}: raise "
            "cache.memory or cache.pages, or shorten the context"
        )
    return PoolSize(num_pages=num_pages, max_context_tokens=held)


def _asked_pages(cache: CacheConfig, kv_format: KvFormat) -> int | None:
    if cache.memory is None:
        return cache.pages
    pages = parse_bytes(cache.memory) // kv_format.page_bytes
    if pages < 1:
        raise ConfigError(
            f"cache.memory {cache.memory} is less than one KV page of "
            f"{format_bytes(kv_format.page_bytes)}"
        )
    return pages
