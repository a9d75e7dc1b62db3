"""checkpoint-engine's P2PStore, as its parameter servers use it, in a process without a GPU.

`own SITE`: register a buffer of known bytes, say at which address it is, and wait for the end of
standard input. `read SITE TARGET ADDRESS`: read it in buckets into a registered buffer, and print
whether the bytes are the same, and what a read from nobody does. SITE is a folder of site-packages.

The package's store asks a `DeviceManager` for devices and for the transfer engine's protocol, and
that class knows GPUs and NPUs alone; `Devices` answers for a host with none.
"""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

SIZE, BUCKET = 8 << 20, 1 << 20
NOBODY = "127.0.0.1:9"


class Devices:
    """What a P2PStore asks of a DeviceManager."""

    device_module = SimpleNamespace(device_count=lambda: 1)
    transfer_engine_protocol = "tcp"

    def rdma_device(self, rank: int) -> str:
        """None."""
        del rank
        return ""


def store_of(site: str) -> Any:
    """The package's own store."""
    sys.path.append(site)  # behind ours
    from checkpoint_engine.p2p_store import P2PStore  # type: ignore[import-not-found]

    os.environ.setdefault("RANK", "0")
    return P2PStore(Devices())


def content() -> torch.Tensor:
    """What the owner has."""
    return (
        torch.arange(SIZE, dtype=torch.int64)
        .mul_(2654435761)
        .bitwise_right_shift_(7)
        .to(torch.uint8)
    )


def own(site: str) -> None:
    """The rank that has the weights."""
    store, tensor = store_of(site), content()
    store.register_named_tensors({"memory_pool_weights_0": tensor})
    print(json.dumps([store.addr, tensor.data_ptr()]), flush=True)
    sys.stdin.read()
    assert store.unregister_named_tensors(["memory_pool_weights_0"]) == 1


def read(site: str, target: str, address: int) -> None:
    """A rank that lacks them."""
    store, buffer = store_of(site), torch.zeros(SIZE, dtype=torch.uint8)
    store.register_named_tensors({"__ipc_buffer__": buffer})
    starts = range(0, SIZE, BUCKET)
    store.batch_transfer_sync_read(
        target,
        [buffer.data_ptr() + at for at in starts],
        [address + at for at in starts],
        [BUCKET for _ in starts],
    )
    equal = bool(torch.equal(buffer, content()))
    try:
        store.batch_transfer_sync_read(NOBODY, [buffer.data_ptr()], [address], [BUCKET])
        refused = False
    except AssertionError:  # what the package makes of a code that is not 0
        refused = True
    assert store.unregister_named_tensors(["__ipc_buffer__"]) == 1
    print(json.dumps([equal, refused]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "own":
        own(sys.argv[2])
    else:
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
