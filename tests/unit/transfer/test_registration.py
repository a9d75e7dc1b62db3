"""What can be registered: tensors, addresses; and that it stays in place."""

import ctypes
import gc
import mmap
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from inlay.core.errors import ArgumentError, SegmentAccessError, TransportUnavailableError
from inlay.kernels import native_problem
from inlay.transfer import Access, Peer, TransferEngine

TOKEN = bytes(range(32))


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN) as engine:
        yield engine


@pytest.fixture
def peer(engine: TransferEngine) -> Peer:
    return engine.connect(engine.address)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "complex64"])
def test_a_tensor(engine: TransferEngine, peer: Peer, dtype: str) -> None:
    tensor = torch.zeros((3, 1, 5), dtype=getattr(torch, dtype))
    segment = engine.register(tensor, name="tensor", remote=Access.WRITE)
    assert segment.size == 15 * tensor.element_size()
    engine.write(engine.register(b"\x01" * segment.size), peer["tensor"])
    expected = np.full(segment.size, 1, np.uint8)
    np.testing.assert_array_equal(tensor.flatten().view(torch.uint8).numpy(), expected)


def test_a_part_of_a_tensor(engine: TransferEngine) -> None:
    tensor = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    assert engine.register(tensor[1:3]).size == 48
    assert engine.register(torch.tensor(7)).size == 8  # no dimension, one element
    for part in (tensor[:, 1:3], tensor.T):
        with pytest.raises(ArgumentError, match=r"contiguous.*dimension \d has stride"):
            engine.register(part)
    with pytest.raises(ArgumentError, match="no bytes"):
        engine.register(tensor[:0])


def test_a_tensor_stays_in_place(engine: TransferEngine, peer: Peer) -> None:
    parameter = torch.nn.Parameter(torch.full((1000,), 3.0))
    storage = weakref.ref(parameter.untyped_storage())
    segment = engine.register(parameter, name="weight")
    parameter.data = torch.zeros(1000)  # another memory; the registered one is still there
    del parameter
    gc.collect()
    near = engine.allocate(4000)
    engine.read(near, peer["weight"])
    assert (np.frombuffer(near, np.float32) == 3).all()
    segment.deregister()
    gc.collect()
    assert storage() is None


def test_tensors_that_cannot_be(engine: TransferEngine) -> None:
    with pytest.raises(ArgumentError, match="meta"):
        engine.register(torch.zeros(3, device="meta"))
    with pytest.raises(ArgumentError, match="layout"):
        engine.register(torch.eye(3).to_sparse())


class OnDevice:
    """What DLPack tells of a tensor on a device."""

    def __init__(self, device: object) -> None:
        self.device = device

    def __dlpack_device__(self) -> object:
        return self.device

    def __dlpack__(self) -> object:
        raise AssertionError("not to be asked for: the memory is a device's")


def test_memory_of_a_device(engine: TransferEngine) -> None:
    with TransferEngine(token=TOKEN, transports=["tcp"]) as without:
        with pytest.raises(TransportUnavailableError, match="transport cuda: not among"):
            without.register(OnDevice((2, 3)))
    with pytest.raises(TransportUnavailableError, match="device 8:0"):
        engine.register(OnDevice((8, 0)))
    for device in (None, 2, (2,), ("cuda", 0)):
        with pytest.raises(ArgumentError, match="__dlpack_device__"):
            engine.register(OnDevice(device))


def test_an_address(engine: TransferEngine, peer: Peer) -> None:
    data = np.arange(5000, dtype=np.int64)
    segment = engine.register((data.ctypes.data, data.nbytes), name="raw", remote=Access.WRITE)
    near = engine.allocate(data.nbytes)
    engine.read(near, peer["raw"])
    np.testing.assert_array_equal(np.frombuffer(near, np.int64), data)
    engine.write(near[0:8], peer["raw"][800:808])
    assert data[100] == 0
    segment.deregister()


def test_addresses_that_cannot_be(engine: TransferEngine) -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for at, mode in ((1, mmap.PROT_READ), (3, 0)):
        assert protect(ctypes.c_void_p(address + at * page), page, mode) == 0
    for pair in (
        (address, 4 * page),  # its last page cannot be read
        (address + 4 * page - 1, 1),
        (1, 1),
        (2**64 - 100, 200),
        (address, 2**63),
    ):
        with pytest.raises(ArgumentError, match="may read"):
            engine.register(pair)
    for pair in ((0, 10), (address, 0), (-1, 10), (address, -1), (2**64, 1)):
        with pytest.raises(ArgumentError, match=r"1\.\.2\^64-1"):
            engine.register(pair)
    for other in ((address, 1.0), ("x", 1), (address,), (address, 1, 2), [address, 1]):
        with pytest.raises(ArgumentError, match="buffer"):
            engine.register(other)
    with pytest.raises(SegmentAccessError, match="read-only"):
        engine.register((address, 3 * page), remote=Access.WRITE)
    engine.register((address, 3 * page)).deregister()
    engine.register((address, page), remote=Access.WRITE)
