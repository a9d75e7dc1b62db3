"""What callers of `mooncake.store` and `mooncake.engine` see: JSON, a line for each case.

The same file runs with the real package and with Inlay in its place; it knows neither. Arguments:
the master's address and a metadata server ("P2PHANDSHAKE").
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
    SoftPinAction,
)

MASTER, METADATA = sys.argv[1:3]
RESULTS: dict[str, Any] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Run it now; keep what it returns, or the kind of error."""
    try:
        result = function()
    except Exception as error:
        result = type(error).__name__
    RESULTS[function.__name__] = result
    print(function.__name__, json.dumps(result, default=repr), file=sys.stderr, flush=True)
    return function


def addresses(array: np.ndarray, size: int) -> list[int]:
    """Of its pieces of `size` bytes."""
    return [array.ctypes.data + at for at in range(0, array.nbytes, size)]


def settle(call: Callable[[], int], wanted: Callable[[int], bool]) -> int:
    """Call until the result is wanted, which leases may hold up, or 5 seconds are over."""
    end = time.monotonic() + 5
    while not wanted(code := call()) and time.monotonic() < end:
        time.sleep(0.02)
    return code


store = MooncakeDistributedStore()
memory = np.arange(1 << 20, dtype=np.uint32).view(np.uint8).reshape(-1)
target = np.zeros(1 << 20, np.uint8)
KEYS = [f"many-{number}" for number in range(4)]


@case
def before_setup() -> Any:
    fresh = MooncakeDistributedStore()
    return [fresh.get("k") == b"", fresh.get_batch(["k"]) == [b""], fresh.health_check(),
            fresh.close()]  # fmt: skip


@case
def setup_positional() -> Any:
    return store.setup("localhost", METADATA, 64 << 20, 16 << 20, "tcp", "", MASTER)


@case
def health() -> Any:
    return store.health_check()


@case
def hostname() -> Any:
    host, _, port = store.get_hostname().rpartition(":")
    return [host, 1024 < int(port) < 65536]


@case
def put_and_get() -> Any:
    return [
        store.put("key", b"value"),
        store.get("key") == b"value",
        store.get_size("key"),
        store.is_exist("key"),
    ]


@case
def put_keeps_what_is_there() -> Any:
    return [store.put("key", b"other"), store.get("key") == b"value"]


@case
def upsert_replaces() -> Any:
    return [store.upsert("changing", b"one"), store.upsert("changing", b"second"),
            store.get("changing") == b"second"]  # fmt: skip


@case
def miss() -> Any:
    return [
        store.get("nothing") == b"",
        store.get_size("nothing"),
        store.is_exist("nothing"),
        store.get_buffer("nothing") is None,
        store.remove("nothing"),
        store.remove("nothing", True),
    ]


@case
def values_are_buffers() -> Any:
    return [
        store.put("bytearray", bytearray(b"abc")),
        store.put("memoryview", memoryview(b"abcd")),
        store.put("array", np.arange(5, dtype=np.uint8)),
        store.get("bytearray") == b"abc",
        store.get("memoryview") == b"abcd",
        store.get("array") == bytes(range(5)),
    ]


@case
def value_of_a_wrong_type() -> Any:
    return store.put("wrong", "text")


@case
def key_of_a_wrong_type() -> Any:
    return store.put(3, b"value")


@case
def missing_argument() -> Any:
    return store.put("key")


@case
def empty_value() -> Any:
    return [store.put("empty", b""), store.is_exist("empty"), store.get("empty") == b""]


@case
def empty_key() -> Any:
    return [store.put("", b"x"), store.is_exist("")]


@case
def parts() -> Any:
    return [
        store.put_parts("parts", b"ab", bytearray(b"cd"), np.frombuffer(b"ef", np.uint8)),
        store.get("parts") == b"abcdef",
        store.put_parts("parts", b"x"),
        store.upsert_parts("parts-2", b"a", b"b", config=ReplicateConfig()),
        store.get("parts-2") == b"ab",
        store.put_parts("no parts"),
    ]


@case
def batch() -> Any:
    return [
        store.put_batch(["b1", "b2"], [b"one", b"two"]),
        store.get_batch(["b1", "b2", "b3"]) == [b"one", b"two", b""],
        store.upsert_batch(["b1", "b3"], [b"ONE", b"three"]),
        store.get_batch(["b1", "b2", "b3"]) == [b"ONE", b"two", b"three"],
        store.put_batch([], []),
        store.get_batch([]),
    ]


@case
def batch_of_unequal_lengths() -> Any:
    return store.put_batch(["b4", "b5"], [b"one"])


@case
def buffers() -> Any:
    handle = store.get_buffer("parts")
    several = store.batch_get_buffer(["parts", "nothing", "b2"])
    return [
        handle.size(),
        len(handle),
        bytes(handle) == b"abcdef",
        memoryview(handle).nbytes,
        ctypes.string_at(handle.ptr(), handle.size()) == b"abcdef",
        [one is None for one in several],
        bytes(several[2]) == b"two",
    ]


@case
def register() -> Any:
    return [
        store.register_buffer(memory.ctypes.data, memory.nbytes),
        store.register_buffer(target.ctypes.data, target.nbytes),
        store.register_buffer(target.ctypes.data, target.nbytes),
        store.register_buffer(target.ctypes.data, 0),
    ]


@case
def put_from_and_get_into() -> Any:
    here, there = memory.ctypes.data, target.ctypes.data
    return [
        store.put_from("from", here, 4096),
        store.get_into("from", there, 4096),
        bool((target[:4096] == memory[:4096]).all()),
        store.get_into("from", there, 8192),
        store.get_into("from", there, 100) < 0,
        store.get_into("nothing", there, 4096) < 0,
        store.put_from("from", here + 4096, 4096),
        store.upsert_from("from-2", here, 512),
        store.upsert_from("from-2", here + 512, 512),
        store.get("from-2") == memory[512:1024].tobytes(),
    ]


@case
def batch_from_and_into() -> Any:
    sizes = [65536] * 4
    put = store.batch_put_from(KEYS, addresses(memory, 65536)[:4], sizes)
    got = store.batch_get_into(KEYS, addresses(target, 65536)[:4], sizes)
    equal = bool((target[: 4 * 65536] == memory[: 4 * 65536]).all())
    keys = [KEYS[0], "nothing", KEYS[1]]
    missing = store.batch_get_into(keys, addresses(target, 65536)[:3], [65536] * 3)
    again = store.batch_put_from(KEYS[:2], addresses(memory, 65536)[2:4], [65536] * 2)
    return [
        put,
        got,
        equal,
        [size if size > 0 else "negative" for size in missing],
        again,
        store.batch_upsert_from(KEYS[2:3], [memory.ctypes.data], [100]),
        store.get_size(KEYS[2]),
    ]


@case
def batch_from_of_unequal_lengths() -> Any:
    return [
        [code < 0 for code in store.batch_put_from(["u1", "u2"], [memory.ctypes.data], [10])],
        [code < 0 for code in store.batch_get_into(["u1", "u2"], [memory.ctypes.data], [10])],
    ]


@case
def multi_buffers() -> Any:
    here, there = addresses(memory, 4096), addresses(target, 4096)
    target[:] = 0
    put = store.batch_put_from_multi_buffers(
        ["pages-0", "pages-1"], [here[0:2], here[5:6]], [[4096, 4096], [1000]], ReplicateConfig()
    )
    got = store.batch_get_into_multi_buffers(
        ["pages-0", "pages-1", "nothing"],
        [there[7:9], there[3:4], there[4:5]],
        [[4096, 4096], [1000], [5]],
    )
    return [
        put,
        [size if size > 0 else "negative" for size in got],
        bool((target[7 * 4096 : 9 * 4096] == memory[:8192]).all()),
        bool((target[3 * 4096 : 3 * 4096 + 1000] == memory[5 * 4096 : 5 * 4096 + 1000]).all()),
        store.get_size("pages-0"),
    ]


@case
def ranges() -> Any:
    target[:] = 0
    there = target.ctypes.data
    got = store.get_into_ranges(
        [there], [["from", "nothing"]], [[[0, 100], [200]]], [[[8, 64], [0]]], [[[8, 16], [4]]]
    )
    return [
        [[[part if part > 0 else "negative" for part in key] for key in one] for one in got],
        bool((target[:8] == memory[8:16]).all()),
        bool((target[100:116] == memory[64:80]).all()),
    ]


@case
def get_session() -> Any:
    target[:] = 0
    there = target.ctypes.data
    started = store.batch_get_session_start(["from", "nothing"])
    read = store.batch_get_into_multi_buffer_ranges(
        ["from"], [[there, there + 512]], [[16, 16]], [[32, 1024]]
    )
    return [
        [started[0], started[1] < 0],
        read,
        bool((target[:16] == memory[32:48]).all()),
        bool((target[512:528] == memory[1024:1040]).all()),
        store.batch_get_session_end(["from"]),
    ]


@case
def put_session() -> Any:
    here = memory.ctypes.data
    started = store.batch_put_session_start(["layers", "layers-2"], [8192, 4096])
    before = store.is_exist("layers")
    first = store.batch_put_from_multi_buffer_ranges(
        ["layers", "layers-2"], [[here], [here]], [[4096], [4096]], [[0], [0]]
    )
    second = store.batch_put_from_multi_buffer_ranges(
        ["layers"], [[here + 4096]], [[4096]], [[4096]]
    )
    return [
        started,
        before,
        first,
        second,
        store.batch_put_session_end(["layers"]),
        store.batch_put_session_revoke(["layers-2"]),
        store.get("layers") == memory[:8192].tobytes(),
        store.is_exist("layers-2"),
    ]


@case
def metadata_in_front() -> Any:
    here = memory.ctypes.data
    code = store.put_from_with_metadata("described", here + 100, here, 50, 10)
    return [code, store.get("described") == memory[:10].tobytes() + memory[100:150].tobytes()]


@case
def exist_of_many() -> Any:
    return [store.batch_is_exist(["key", "nothing", *KEYS]), store.batch_is_exist([])]


@case
def configs() -> Any:
    fresh = ReplicateConfig()
    defaults = [
        fresh.replica_num,
        fresh.with_hard_pin,
        fresh.preferred_segment,
        list(fresh.preferred_segments),
        fresh.prefer_alloc_in_same_node,
        fresh.group_ids,
        fresh.soft_pin_ttl_ms,
        fresh.soft_pin_action == SoftPinAction.PRESERVE,
        fresh.data_type.name,
    ]
    config = ReplicateConfig()
    config.replica_num = 2
    config.with_hard_pin = True
    config.preferred_segment = store.get_hostname()
    return [defaults, store.put("configured", b"x", config), store.get("configured") == b"x",
            len(store.get_replica_desc("configured"))]  # fmt: skip


@case
def soft_pin_of_a_wrong_type() -> Any:
    ReplicateConfig().soft_pin_ttl_ms = "long"


@case
def soft_pin_without_action() -> Any:
    config = ReplicateConfig()
    config.soft_pin_ttl_ms = 1000
    return store.put("pinned", b"x", config)


@case
def soft_pin() -> Any:
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    config.soft_pin_ttl_ms = 1000
    return [store.put("pinned", b"x", config), store.get("pinned") == b"x"]


@case
def no_replica() -> Any:
    config = ReplicateConfig()
    config.replica_num = 0
    return store.put("no replica", b"x", config)


@case
def groups() -> Any:
    config = ReplicateConfig()
    config.group_ids = ["g1", "g2"]
    two = store.batch_put_from(
        ["grouped-1", "grouped-2"], addresses(memory, 64)[:2], [64, 64], config
    )
    config.group_ids = ["g1"]
    short = store.batch_put_from(
        ["grouped-3", "grouped-4"], addresses(memory, 64)[:2], [64, 64], config
    )
    return [two, short, store.is_exist("grouped-1")]


@case
def replicas() -> Any:
    [one] = store.get_replica_desc("from")
    memory_of = one.get_memory_descriptor().buffer_descriptor
    several = store.batch_get_replica_desc(["from", "nothing"])
    return [
        one.status.name,
        one.is_memory_replica(),
        one.is_disk_replica(),
        one.is_local_disk_replica(),
        memory_of.size,
        sorted(several),
        store.get_replica_desc("nothing"),
    ]


@case
def removal_when_no_lease_is_left() -> Any:
    store.put("leased", b"x")
    store.get("leased")
    return settle(lambda: store.remove("leased"), lambda code: code == 0)


@case
def forced_removal() -> Any:
    store.put("forced", b"x")
    store.is_exist("forced")
    return [store.remove("forced", force=True), store.is_exist("forced")]


@case
def removal_of_many() -> Any:
    store.put_batch(["r1", "r2", "r3"], [b"1", b"2", b"3"])
    return [
        store.batch_remove(["r1", "nothing", "r2"], force=True),
        store.remove_by_regex("^r[0-9]$", force=True),
        store.remove_by_regex("^none-", force=True),
        store.remove_by_regex("(", force=True) < 0,
    ]


@case
def too_large() -> Any:
    value = np.ones(80 << 20, np.uint8)
    address = value.ctypes.data
    registered = store.register_buffer(address, value.nbytes)
    both = store.batch_put_from(["large", "small"], [address] * 2, [value.nbytes, 100])
    return [
        registered,
        store.put_from("large", address, value.nbytes) < 0,
        [code < 0 for code in both],
        store.unregister_buffer(address),
    ]


@case
def some_find_no_room() -> Any:
    """Codes are those of each key, and what comes behind a large value finds room."""
    config = ReplicateConfig()
    config.with_hard_pin = True
    value = np.ones(12 << 20, np.uint8)
    address = value.ctypes.data
    registered = store.register_buffer(address, value.nbytes)
    keys = [f"room-{number}" for number in range(8)]
    codes = store.batch_put_from(keys, [address] * 8, [value.nbytes] * 8, config)
    there = [code == 0 for code in codes]
    again = store.batch_put_from(
        ["room-large", "room-small"], [address] * 2, [value.nbytes, 100], config
    )
    return [
        registered,
        sorted(set(codes)),
        [one == 1 for one in store.batch_is_exist(keys)] == there,
        again,
        store.get_size("room-small"),
        [code for code in store.batch_remove([*keys, "room-small"], force=True) if code != -704][
            :3
        ],
        store.unregister_buffer(address),
    ]


@case
def full() -> Any:
    config = ReplicateConfig()
    config.with_hard_pin = True
    value = np.ones(12 << 20, np.uint8)
    codes = [store.put(f"full-{number}", value, config) for number in range(7)]
    return [codes[0], codes[-1], [store.remove(f"full-{number}", True) for number in range(3)]]


@case
def clear_replicas() -> Any:
    return [store.batch_replica_clear([], "")]


@case
def segments_come_and_go() -> Any:
    before = MooncakeDistributedStore().allocate_and_mount_segment(16 << 20)
    mounted = store.allocate_and_mount_segment(17 << 20)
    names = mounted["segment_ids"]
    return [
        before,
        [mounted["ret"], mounted["allocated_size"], len(names)],
        store.allocate_and_mount_segment(0),
        store.put("while mounted", b"x"),
        store.unmount_and_free_segment(["no segment"]),
        store.unmount_and_free_segment(names),
        store.unmount_and_free_segment(names),
        store.mount_segment("/no/such/file", 16 << 20),
        store.unmount_segment([]),
        store.unmount_segment(["no segment"]),
        store.unmount_local_disk_segment(),
        store.remove("while mounted", True) in (0, -704),
    ]


@case
def tasks_that_cannot_be() -> Any:
    nowhere = "nowhere:1"
    return [
        store.put("tasked", b"x"),
        store.create_copy_task("nothing", [nowhere])[1],
        store.create_copy_task("tasked", [nowhere])[1],
        store.create_copy_task("tasked", [])[1],
        store.create_move_task("nothing", nowhere, store.get_hostname())[1],
        store.create_move_task("tasked", nowhere, store.get_hostname())[1],
        store.query_task((1, 2)),
    ]


def message_of(call: Callable[[], Any]) -> Any:
    """Of the error that a call raises, or what it returns."""
    try:
        return call()
    except RuntimeError as error:
        return str(error)


@case
def buffer_pool() -> Any:
    pool = BufferPool(store)
    lease = pool.acquire(1000)
    view = lease.buffer
    view[:3] = b"abc"
    held = message_of(lease.release)
    put = store.put_from("pooled", lease.ptr, 1000)
    same = bytes(lease.buffer[:3]) == store.get("pooled")[:3]
    open_yet = message_of(pool.close)
    facts = [lease.size, len(view), view.readonly, lease.ptr > 0]
    del view
    released = [lease.release(), lease.release()]
    with pool.buffer(5000) as other:
        size = other.size
        store.get_into("pooled", other.ptr, 5000)
        got = bytes(other.buffer[:3])
    return [
        facts, held, put, same, open_yet, released, size, got == b"abc",
        message_of(lambda: lease.ptr),
        message_of(lambda: pool.acquire(1 << 40)),
        pool.acquire(0).size,
        pool.prewarm(1 << 16, 2),
        pool.close(),
        message_of(lambda: pool.acquire(100)),
        message_of(lambda: BufferPool(MooncakeDistributedStore())),
        message_of(lambda: BufferPool(store, min_size_class=0)),
    ]  # fmt: skip


@case
def pool_that_is_exhausted() -> Any:
    pool = BufferPool(store, max_bytes=1 << 20, block_on_exhaustion=False)
    leases = []
    found = None
    while found is None and len(leases) < 10_000:
        found = message_of(lambda: leases.append(pool.acquire(65536)))
    waited = message_of(lambda: pool.acquire(65536, block=True, timeout=0.05))
    for lease in leases:
        lease.release()
    return [found, waited, pool.acquire(65536).size]


@case
def allocator() -> Any:
    memory_of = MooncakeHostMemAllocator()
    address = memory_of.alloc(1 << 20)
    ctypes.memset(address, 7, 1 << 20)
    codes = [
        store.register_buffer(address, 1 << 20),
        store.put_from("allocated", address, 4096),
        store.get("allocated") == b"\x07" * 4096,
        store.unregister_buffer(address),
        memory_of.free(address),
    ]
    return [address > 0, *codes]


@case
def unregistered_buffer() -> Any:
    return [
        store.unregister_buffer(target.ctypes.data),
        store.unregister_buffer(target.ctypes.data) < 0,
    ]


@case
def remove_everything() -> Any:
    return [
        store.remove_all(True) > 0,
        store.is_exist("key"),
        store.remove_all(force=True),
    ]


@case
def second_setup() -> Any:
    return store.setup("localhost", METADATA, 64 << 20, 16 << 20, "tcp", "", MASTER)


@case
def setup_by_dict() -> Any:
    other = MooncakeDistributedStore()
    code = other.setup(
        {
            "local_hostname": "localhost",
            "metadata_server": METADATA,
            "global_segment_size": "0",
            "local_buffer_size": "16MB",
            "protocol": "tcp",
            "master_server_addr": MASTER,
        }
    )
    store.put("shared", b"from one")
    return [
        code,
        other.get("shared") == b"from one",
        other.put("back", b"x"),
        store.get("back") == b"x",
        other.close(),
    ]


@case
def setup_by_dict_in_percent() -> Any:
    other = MooncakeDistributedStore()
    return other.setup(
        {
            "local_hostname": "localhost",
            "metadata_server": METADATA,
            "global_segment_size": "50%",
            "local_buffer_size": "16MB",
            "protocol": "tcp",
            "master_server_addr": MASTER,
        }
    )


@case
def setup_by_keywords() -> Any:
    other = MooncakeDistributedStore()
    code = other.setup(
        local_hostname="localhost", metadata_server=METADATA, global_segment_size=0,
        local_buffer_size=16 << 20, protocol="tcp", rdma_devices="", master_server_addr=MASTER,
        engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
    )  # fmt: skip
    return [code, other.get("shared") == b"from one", other.close()]


@case
def setup_with_an_unknown_keyword() -> Any:
    return MooncakeDistributedStore().setup(
        "localhost", METADATA, 0, 16 << 20, "tcp", "", MASTER, no_such=1
    )


@case
def setup_with_an_engine() -> Any:
    engine = TransferEngine()
    engine.initialize("localhost", METADATA, "tcp", "")
    other = MooncakeDistributedStore()
    code = other.setup("localhost", METADATA, 0, 16 << 20, "tcp", "", MASTER, engine.get_engine())
    return [code, other.get("shared") == b"from one", other.close()]


@case
def protocol_that_is_not_there() -> Any:
    other = MooncakeDistributedStore()
    return other.setup("localhost", METADATA, 0, 16 << 20, "carrier-pigeon", "", MASTER) < 0


@case
def opcodes() -> Any:
    return [TransferOpcode.Read.name, TransferOpcode.Write.name, int(TransferOpcode.Read.value),
            TransferEngine.TransferOpcode is TransferOpcode]  # fmt: skip


one, two = TransferEngine(), TransferEngine()
mine = np.arange(1 << 18, dtype=np.uint32).view(np.uint8)
theirs = np.zeros(1 << 20, np.uint8)


def name_of(engine: TransferEngine) -> str:
    return f"127.0.0.1:{engine.get_rpc_port()}"


@case
def engines() -> Any:
    return [one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""),
            two.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""),
            one.get_rpc_port() > 1024]  # fmt: skip


@case
def engine_memory() -> Any:
    return [
        one.register_memory(mine.ctypes.data, mine.nbytes),
        two.register_memory(theirs.ctypes.data, theirs.nbytes),
        two.get_first_buffer_address(name_of(two)) == theirs.ctypes.data,
        one.get_first_buffer_address(name_of(two)) == theirs.ctypes.data,
    ]


@case
def engine_writes_and_reads() -> Any:
    here, there, peer = mine.ctypes.data, theirs.ctypes.data, name_of(two)
    wrote = one.transfer_sync_write(peer, here, there, 4096)
    equal = bool((theirs[:4096] == mine[:4096]).all())
    theirs[8192:12288] = 9
    read = one.transfer_sync_read(peer, here + 65536, there + 8192, 4096)
    return [wrote, equal, read, bool((mine[65536 : 65536 + 4096] == 9).all())]


@case
def engine_moves_many() -> Any:
    here, there, peer = addresses(mine, 4096), addresses(theirs, 4096), name_of(two)
    theirs[:] = 0
    wrote = one.batch_transfer_sync_write(peer, here[:8], there[8:16], [4096] * 8)
    equal = bool((theirs[8 * 4096 : 16 * 4096] == mine[: 8 * 4096]).all())
    read = one.batch_transfer_sync_read(peer, here[32:40], there[8:16], [4096] * 8)
    same = bool((mine[32 * 4096 : 40 * 4096] == mine[: 8 * 4096]).all())
    generic = one.batch_transfer_sync(peer, here[:1], there[:1], [4096], TransferOpcode.Write)
    single = one.transfer_sync(peer, here[0], there[0], 4096, TransferOpcode.Read)
    return [wrote, equal, read, same, generic, single]


@case
def engine_works_in_the_background() -> Any:
    here, there, peer = addresses(mine, 4096), addresses(theirs, 4096), name_of(two)
    theirs[:] = 0
    batch = one.batch_transfer_async_write(peer, here[:8], there[:8], [4096] * 8)
    done = one.get_batch_transfer_status([batch])
    equal = bool((theirs[: 8 * 4096] == mine[: 8 * 4096]).all())
    back = one.batch_transfer_async_read(peer, here[:8], there[:8], [4096] * 8)
    generic = one.batch_transfer_async(peer, here[:8], there[:8], [4096] * 8, TransferOpcode.Write)
    submitted = one.transfer_submit_write(peer, here[0], there[40], 4096)
    checked = settle(lambda: one.transfer_check_status(submitted), lambda code: code != 0)
    return [
        batch != 0,
        done,
        equal,
        one.get_batch_transfer_status([back, generic]),
        submitted != 0,
        checked,
        bool((theirs[40 * 4096 : 41 * 4096] == mine[:4096]).all()),
    ]


@case
def engine_notifies() -> Any:
    here, there, peer = mine.ctypes.data, theirs.ctypes.data, name_of(two)
    code = one.transfer_sync(
        peer, here, there, 64, TransferOpcode.Write, TransferNotify("from one", "done")
    )
    found: list[Any] = []
    settle(lambda: found.extend(two.get_notifies()) or len(found), lambda count: count > 0)
    return [code, [[note.name, note.msg] for note in found], two.get_notifies()]


@case
def engine_probes() -> Any:
    return [one.send_probe(name_of(two)), one.send_probe("127.0.0.1:9") != 0]


@case
def engine_refuses() -> Any:
    here, there, peer = mine.ctypes.data, theirs.ctypes.data, name_of(two)
    return [
        one.batch_transfer_sync_write(peer, [here, here], [there], [4]),
        one.batch_transfer_async_write(peer, [here, here], [there], [4]),
        one.transfer_sync_write("127.0.0.1:9", here, there, 4) < 0,
    ]


@case
def engine_manages_memory() -> Any:
    address = one.allocate_managed_buffer(4096)
    wrote = one.write_bytes_to_buffer(address, "hello", 5)
    return [
        address > 0,
        wrote,
        one.read_bytes_from_buffer(address, 5) == b"hello",
        one.transfer_sync_write(name_of(two), address, theirs.ctypes.data, 5),
        theirs[:5].tobytes() == b"hello",
        one.free_managed_buffer(address, 4096),
    ]


@case
def engine_memory_in_batches() -> Any:
    more = [np.zeros(8192, np.uint8) for _ in range(3)]
    at = [one_of.ctypes.data for one_of in more]
    code = one.batch_register_memory(at, [8192] * 3)
    moved = one.transfer_sync_read(name_of(two), at[1], theirs.ctypes.data, 5)
    return [code, moved, more[1][:5].tobytes() == b"hello", one.batch_unregister_memory(at)]


@case
def engine_topology() -> Any:
    return isinstance(json.loads(one.get_local_topology()), dict)


@case
def engine_forgets_memory() -> Any:
    return [one.unregister_memory(mine.ctypes.data), one.unregister_memory(mine.ctypes.data) < 0]


@case
def closing() -> Any:
    return [store.close(), store.get("k") == b"", store.health_check(), store.close()]


print(json.dumps(RESULTS, indent=1, default=repr), flush=True)
