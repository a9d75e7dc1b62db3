"""What the surface script cannot show: processes, tensors, closed stores, wrong arguments."""

import asyncio
import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inlay.connect.mooncake import (
    MooncakeDistributedStore,
    ReplicateConfig,
    TransferEngine,
    asking,
    opening,
)
from inlay.connect.mooncake.async_store import MooncakeDistributedStoreAsync
from inlay.connect.mooncake.tensors import HEADER_BYTES
from inlay.store import Store
from tests.integration.connect.conftest import PROGRAM, Setup
from tests.support.deployments import wait_until
from tests.support.directories import free_port

OTHER = """
import sys
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 32 << 20, 0, "tcp", "", sys.argv[1]) == 0
config = ReplicateConfig()
config.preferred_segment = sys.argv[2]
assert store.put("by another", b"process" * 1000, config) == 0
assert store.get("by one") == b"one"
assert store.put("at home", b"x") == 0
print(store.close())
"""
PAGE = 4096


def test_processes_share_objects(master: str, setup: Setup) -> None:
    store = setup()
    store.put("by one", b"one")
    command = [sys.executable, "-c", f"from {PROGRAM} import activate; activate()\n" + OTHER]
    command += [master, store.get_hostname()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0\n", done.stderr
    assert store.get("by another") == b"process" * 1000
    [replica] = store.get_replica_desc("by another")
    where = replica.get_memory_descriptor().buffer_descriptor
    assert (where.transport_endpoint, where.size) == (store.get_hostname(), 7000)
    with pytest.raises(RuntimeError, match="in memory"):
        replica.get_disk_descriptor()


def test_two_stores_keep_two_replicas(setup: Setup) -> None:
    one, two = setup(), setup()
    config = ReplicateConfig()
    config.replica_num = 2
    assert one.put("twice", b"x", config) == 0
    endpoints = {
        replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
        for replica in two.get_replica_desc("twice")
    }
    # A replica goes to another failure domain, which is the host: on one host there may be one.
    assert endpoints <= {one.get_hostname(), two.get_hostname()} and endpoints


def test_our_own_client_reads_the_same_objects(master: str, setup: Setup) -> None:
    store = setup()
    store.put("shared", b"value")
    with Store.connect(master) as ours:
        assert ours.get("shared") == b"value"
        ours.put("back", b"value")
    assert store.get("back") == b"value"


def test_pages_move_without_copies_on_the_way(setup: Setup) -> None:
    """As an engine's page-first pool does: K and V of a page under one key, batches of 128."""
    store = setup()
    pool = np.random.default_rng(0).integers(0, 255, 256 * PAGE, np.uint8)
    target = np.zeros_like(pool)
    keys = [f"page-{number}" for number in range(128)]
    here = [[pool.ctypes.data + (2 * n + half) * PAGE for half in (0, 1)] for n in range(128)]
    there = [[target.ctypes.data + (2 * n + half) * PAGE for half in (1, 0)] for n in range(128)]
    sizes = [[PAGE, PAGE]] * 128
    assert store.batch_put_from_multi_buffers(keys, here, sizes) == [0] * 128
    assert store.batch_is_exist(keys) == [1] * 128
    assert store.batch_get_into_multi_buffers(keys, there, sizes) == [2 * PAGE] * 128
    assert (target.reshape(-1, 2, PAGE)[:, ::-1] == pool.reshape(-1, 2, PAGE)).all()


def test_buffers_that_do_not_have_the_size_of_the_value(setup: Setup) -> None:
    store = setup()
    store.put("value", bytes(1000))
    room = np.zeros(4096, np.uint8)
    memory = room.ctypes.data
    into = store.batch_get_into_multi_buffers
    assert into(["value", "value"], [[memory, memory + 500]] * 2, [[500, 500], [500, 100]]) == [
        1000,
        -600,
    ]
    assert store.get_into("value", memory, 999) == -600
    assert store.get_into("value", 0, 1000) == -600
    assert store.get_into("nothing", memory, 1000) == -704
    assert store.put_from("null", 0, 1000) == -600
    assert store.batch_put_from(["null", "good"], [0, memory], [10, 10]) == [-600, 0]
    assert into(["value"], [[memory], [memory]], [[1000]]) == [-600]


def test_a_session_that_was_not_started(setup: Setup) -> None:
    store = setup()
    room = np.zeros(4096, np.uint8)
    memory = room.ctypes.data
    assert store.batch_put_from_multi_buffer_ranges(["a"], [[memory]], [[8]], [[0]]) == [-600]
    assert store.batch_put_session_end(["a"]) == [-600]
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[memory]], [[8]], [[0]]) == [-600]
    assert store.batch_put_session_start(["a"], [16]) == [0]
    beyond = store.batch_put_from_multi_buffer_ranges(["a"], [[memory]], [[8]], [[9]])
    assert beyond == [-600]
    assert store.batch_put_session_start(["b"], [0]) == [-600]


def test_a_handle_keeps_its_value(setup: Setup) -> None:
    store = setup()
    store.put("held", b"first" * 1000)
    handle = store.get_buffer("held")
    assert handle is not None
    store.upsert("held", b"other" * 1000)
    store.remove("held", True)
    assert bytes(handle) == b"first" * 1000 and handle.size() == 5000
    assert ctypes.string_at(handle.ptr(), 5) == b"first"
    assert not handle.flags.writeable
    assert torch.frombuffer(bytearray(handle), dtype=torch.uint8).numel() == 5000


DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
          "bool", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_come_back(setup: Setup, dtype: str) -> None:
    store = setup()
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    assert store.put_tensor("tensor", tensor) == 0
    assert store.get_size("tensor") == HEADER_BYTES + tensor.numel() * tensor.element_size()
    found = store.get_tensor("tensor")
    assert found is not None and found.dtype == tensor.dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_tensors_of_all_shapes(setup: Setup) -> None:
    store = setup()
    for number, tensor in enumerate(
        [torch.arange(12.0).reshape(3, 4).t(), torch.tensor(3.0), torch.empty(0), torch.ones(1, 0)]
    ):
        assert store.put_tensor(f"t{number}", tensor) == 0
        found = store.get_tensor(f"t{number}")
        assert found is not None
        assert torch.equal(found, tensor if tensor.dim() else tensor.reshape(1))
    assert store.upsert_tensor("t1", torch.tensor([5])) == 0
    assert store.batch_get_tensor(["t1", "nothing"]) == [torch.tensor([5]), None]


def test_tensors_from_addresses_and_into_tensors(setup: Setup) -> None:
    store = setup()
    tensor = torch.arange(24.0).reshape(4, 6)
    store.put_tensor("whole", tensor)
    place = np.zeros(HEADER_BYTES + 96, np.uint8)
    at = place.ctypes.data, place.nbytes
    assert store.get_into("whole", *at) == place.nbytes
    assert store.put_tensor_with_tp_from("cut", *at, 0, 2, 1) == 0
    assert store.batch_put_tensor_with_tp_from(["cut2"], [at[0]], [at[1]], 0, 2) == [0]
    for name, dim in (("cut", 1), ("cut2", 0)):
        for rank, shard in enumerate(tensor.chunk(2, dim)):
            assert torch.equal(store.get_tensor_with_tp(name, rank, 2), shard)

    target = torch.zeros(4, 6)
    assert store.get_tensor_into_cuda("whole", target) == 96 and torch.equal(target, tensor)
    assert store.batch_get_tensor_into_cuda(["none", "whole"], [target] * 2) == [-704, 96]
    for wrong in (torch.zeros(6, 4), torch.zeros(4, 6).double(), torch.zeros(6, 4).t()):
        assert store.get_tensor_into_cuda("whole", wrong) == -600


def test_tensors_in_files(setup: Setup, tmp_path: Path) -> None:
    store, tensor = setup(), torch.arange(6).reshape(2, 3)
    store.put_tensor("saved", tensor)
    file = str(tmp_path / "one.safetensors")
    assert store.save_tensor_to_safetensor("saved", file) == 0
    store.remove("saved", True)
    assert torch.equal(store.load_tensor_from_safetensor(file_name=file), tensor)
    assert torch.equal(store.get_tensor("saved"), tensor)
    assert torch.equal(store.load_tensor_from_safetensor("other", file), tensor)
    assert torch.equal(store.get_tensor("other"), tensor)
    assert store.save_tensor_to_safetensor("nothing", file) == -704
    assert store.save_tensor_to_safetensor("saved", str(tmp_path / "no" / "folder")) == -600
    assert store.load_tensor_from_safetensor("x", str(tmp_path / "no file")) is None


def test_what_a_segment_held_goes_elsewhere_or_is_gone(setup: Setup) -> None:
    store = setup()
    for grace_s, left in ((20, 1), (0, 0)):
        mounted = store.allocate_and_mount_segment(16 << 20)["segment_ids"]
        config = ReplicateConfig()
        config.preferred_segment = mounted[0]
        key = f"grace-{grace_s}"
        assert store.put(key, b"held", config) == 0
        held = store.get_replica_desc(key)[0].get_memory_descriptor().buffer_descriptor
        assert held.transport_endpoint == mounted[0]
        assert store.unmount_and_free_segment(mounted, grace_s) == 0
        assert store.is_exist(key) == left
        assert (store.get(key) == b"held") == bool(left)


def test_what_is_not_there_says_so(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    store = setup()
    keys = ["a", "b"]
    assert store.put_tensor_with_parallelism("a", torch.zeros(1)) == -600
    assert store.batch_upsert_tensor_with_parallelism_from(keys, [1, 2], [3, 4]) == [-600] * 2
    assert store.get_tensor_with_parallelism("a") is None
    assert store.batch_get_tensor_with_parallelism_into(keys, [1, 2], [3, 4]) == [None] * 2
    assert "_with_tp" in caplog.text
    assert TransferEngine().transfer_write_on_cuda("127.0.0.1:9", 1, 2, 3) == -1
    assert "without _on_cuda" in caplog.text


def test_what_is_no_tensor(setup: Setup) -> None:
    store = setup()
    assert store.put_tensor("x", 3) == -600
    assert store.put_tensor("x", torch.zeros(2, dtype=torch.complex64)) == -600
    assert store.put_tensor("x", torch.zeros([1] * 9)) == -600
    assert store.batch_put_tensor(["x", "y"], [torch.zeros(1), "text"]) == [-600, -600]
    store.put("plain", b"abc" * 200)
    assert store.get_tensor("plain") is None
    assert store.get_tensor("nothing") is None


def test_tensors_in_place(setup: Setup) -> None:
    store = setup()
    tensor = torch.arange(12, dtype=torch.int64).reshape(3, 4)
    store.put_tensor("tensor", tensor)
    buffer = np.zeros(1024, np.uint8)
    address = buffer.ctypes.data
    found = store.get_tensor_into("tensor", address, 1024)
    assert found is not None and torch.equal(found, tensor)
    assert store.get_tensor_into("tensor", address, 8) is None
    size = store.get_size("tensor")
    assert store.put_tensor_from("copy", address, size) == 0
    again = store.get_tensor("copy")
    assert again is not None and torch.equal(again, tensor)
    assert store.put_tensor_from("copy 2", address, 1024) == -600
    assert store.batch_put_tensor_from(["copy 3"], [address], [size]) == [0]
    assert store.batch_upsert_tensor_from(["copy 3"], [address], [size]) == [0]
    assert store.batch_get_tensor_into(["copy", "no"], [address, address], [1024, 1024])[1] is None


def _all_calls(store: MooncakeDistributedStore, mark: int) -> None:
    """Each kind of call, on keys that all tenants have, with values of this one."""
    page = np.full(4096, mark, np.uint8)
    there = np.zeros(4096, np.uint8)
    here, into = page.ctypes.data, there.ctypes.data
    for array in (page, there):
        assert store.register_buffer(array.ctypes.data, array.nbytes) == 0
    assert store.is_exist("one") == 0 and store.get("one") == b""
    assert store.put("one", bytes([mark])) == store.put_parts("two", b"a", bytes([mark])) == 0
    assert store.batch_put_from(["three"], [here], [4096]) == [0]
    assert store.batch_put_from_multi_buffers(["four"], [[here, here]], [[10, 20]]) == [0]
    assert store.put_tensor("five", torch.tensor([mark])) == 0
    assert store.put_tensor_with_tp("six", torch.tensor([mark, 1]), 0, 2) == 0
    assert store.batch_put_session_start(["seven"], [64]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["seven"], [[here]], [[64]], [[0]]) == [64]
    assert store.batch_put_session_end(["seven"]) == [0]

    keys = ["one", "two", "three", "four", "seven"]
    assert store.batch_is_exist([*keys, "nothing", ""]) == [1] * 5 + [0, 0]
    assert store.get_batch(["one", "two"]) == [bytes([mark]), b"a" + bytes([mark])]
    handle = store.get_buffer("three")
    assert handle is not None and bytes(handle) == page.tobytes()
    assert store.get_into("three", into, 4096) == 4096 and (there == mark).all()
    assert store.batch_get_into(["three"], [into], [4096]) == [4096]
    assert store.batch_get_into_multi_buffers(["four"], [[into, into + 9]], [[9, 21]]) == [30]
    assert store.get_into_ranges([into], [["three"]], [[[0]]], [[[8]]], [[[4]]]) == [[[4]]]
    assert store.batch_get_session_start(["seven", "nothing"]) == [0, -704]
    assert store.get_tensor("five").tolist() == [mark]  # type: ignore[union-attr]
    assert store.get_tensor_with_tp("six", 0, 2).tolist() == [mark]  # type: ignore[union-attr]
    assert store.get_size("three") == 4096 and len(store.get_replica_desc("three")) == 1
    assert store.batch_replica_clear(["nothing"]) == []
    assert store.put("", b"x") == -600


def test_tenants_have_keys_of_their_own(setup: Setup, master: str) -> None:
    default = setup()
    tenants = [MooncakeDistributedStore() for _ in range(2)]
    for store, name in zip(tenants, ("one", "two"), strict=True):
        arguments = ("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", master)
        assert store.setup(*arguments, tenant_id=name) == 0
    everybody = [default, *tenants]
    try:
        for mark, store in enumerate(everybody):
            _all_calls(store, mark)
        assert [store.get("one") for store in everybody] == [b"\0", b"\1", b"\2"]
        assert tenants[0].remove("one", True) == 0 and tenants[0].remove("one", True) == -704
        assert tenants[0].batch_remove(["two", "nothing"], True) == [0, -704]
        assert tenants[0].remove_by_regex("^thr", True) == 1
        assert default.remove_by_regex("^f", True) == 2
        assert tenants[1].remove_all(True) == 8
        assert tenants[1].batch_is_exist(["one", "four", "five"]) == [0, 0, 0]
        assert default.batch_is_exist(["one", "four", "five"]) == [1, 0, 0]
        assert default.remove_all(True) == 6
        assert tenants[0].remove_all(True) == 5  # the others were not for them to remove
    finally:
        for store in tenants:
            store.close()


def test_shards_of_tensors(setup: Setup) -> None:
    store = setup()
    tensor = torch.arange(12.0).reshape(3, 4)
    assert store.put_tensor_with_tp("w", tensor, tp_rank=0, tp_size=2, split_dim=1) == 0
    assert store.batch_is_exist(["w", "w_tp_0", "w_tp_1"]) == [0, 1, 1]
    parts = [store.get_tensor_with_tp("w", rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([part for part in parts if part is not None], 1), tensor)
    assert store.put_tensor_with_tp("v", tensor, 0, 3, 1) == -600
    assert store.put_tensor_with_tp("v", tensor) == 0
    assert torch.equal(store.batch_get_tensor_with_tp(["v"])[0], tensor)
    config = ReplicateConfig()
    assert store.batch_pub_tensor_with_tp(["u"], [tensor], config, 0, 3, 0) == [0]
    room = np.zeros(1024, np.uint8)
    address = room.ctypes.data
    found = store.get_tensor_with_tp_into("u", address, 1024, 2, 3)
    assert found is not None and torch.equal(found, tensor[2:])


def test_calls_as_coroutines(master: str) -> None:
    async def talk() -> Any:
        store = MooncakeDistributedStoreAsync()
        await store.async_setup("localhost", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", master)
        put = await asyncio.gather(*(store.async_put(f"a{n}", b"x") for n in range(8)))
        got = await store.async_get("a3")
        await store.async_remove_all(True)
        with pytest.raises(AttributeError):
            _ = store.async_nothing
        with pytest.raises(AttributeError):
            _ = store.nothing
        return put, got, await store.async_close()

    assert asyncio.run(talk()) == ([0] * 8, b"x", 0)


CALLS: list[Callable[[MooncakeDistributedStore], Any]] = [
    lambda store: store.put("k", b"v"),
    lambda store: store.is_exist("k"),
    lambda store: store.get_size("k"),
    lambda store: store.remove("k"),
    lambda store: store.remove_all(),
    lambda store: store.remove_by_regex("k"),
    lambda store: store.put_from("k", 4096, 1),
    lambda store: store.get_into("k", 4096, 1),
    lambda store: store.batch_put_from(["k"], [4096], [1])[0],
    lambda store: store.batch_get_into(["k"], [4096], [1])[0],
    lambda store: store.batch_put_from_multi_buffers(["k"], [[4096]], [[1]])[0],
    lambda store: store.batch_get_into_multi_buffers(["k"], [[4096]], [[1]])[0],
    lambda store: store.put_tensor("k", torch.zeros(1)),
]


def test_a_closed_store_says_so(setup: Setup) -> None:
    """Where Mooncake ends the process."""
    closed = setup()
    assert closed.close() == 0
    for store in (closed, MooncakeDistributedStore()):
        assert [call(store) for call in CALLS] == [-601] * len(CALLS)
        assert store.get("k") == b""
        assert store.get_buffer("k") is None and store.get_tensor("k") is None
        assert store.get_replica_desc("k") == [] and store.health_check() == 1
        assert store.close() == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "no.such.host.invalid"),
        (0, "192.0.2.1"),
        (1, "gopher://here"),
        (2, -1),
        (4, "pigeon"),
        (6, "no port:x"),
        (6, "no.such.host.invalid:50051"),
    ],
)
def test_setup_refuses(master: str, place: int, value: Any) -> None:
    arguments: list[Any] = ["localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", master]
    arguments[place] = value
    store = MooncakeDistributedStore()
    assert store.setup(*arguments) == -1
    assert store.health_check() == 1


def test_setup_refuses_unknown_names(master: str) -> None:
    store = MooncakeDistributedStore()
    arguments = ["localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", master]
    assert store.setup(*arguments, tenant_id="a\0b") == -1
    assert store.setup(*arguments, tenant_id="x" * 300) == -1
    with pytest.raises(TypeError, match="no_such"):
        store.setup(*arguments, no_such=1)
    assert store.setup({"local_hostname": "localhost"}) == -600
    assert store.setup({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE",
                        "global_segment_size": "50%"}) == -600  # fmt: skip


def test_nobody_is_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "JOIN_S", 0.5)
    store = MooncakeDistributedStore()
    began = time.monotonic()
    nobody = f"127.0.0.1:{free_port()}"
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", nobody) == -1
    assert time.monotonic() - began < 30


def test_a_master_that_went_away(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    process = start("master", f"--port={port}", "--metrics_port=0")
    address = process.wait_for(r"master at (127.0.0.1:\d+)")[1]
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", address) == 0
    assert store.health_check() == 0
    assert store.put("kept", b"value") == 0 and store.get("kept") == b"value"
    process.kill()
    store.opened.timeout_s = 0.5
    monkeypatch.setattr(asking, "QUESTION_S", 0.5)
    assert store.get("kept") == b"value"  # its place is known
    assert store.health_check() == 2
    assert store.put("k", b"v") in (-900, -901)
    assert store.is_exist("k") in (-900, -901)
    store.opened.timeout_s = 30
    monkeypatch.setattr(asking, "QUESTION_S", 30)
    again = start("master", f"--port={port}", "--metrics_port=0")
    again.wait_for(r"master at (127.0.0.1:\d+)")
    # Its node tells the new one what it holds.
    wait_until(lambda: store.is_exist("kept") == 1, 30, "what was put before")
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    assert store.close() == 0
