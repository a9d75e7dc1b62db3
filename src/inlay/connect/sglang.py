"""A HiCache storage backend of SGLang: its pages in Inlay's store, each as one object.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "inlay", "module_path": "inlay.connect.sglang", "class_name": "InlayHiCache",
      "interface_v1": 1, "master": "127.0.0.1:50051", "memory": "4GiB"}'

`InlayHiCache` is made when it is asked for, as its base class is SGLang's. Written for and tested
with the base class and the factory of SGLang 0.5.23. Knows pages of host pools by address, no
layers or heads.
"""

import hashlib
import importlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inlay.connect.mooncake.config import parse_size
from inlay.connect.mooncake.store import MooncakeDistributedStore
from inlay.core.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    import torch

LAYOUTS = ("page_first", "page_first_direct")
BACKEND = "InlayHiCache"


class HiCachePages:
    """Pages of one rank's host pool under the hashes that SGLang gives them.

    A key is a digest of what makes pages alike (model, ranks, dtype, tokens and layers of a page)
    and the page's hash, so that no pool finds pages of another form; one of other bytes is a miss.
    Of a model with latent attention all ranks have the same pages; SGLang has one of them write. A
    store that does not answer is a miss.

    Args:
        storage_config: SGLang's `HiCacheStorageConfig`; `extra_config` has "master", and may have
            "memory" (bytes or "4GiB", of each rank) and "hostname" ("localhost").

    Raises:
        ConfigError: no master is named, or a size is wrong.
        StoreUnavailable: the store was not joined; the log has the reason.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = storage_config.extra_config or {}
        if "master" not in extra:
            raise ConfigError(
                'hicache-storage-backend-extra-config lacks "master", such as "127.0.0.1:50051"'
            )
        self._config = storage_config
        self._namespace = ""
        self._pool: Any = None
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            extra.get("hostname", "localhost"),
            "P2PHANDSHAKE",
            parse_size(extra.get("memory", 0)),
            0,
            "tcp",
            "",
            extra["master"],
        )
        if code:
            raise StoreUnavailable(
                f"the store at {extra['master']} was not joined: the log says why; is it running? "
                "(inlay store master)"
            )

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool whose pages are moved.

        Raises:
            ConfigError: its layout has a page in pieces for each layer.
        """
        if mem_pool_host.layout not in LAYOUTS:
            raise ConfigError(
                f"the host pool's layout is {mem_pool_host.layout!r}: start SGLang with "
                f"--hicache-mem-layout {LAYOUTS[0]}"
            )
        buffer = mem_pool_host.kv_buffer
        self.store.register_buffer(buffer.data_ptr(), buffer.numel() * buffer.element_size())
        self.mem_pool_host = self._pool = mem_pool_host
        self._namespace = self._digest(mem_pool_host)

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many of the first pages are there, up to the first that is not."""
        found = self.store.batch_is_exist([self._key(key) for key in keys])
        return next((number for number, one in enumerate(found) if one != 1), len(found))

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: "torch.Tensor", extra_info: Any = None
    ) -> list[bool]:
        """Put pages, straight from the pool; those that are there stay. Whether each is there."""
        names, pointers, sizes = self._places(keys, host_indices)
        codes = self.store.batch_put_from_multi_buffers(names, pointers, sizes)
        return [code == 0 for code in codes]

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: "torch.Tensor", extra_info: Any = None
    ) -> list[bool]:
        """Fill pages of the pool in place; whether each is filled."""
        names, pointers, sizes = self._places(keys, host_indices)
        found = self.store.batch_get_into_multi_buffers(names, pointers, sizes)
        return [size == sum(of_one) for size, of_one in zip(found, sizes, strict=True)]

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    def get(
        self, key: str, target_location: Any = None, target_sizes: int | None = None
    ) -> "torch.Tensor | bool | None":
        """Fill a tensor, or `target_sizes` bytes at an address, from a page; the tensor, or True.

        None where there is no such page, or it has another size.
        """
        if target_location is None:
            return None
        address, size = _memory(target_location, target_sizes)
        if self.store.get_into(self._key(key), address, size) != size:
            return None
        return True if target_sizes else target_location

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> "list[torch.Tensor | bool | None]":
        """`get` of many."""
        locations = target_locations or [None] * len(keys)
        sizes = target_sizes or [None] * len(keys)
        return [self.get(*one) for one in zip(keys, locations, sizes, strict=True)]

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: int | None = None,
    ) -> bool:
        """Put a tensor, or `target_sizes` bytes at an address, as a page."""
        source = target_location if value is None else value.contiguous()
        if source is None:
            return False
        address, size = _memory(source, target_sizes)
        return self.store.put_from(self._key(key), address, size) == 0

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """`set` of many; whether all are there."""
        given = (values, target_locations, target_sizes)
        lists = [[None] * len(keys) if one is None else one for one in given]
        return all([self.set(*one) for one in zip(keys, *lists, strict=True)])

    def clear(self) -> None:
        """Remove all pages of this form, of all ranks that share it."""
        self.store.remove_by_regex(f"^{self._namespace}/", force=True)

    def close(self) -> None:
        """Leave the store."""
        self.store.close()

    def _key(self, page_hash: str) -> str:
        return f"{self._namespace}/{page_hash}"

    def _places(
        self, keys: Sequence[str], host_indices: "torch.Tensor"
    ) -> tuple[list[str], list[list[int]], list[list[int]]]:
        """For each page its key, and addresses and bytes of its pieces: K and V, or one."""
        pointers, sizes = self._pool.get_page_buffer_meta(host_indices)
        pieces = len(pointers) // max(1, len(keys))
        starts = range(0, len(keys) * pieces, pieces) if pieces else []
        return (
            [self._key(key) for key in keys],
            [list(pointers[at : at + pieces]) for at in starts],
            [list(sizes[at : at + pieces]) for at in starts],
        )

    def _digest(self, pool: Any) -> str:
        config = self._config
        shared = bool(config.is_mla_model)  # all ranks have the same pages
        form = {
            "model": config.model_name,
            "mla": shared,
            "tp": None if shared else [config.tp_rank, config.tp_size],
            "pp": [config.pp_rank, config.pp_size],
            "cp": [config.attn_cp_rank, config.attn_cp_size],
            "dcp": [config.dcp_rank, config.dcp_size],
            "dtype": str(pool.kv_buffer.dtype),
            "page": [pool.page_size, getattr(pool, "layer_num", None)],  # SGLang's checks have none
            "tag": (config.extra_config or {}).get("extra_backend_tag"),
        }
        text = json.dumps(form, sort_keys=True).encode()
        return f"hicache-{hashlib.blake2b(text, digest_size=16).hexdigest()}"


def _memory(place: Any, size: int | None) -> tuple[int, int]:
    """Address and bytes of a tensor, or of an address with a size."""
    if isinstance(place, int):
        return place, size or 0
    return place.data_ptr(), place.numel() * place.element_size()


def __getattr__(name: str) -> Any:
    """`InlayHiCache`: the pages as a subclass of SGLang's storage."""
    if name != BACKEND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = importlib.import_module("sglang.srt.mem_cache.hicache_storage").HiCacheStorage
    made = type(BACKEND, (HiCachePages, base), {"__doc__": HiCachePages.__doc__})
    globals()[name] = made  # one class, however often it is asked for
    return made
