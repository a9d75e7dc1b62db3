"""Values on devices: the right bytes, and what goes wrong. Run by `test_cuda`, on its own."""

import asyncio
import ctypes
import secrets
from collections.abc import Iterator

import pytest

from inlay.core.errors import ArgumentError, DeviceTransferError, KeyNotFound, TransferTimeoutError
from inlay.store import Store, aio
from tests.support.cuda import Cuda, DeviceTensor

SIZES = [1, 4096, 300_000, 5_000_000]


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def standin(cuda: Cuda) -> Iterator[ctypes.CDLL]:
    if not cuda.is_standin:
        pytest.skip("only the stand-in driver can be told what to do")
    yield cuda.library
    cuda.library.standin_hold(0)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.embedded(memory="64MiB") as made:
        yield made


def filled(cuda: Cuda, value: bytes) -> DeviceTensor:
    address = cuda.allocate(len(value))
    cuda.put(address, value)
    return DeviceTensor(address, len(value))


@pytest.mark.parametrize("size", SIZES)
def test_tensors_and_addresses(cuda: Cuda, store: Store, size: int) -> None:
    value, other = secrets.token_bytes(size), secrets.token_bytes(size)
    tensor = filled(cuda, value)
    store.put("tensor", tensor)
    assert store.get("tensor") == value
    assert tensor.lent == 0, "the tensor is let go of"
    address = cuda.allocate(size + 10)
    cuda.put(address, bytes(size + 10))
    assert store.get_into("tensor", (address, size + 10), 3) == size
    assert cuda.get(address, size + 10) == bytes(3) + value + bytes(7)
    cuda.put(address, other)
    store.upsert("tensor", (address, size))
    assert store.get_into("tensor", tensor) == size
    assert cuda.get(tensor._address, size) == other


def test_many_of_host_and_device_together(cuda: Cuda, store: Store) -> None:
    values = [secrets.token_bytes(size) for size in SIZES]
    tensors = [filled(cuda, value) for value in values]
    keys = [f"key {n}" for n in range(len(values))]
    store.put_many([*keys, "host"], [*tensors, b"host"])
    assert store.get_many([*keys, "host"]) == [*values, b"host"]
    for tensor in tensors:
        cuda.put(tensor._address, bytes(tensor._shape[0]))
    host = bytearray(4)
    sizes = store.get_into_many([*keys, "none", "host"], [*tensors, filled(cuda, b"x"), host])
    assert sizes == [*SIZES, None, 4] and host == b"host"
    assert [cuda.get(t._address, len(v)) for t, v in zip(tensors, values, strict=True)] == values


def test_parts(cuda: Cuda, store: Store) -> None:
    value = secrets.token_bytes(3000)
    first, last = filled(cuda, value[:1000]), filled(cuda, value[1500:])
    store.put_parts("key", [first, value[1000:1500], last])
    assert store.get("key") == value
    for tensor, size in ((first, 1000), (last, 1500)):
        cuda.put(tensor._address, bytes(size))
    middle = bytearray(500)
    assert store.get_parts("key", [first, middle, last]) == 3000
    assert cuda.get(first._address, 1000) + middle + cuda.get(last._address, 1500) == value
    store.get_parts("key", [first], [(2000, 10)])
    assert cuda.get(first._address, 1000) == value[2000:2010] + value[10:1000]


def test_awaited_calls(cuda: Cuda, store: Store) -> None:
    value = secrets.token_bytes(100_000)

    async def there_and_back() -> bytes:
        await aio.put(store, "key", filled(cuda, value))
        empty = filled(cuda, bytes(len(value)))
        assert await aio.get_into(store, "key", empty) == len(value)
        return cuda.get(empty._address, len(value))

    assert asyncio.run(there_and_back()) == value


def test_what_is_not_read_changes_no_byte(cuda: Cuda, store: Store) -> None:
    before = secrets.token_bytes(1000)
    tensor = filled(cuda, before)
    with pytest.raises(KeyNotFound):
        store.get_into("none", tensor)
    store.put("large", bytes(1001))
    with pytest.raises(ArgumentError, match="object 'large' has 1001 bytes, the buffer 1000"):
        store.get_into("large", tensor)
    assert cuda.get(tensor._address, 1000) == before
    assert tensor.lent == 0


def test_memory_that_is_nobodys(cuda: Cuda, store: Store) -> None:
    with pytest.raises(ArgumentError, match="nor of one device"):
        store.put("key", (8, 8))
    assert not store.exists("key")


def test_a_device_that_fails(cuda: Cuda, store: Store, standin: ctypes.CDLL) -> None:
    tensor = filled(cuda, b"v" * 1000)
    store.put("key", b"w" * 1000)
    standin.standin_fail(b"cuMemcpyAsync", 0, 1)
    with pytest.raises(DeviceTransferError, match="cuMemcpyAsync"):
        store.put("other", tensor)
    assert not store.exists("other")
    standin.standin_fail(b"cuMemcpyAsync", 0, 1)
    with pytest.raises(DeviceTransferError, match="cuMemcpyAsync"):
        store.get_into("key", tensor)
    assert store.get_into("key", tensor) == 1000
    assert cuda.get(tensor._address, 1000) == b"w" * 1000


def test_a_device_that_does_not_answer(cuda: Cuda, store: Store, standin: ctypes.CDLL) -> None:
    tensor = filled(cuda, b"v" * 1000)
    standin.standin_hold(1)
    with pytest.raises(TransferTimeoutError, match="did not copy its bytes in the call's time"):
        store.put("key", tensor, timeout_s=0.2)
    assert tensor.lent == 1, "the copy that has begun still needs it"
    standin.standin_hold(0)
    store.put("key", filled(cuda, b"again"))
    assert store.get("key") == b"again"
