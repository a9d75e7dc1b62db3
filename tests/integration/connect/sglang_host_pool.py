"""Pages of SGLang's own host pool through the backend: how many transfers they are.

Arguments: the master's address, and the site-packages of an environment with SGLang. Prints for
each layout how many pages there were, and how many objects were put and read for them.
"""

import importlib
import json
import sys
from typing import Any

import torch

from tests.integration.connect.sglang_here import use
from tests.integration.connect.sglang_pages import (
    DIM,
    HEADS,
    LAYERS,
    PAGE,
    PAGES,
    config_of,
    rows_of,
)


def make_pool(layout: str) -> Any:
    """A host pool of `MHATokenToKVPoolHost`, for a device pool of the same number of pages."""
    info = importlib.import_module("sglang.srt.mem_cache.device_pool_info")
    mha = importlib.import_module("sglang.srt.mem_cache.pool_host.mha")
    planes = [
        tuple(torch.zeros(PAGES * PAGE, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS))
        for _ in "kv"
    ]
    tables = [torch.tensor([one.data_ptr() for one in plane]) for plane in planes]
    buffers = info.KVBuffers(
        k=planes[0], v=planes[1], k_data_ptrs=tables[0], v_data_ptrs=tables[1],
        layout=next(iter(info.KVBufferLayout)),
    )  # fmt: skip
    described = info.MHABufferInfo(
        buffers=buffers, page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM,
        dtype=torch.bfloat16, device=torch.device("cpu"),
    )  # fmt: skip
    return mha.MHATokenToKVPoolHost(
        described, 1.0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=PAGES * PAGE,
        start_layer=0, end_layer=LAYERS, host_token_capacity=PAGES * PAGE,
    )  # fmt: skip


def count(backend: Any, master: str, layout: str) -> tuple[int, int, int]:
    """Put three pages by one backend and read them by another; pages, objects put, and read."""
    one, two = (backend.InlayHiCache(config_of(master, model_name=layout)) for _ in range(2))
    mine, theirs = make_pool(layout), make_pool(layout)
    mine.kv_buffer.copy_(torch.arange(mine.kv_buffer.numel()).view_as(mine.kv_buffer) % 251)
    one.register_mem_pool_host(mine)
    two.register_mem_pool_host(theirs)
    keys = ["aa", "bb", "cc"]
    assert one.batch_set_v1(keys, rows_of(4, 0, 2)) == [True] * 3
    assert two.batch_get_v1(keys, rows_of(1, 3, 5)) == [True] * 3
    for there, here in ((1, 4), (3, 0), (5, 2)):
        got = theirs.get_data_page(there * PAGE)
        assert torch.equal(got, mine.get_data_page(here * PAGE))
    found = (len(keys), one.store.opened.figures().stored, two.store.opened.figures().read)
    one.close()
    two.close()
    return found


if __name__ == "__main__":
    use(sys.argv[2])
    module = importlib.import_module("inlay.connect.sglang")
    layouts = ("page_first", "page_first_direct")
    print(json.dumps({one: count(module, sys.argv[1], one) for one in layouts}))
