"""HiCache's calls with pages of a host pool, by a backend that SGLang's own factory has made.

Arguments: the master's address, and the site-packages of an environment with SGLang. Its modules of
storage need none of its dependencies; the package's own `__init__`, which does, is passed over.
"""

import sys
import types
from types import SimpleNamespace
from typing import Any

import torch

PAGE, LAYERS, HEADS, DIM, PAGES = 4, 3, 2, 8, 6
EXTRA = {
    "backend_name": "inlay",
    "module_path": "inlay.connect.sglang",
    "class_name": "InlayHiCache",
    "interface_v1": 1,
    "memory": "16MiB",
}


class Pool:
    """Pages of K and V, page-first: as SGLang's host pool, for its calls about storage."""

    layout, page_size, layer_num, dtype = "page_first", PAGE, LAYERS, torch.bfloat16

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.kv_buffer = torch.randn(2, PAGES * PAGE, LAYERS, HEADS, DIM).to(self.dtype)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and bytes: K and V of each page."""
        token = LAYERS * HEADS * DIM * self.dtype.itemsize
        base, half = self.kv_buffer.data_ptr(), self.kv_buffer[0].numel() * self.dtype.itemsize
        pointers = [
            base + int(index) * token + plane * half
            for index in indices.tolist()[::PAGE]
            for plane in (0, 1)
        ]
        return pointers, [PAGE * token] * len(pointers)


def rows_of(*pages: int) -> torch.Tensor:
    """Token indices of pages."""
    return torch.tensor([page * PAGE + row for page in pages for row in range(PAGE)])


def config_of(master: str, kind: Any = SimpleNamespace, **changes: Any) -> Any:
    """A storage configuration; `kind` is SGLang's class, or stands for it."""
    values = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0,
        "attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False,
        "is_page_first_layout": True, "model_name": "org/model",
        "extra_config": EXTRA | {"master": master},
    } | changes  # fmt: skip
    made = kind(**values)
    if kind is SimpleNamespace:
        made.dcp_rank, made.dcp_size = 0, 1
    return made


def check_pages(make: Any, master: str, kind: Any = SimpleNamespace) -> None:
    """One engine puts pages, another one gets them into other places; others find nothing."""
    one, two = make(config_of(master, kind)), make(config_of(master, kind))
    mine, theirs = Pool(0), Pool(1)
    one.register_mem_pool_host(mine)
    two.register_mem_pool_host(theirs)
    keys = ["aa", "bb", "cc"]
    assert two.batch_exists(keys) == 0
    assert one.batch_set_v1(keys, rows_of(4, 0, 2)) == [True] * 3
    assert one.store.opened.figures().stored == 3  # a page is one object, and one transfer
    assert one.batch_set_v1(keys[:1], rows_of(4)) == [True]  # it is there
    assert two.batch_exists([*keys, "dd"]) == 3 and two.batch_exists(["dd", *keys]) == 0
    assert two.batch_get_v1([*keys, "dd"], rows_of(1, 3, 5, 0)) == [True, True, True, False]
    assert two.store.opened.figures().read == 3
    for theirs_page, mine_page in ((1, 4), (3, 0), (5, 2)):
        got = theirs.kv_buffer[:, rows_of(theirs_page)]
        assert torch.equal(got, mine.kv_buffer[:, rows_of(mine_page)])
    assert two.exists("aa") and not two.exists("dd")

    other = make(config_of(master, kind, model_name="another"))
    other.register_mem_pool_host(Pool(2))
    assert other.batch_exists(keys) == 0
    second = make(config_of(master, kind, tp_rank=1, tp_size=2))
    second.register_mem_pool_host(Pool(2))
    assert second.batch_exists(keys) == 0

    value = torch.arange(12.0)
    assert one.set("generic", value) and one.batch_set(["g2"], [value])
    target = torch.zeros(12)
    found = two.get("generic", target)
    assert found is target and torch.equal(target, value)
    assert two.get("generic", torch.zeros(11)) is None and two.get("nothing", target) is None
    assert [one is None for one in two.batch_get(["g2", "no"], [target, target])] == [False, True]

    sent, got = torch.arange(3.0), torch.zeros(3)
    assert one.set("g3", target_location=sent.data_ptr(), target_sizes=12)
    assert one.batch_set(["g3"], None, [sent.data_ptr()], [12]) and not one.set("g4")
    assert two.get("g3", got.data_ptr(), 12) is True and torch.equal(sent, got)
    assert two.batch_get(["g3", "no"], [got.data_ptr()] * 2, [12] * 2) == [True, None]

    ranks = [
        make(config_of(master, kind, is_mla_model=True, tp_rank=rank, tp_size=2)) for rank in (0, 1)
    ]
    for rank in ranks:
        rank.register_mem_pool_host(Pool(3))
    assert ranks[0].batch_set_v1(["shared"], rows_of(0)) == [True]
    assert ranks[1].batch_exists(["shared"]) == 1  # all ranks have the same pages

    one.clear()
    assert two.batch_exists(keys) == 0
    for backend in (one, two, other, second, *ranks):
        backend.close()


if __name__ == "__main__":
    package = types.ModuleType("sglang")
    package.__path__ = [f"{sys.argv[2]}/sglang"]
    sys.modules["sglang"] = package
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    def from_factory(config: Any) -> Any:
        made = StorageBackendFactory.create_backend("dynamic", config, None)
        assert isinstance(made, HiCacheStorage)
        return made

    check_pages(from_factory, sys.argv[1], HiCacheStorageConfig)
    print("{}")
