"""Address maps, headers, codes, replicas, and the modules under Mooncake's names."""

import http.client
import importlib
import mmap
import os
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inlay.connect.mooncake import (
    MooncakeHostMemAllocator,
    ReplicateConfig,
    SoftPinAction,
    activate,
    deactivate,
)
from inlay.connect.mooncake.activation import SHIM
from inlay.connect.mooncake.codes import Code, code_of, code_of_result
from inlay.connect.mooncake.host_memory import AddressMap, host_view
from inlay.connect.mooncake.metadata_server import KVBootstrapServer, KVPoll
from inlay.connect.mooncake.names import plain_name, segment_of
from inlay.connect.mooncake.replicas import ReplicaDescriptor
from inlay.connect.mooncake.tensors import (
    HEADER_BYTES,
    copied_tensor,
    parts_of,
    read_header,
    write_header,
)
from inlay.core.errors import (
    ArgumentError,
    InlayError,
    KeyNotFound,
    ObjectDamaged,
    SegmentOverlapError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
)

MODULES = ["store", "engine", "mooncake_config", "async_store", "http_metadata_server",
           "mooncake_store_service", "cli", "cli_client",
           "buffer_pool"]  # fmt: skip
RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=12)


@given(RANGES, st.lists(st.tuples(st.integers(0, 80), st.integers(1, 12)), min_size=1, max_size=8))
def test_addresses_are_found_in_their_ranges(
    ranges: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    held, byte_owner = AddressMap(), {}
    for number, (start, size) in enumerate(ranges):
        taken = any(place in byte_owner for place in range(start, start + size))
        if taken:
            with pytest.raises(SegmentOverlapError):
                held.add(start, size, number)
        else:
            held.add(start, size, number)
            byte_owner |= dict.fromkeys(range(start, start + size), number)
    places = held.arrays()
    starts_N, lengths_N = np.array(asked, np.int64).T
    found_N = places.find(starts_N, lengths_N)
    owners = [
        {byte_owner.get(place) for place in range(start, start + size)} for start, size in asked
    ]
    whole = all(len(owner) == 1 and None not in owner for owner in owners)
    assert (found_N is not None) == whole
    if found_N is not None:
        assert [{places.values[number]} for number in found_N] == owners


def test_an_address_map_gives_back() -> None:
    held = AddressMap()
    held.add(100, 10, "a")
    assert held.remove(100) == "a" and len(held) == 0
    for address, size in ((0, 1), (-1, 1), (5, 0)):
        with pytest.raises(ArgumentError, match="no memory"):
            held.add(address, size, None)
    with pytest.raises(ArgumentError, match="begins at 0x64"):
        held.remove(100)


def test_codes() -> None:
    errors = [KeyNotFound("x"), StoreFull("x"), StoreTimeout("x"), StoreRefused("x"),
              ObjectDamaged("x"), ArgumentError("x"), InlayError("x")]  # fmt: skip
    assert [code_of(error) for error in errors] == [-704, -200, -901, -900, -801, -600, -1]
    assert [code_of_result(one) for one in (5, None, ObjectDamaged("x"))] == [5, -704, -801]
    assert Code(-706) is Code.OBJECT_HAS_LEASE


def test_a_header_is_that_of_mooncake() -> None:
    """Bytes that Mooncake 0.3.13 wrote for a float32 tensor of 3 rows and 4 columns."""
    told = write_header(torch.zeros(3, 4))
    assert len(told) == HEADER_BYTES
    assert told[:40].hex() == (
        "4e4f4f4d010030010000000002000000000000000000000030010000000000003000000000000000"
    )
    assert told[40:104].hex() == "03" + "00" * 7 + "04" + "00" * 7 + "ff" * 48
    assert told[104:168] == told[40:104] and not any(told[168:])


@pytest.mark.parametrize("place", [0, 4, 6, 8, 12, 24, 32, 104])
def test_damaged_headers_are_no_tensors(place: int) -> None:
    value = bytearray(write_header(torch.zeros(3, 4)) + bytes(48))
    assert read_header(value).shape == (3, 4)
    value[place : place + 4] = b"\xee\xee\xee\xee"
    with pytest.raises(ArgumentError):
        copied_tensor(value)


def test_short_values_are_no_tensors() -> None:
    for value in (b"", bytes(303), write_header(torch.zeros(3, 4)) + bytes(47)):
        with pytest.raises(ArgumentError):
            read_header(value)


def test_a_header_whose_sizes_disagree() -> None:
    value = bytearray(write_header(torch.zeros(3, 4)) + bytes(48))
    value[40:48] = (5).to_bytes(8, "little")
    value[104:112] = (5).to_bytes(8, "little")
    with pytest.raises(ArgumentError, match="header"):
        copied_tensor(value)


def test_parts_of_a_tensor_are_in_place() -> None:
    tensor = torch.arange(6)
    header, elements = parts_of(tensor)
    assert header.nbytes == HEADER_BYTES
    assert elements.ctypes.data == tensor.data_ptr()


def test_options_of_a_configuration() -> None:
    config = ReplicateConfig()
    config.replica_num = 99
    config.with_soft_pin = True
    config.soft_pin_ttl_ms = 5
    config.preferred_segments = ["a:1", "b:2"]
    options = config.options("g")
    assert (options.replicas, options.soft_pin, options.hard_pin) == (8, True, False)
    assert (options.preferred_node, options.group) == ("a_1", "g")
    config.preferred_segment = "c:3"
    assert config.options().preferred_node == "c_3"
    assert "replica_num: 99" in str(config)
    config.soft_pin_action = SoftPinAction.DISABLE
    with pytest.raises(ArgumentError, match="soft_pin_ttl_ms needs"):
        config.options()
    with pytest.raises(TypeError):
        config.soft_pin_ttl_ms = True


def test_names() -> None:
    assert plain_name("[::1]:7") == "___1__7" and plain_name("h.x:12300") == "h.x_12300"
    assert segment_of("h.x_12300") == "h.x:12300" and segment_of("node-a") == "node-a"


def test_a_replica_on_a_disk() -> None:
    replica = ReplicaDescriptor("h:1", "disk", 7)
    assert replica.is_local_disk_replica() and not replica.is_memory_replica()
    assert replica.get_disk_descriptor().object_size == 7
    with pytest.raises(RuntimeError, match="on a disk"):
        replica.get_memory_descriptor()


def test_host_memory() -> None:
    memory = MooncakeHostMemAllocator()
    address = memory.alloc(8192)
    assert address % 4096 == 0
    assert memory.free(address) == 0 and memory.free(address) == -1
    for size in (0, -1, 1 << 62):
        with pytest.raises(RuntimeError, match="cannot allocate"):
            memory.alloc(size)


def test_modules_resolve_to_inlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    activate()
    try:
        activate()  # once more changes nothing
        assert os.environ["PYTHONPATH"] == f"{SHIM}{os.pathsep}/elsewhere"
        for name in MODULES:
            module = importlib.import_module(f"mooncake.{name}")
            assert module.__file__ is not None and module.__file__.startswith(str(SHIM))
            assert all(hasattr(module, one) for one in module.__all__)
    finally:
        deactivate()
    assert os.environ["PYTHONPATH"] == "/elsewhere"
    assert str(SHIM) not in sys.path and "mooncake.store" not in sys.modules


def test_another_mooncake_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", type(sys)("mooncake"))
    with pytest.raises(ValueError, match="call activate"):
        activate()


def test_a_metadata_server() -> None:
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() is KVPoll.Failed
    server.run()
    url = f"http://127.0.0.1:{server.port}/metadata"

    def ask(method: str, query: str, body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(url + query, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    try:
        assert server.poll() is KVPoll.Success
        assert ask("GET", "?key=a%2Fb") == (404, b"metadata not found")
        assert ask("PUT", "?key=a%2Fb", b"body")[0] == 200
        assert ask("PUT", "?key=a%2Fb", b"other")[0] == 200
        assert ask("GET", "?key=a%2Fb") == (200, b"other")
        assert ask("PUT", "?key=mooncake/rpc_meta/x", b"1")[0] == 200
        assert ask("PUT", "?key=mooncake/rpc_meta/x", b"2")[0] == 400
        assert ask("DELETE", "?key=a%2Fb")[0] == 200
        assert ask("DELETE", "?key=a%2Fb")[0] == 404
        assert ask("GET", "")[0] == 400
        assert ask("POST", "?key=a", b"x")[0] == 405
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("PUT", "/metadata?key=large", headers={"Content-Length": "9999999"})
        assert connection.getresponse().status == 413  # before the body
        connection.close()
    finally:
        server.close()
    assert server.poll() is KVPoll.Failed


def test_memory_as_a_buffer() -> None:
    array = np.arange(100000, dtype=np.uint8)
    view = host_view(array.ctypes.data + 1, 99998)
    assert view is not None and not view.readonly and view.nbytes == 99998
    view[0] = 77
    assert array[1] == 77 and view[-1] == array[-2]
    assert host_view(16, 8) is None  # nothing is there
    memory = mmap.mmap(-1, 8192, prot=mmap.PROT_READ)
    assert host_view(np.frombuffer(memory, np.uint8).ctypes.data, 8192) is None


def test_a_range_is_found_by_each_of_its_bytes() -> None:
    held = AddressMap()
    held.add(100, 10, "a")
    held.add(200, 10, "b")
    assert held.find(100, 10) == held.find(109, 1) == (100, "a")
    assert held.find(205, 0) == (200, "b")
    for address, size in ((99, 2), (109, 2), (150, 1), (210, 1), (100, 110)):
        assert held.find(address, size) is None


def test_arrays_find_what_lists_find() -> None:
    held = AddressMap()
    assert held.arrays().find_one(100, 1) is None
    held.add(100, 10, "a")
    held.add(200, 10, "b")
    places = held.arrays()
    for address in range(95, 215):
        for size in (1, 5, 10, 11, 110):
            one = held.find(address, size)
            found = places.find_one(address, size)
            many = places.find(np.array([address]), np.array([size]))
            assert (None if found is None else places.values[found]) == (one and one[1])
            assert (many is None) == (found is None) and (many is None or many[0] == found)
