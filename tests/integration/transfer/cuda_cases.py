"""Device memory: the right bytes, and what goes wrong. Run by `test_cuda`, in a process of its own.

CUDA cannot be started twice in a process, nor survive a fork, so these do not share the process of
other tests. `standin` cases steer the stand-in driver; the others run on a real one, too.
"""

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inlay.core.errors import (
    ArgumentError,
    DeviceTransferError,
    PeerDiedError,
    SegmentAccessError,
    SegmentClosedError,
    SegmentOverlapError,
    SegmentRangeError,
    TransferCancelledError,
    TransferTimeoutError,
    WaitTimeoutError,
)
from inlay.transfer import Access, Batch, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.cuda_target import SIZE
from tests.integration.transfer.target import TOKEN, pattern
from tests.support.cuda import Cuda, DeviceTensor

MIB = 1 << 20


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def standin(cuda: Cuda) -> Iterator[ctypes.CDLL]:
    if not cuda.is_standin:
        pytest.skip("only the stand-in driver can be told what to do")
    yield cuda.library
    cuda.library.standin_hold(0)
    cuda.library.standin_delay(0)


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN) as engine:
        yield engine


@pytest.fixture
def start_cuda_target(start_target: Callable[..., Target]) -> Callable[..., Target]:
    return lambda *transports: start_target(*transports, module="cuda_target")


def test_nothing_is_started_without_device_memory() -> None:
    """First of all cases: CUDA is not started here yet, so a child may."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            library = ctypes.CDLL("libcuda.so.1")
            with TransferEngine(token=TOKEN) as engine:
                assert engine.transports["cuda"] is None
                peer = engine.connect(engine.address)
                engine.allocate(100, name="host")
                engine.read(engine.allocate(100), peer["host"])
                not_initialized = 3
                assert library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == not_initialized
                os.environ["CUDA_STANDIN_INIT"] = "100"
                with pytest.raises(ArgumentError, match="device"):
                    engine.register((1 << 40, 100))
                if hasattr(library, "standin_hold"):
                    assert "no CUDA-capable device" in str(engine.transports["cuda"])
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_own_memory(engine: TransferEngine, cuda: Cuda) -> None:
    size = 9 * MIB + 321
    address = cuda.allocate(size + 64)
    cuda.put(address, bytes(size + 64))
    segment = engine.register((address + 5, size), name="mine")
    assert segment.location == "cuda:0" and len(segment) == size
    model = np.zeros(size, np.uint8)
    memory = engine.allocate(size)
    bytes_ = np.frombuffer(memory, np.uint8)
    rng = np.random.default_rng(3)
    for step, length in enumerate([1, 511, 4096, 65537, MIB, 3 * MIB + 1, size] * 4):
        at, near = (int(rng.integers(0, size - length + 1)) for _ in range(2))
        view = bytes_[near : near + length]
        if step % 2 == 0:
            view[:] = rng.integers(0, 256, length, dtype=np.uint8)
            model[at : at + length] = view
            engine.write(memory[near : near + length], segment[at : at + length])
        else:
            bytes_[:] = 0x5A
            engine.read(memory[near : near + length], segment[at : at + length])
            np.testing.assert_array_equal(view, model[at : at + length])
            assert (bytes_[:near] == 0x5A).all() and (bytes_[near + length :] == 0x5A).all()
    assert cuda.get(address, size + 64) == bytes(5) + model.tobytes() + bytes(59)
    segment.deregister()
    cuda.free(address)


def test_ranges(engine: TransferEngine, cuda: Cuda) -> None:
    lengths = np.random.default_rng(4).integers(1, 9000, 1500)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    order = np.random.default_rng(5).permutation(len(lengths))
    places = np.empty_like(starts)
    places[order] = np.cumsum(lengths[order]) - lengths[order]
    address = cuda.allocate(total)
    source = pattern(total)
    ranges = {"local_offsets": starts, "remote_offsets": places, "lengths": lengths}
    with engine.register(source) as near, engine.register((address, total)) as far:
        engine.submit([Ranges(Op.WRITE, near, far, **ranges)]).wait()
        again = np.zeros(total, np.uint8)
        with engine.register(again) as back:
            engine.submit([Ranges(Op.READ, back, far, **ranges)]).wait()
    np.testing.assert_array_equal(again, source)
    stored = np.frombuffer(cuda.get(address, total), np.uint8)
    for start, place, length in zip(starts, places, lengths, strict=True):
        assert (stored[place : place + length] == source[start : start + length]).all()
    cuda.free(address)


def test_what_can_be_registered(engine: TransferEngine, cuda: Cuda) -> None:
    address = cuda.allocate(MIB)
    with engine.register((address, MIB), name="one") as segment:
        for start, length in ((0, MIB), (100, 1), (MIB - 1, 1)):
            with pytest.raises(SegmentOverlapError, match="'one'"):
                engine.register((address + start, length))
        with pytest.raises(ArgumentError, match="name"):
            engine.register((address + MIB - 1, 1), name="one")
        with pytest.raises(BufferError):
            memoryview(segment)  # type: ignore[arg-type]
        with pytest.raises(SegmentRangeError):
            engine.read(engine.allocate(MIB + 1), segment[0 : MIB + 1])
    engine.register((address, MIB // 2), name="one").deregister()
    with pytest.raises(ArgumentError, match="nor of one device"):
        engine.register((address, 1 << 44))
    with pytest.raises(ArgumentError, match="nor of one device"):
        engine.register((4096, 100))
    cuda.free(address)


def test_a_tensor_is_held(engine: TransferEngine, cuda: Cuda) -> None:
    address = cuda.allocate(MIB)
    tensor = DeviceTensor(address, MIB)
    segment = engine.register(tensor, name="tensor")
    assert tensor.lent == 1 and segment.location == "cuda:0" and segment.size == MIB
    memory = engine.register(source := pattern(MIB))
    engine.write(memory, segment)
    assert cuda.get(address, MIB) == source.tobytes()
    segment.deregister()
    assert tensor.lent == 0
    cuda.free(address)


def test_no_stream(engine: TransferEngine, cuda: Cuda, standin: ctypes.CDLL) -> None:
    address = cuda.allocate(MIB)
    segment = engine.register((address, MIB))
    memory = engine.allocate(MIB)
    standin.standin_fail(b"cuStreamCreate", 0, 2)
    with pytest.raises(DeviceTransferError):
        engine.write(memory, segment)
    engine.write(memory, segment)
    cuda.free(address)


def test_refused_copy(engine: TransferEngine, cuda: Cuda, standin: ctypes.CDLL) -> None:
    address = cuda.allocate(8 * MIB)
    segment = engine.register((address, 8 * MIB), name="refused")
    memory = engine.allocate(8 * MIB)
    standin.standin_fail(b"cuMemcpyAsync", 2, 1)
    with pytest.raises(DeviceTransferError, match=f"cuda:0.*{address:x}.*cuMemcpyAsync"):
        engine.write(memory, segment)
    standin.standin_fail(b"cuEventRecord", 0, 2)
    with pytest.raises(DeviceTransferError):
        engine.write(memory, segment)
    engine.write(memory, segment)
    assert standin.standin_depth() == 0
    cuda.free(address)
    with pytest.raises(DeviceTransferError):  # its owner freed it too early
        engine.write(memory, segment)


def submit_and_hold(
    engine: TransferEngine, standin: ctypes.CDLL, transfers: list[Transfer], **more: float
) -> Batch:
    """Returns when a copy has begun, which then stands still."""
    standin.standin_hold(1)
    batch = engine.submit(transfers, **more)
    deadline = time.monotonic() + 20
    while not standin.standin_under_way():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return batch


def test_cancel_and_deadline(engine: TransferEngine, cuda: Cuda, standin: ctypes.CDLL) -> None:
    size = 64 * MIB
    address = cuda.allocate(size)
    segment = engine.register((address, size))
    memory = engine.allocate(size)
    bytes_ = np.frombuffer(memory, np.uint8)
    for op in (Op.READ, Op.WRITE):
        batch = submit_and_hold(engine, standin, [Transfer(op, memory, segment)])
        begun = time.monotonic()
        timer = threading.Timer(0.3, standin.standin_hold, [0])
        timer.start()
        # What the device has begun cannot be called back.
        assert batch.cancel(timeout_s=20) and time.monotonic() - begun > 0.2
        with pytest.raises(TransferCancelledError):
            batch.wait()
        timer.join()
        assert batch.status(0).bytes_done < size
        bytes_[:] = 7
        time.sleep(0.05)
        assert (bytes_ == 7).all()
        batch = submit_and_hold(engine, standin, [Transfer(op, memory, segment)], deadline_s=0.5)
        begun = time.monotonic()
        timer = threading.Timer(0.8, standin.standin_hold, [0])
        timer.start()
        with pytest.raises(TransferTimeoutError):
            batch.wait()
        # Not before the device is done with this memory.
        assert time.monotonic() - begun > 0.7
        timer.join()
    engine.write(memory, segment)
    assert cuda.get(address, size) == bytes(memory)
    segment.deregister()
    cuda.free(address)


def test_deregister_waits(engine: TransferEngine, cuda: Cuda, standin: ctypes.CDLL) -> None:
    size = 32 * MIB
    address = cuda.allocate(size)
    memory = engine.allocate(size)
    for cancel in (False, True):
        segment = engine.register((address, size))
        batch = submit_and_hold(engine, standin, [Transfer(Op.WRITE, memory, segment)])
        with pytest.raises(WaitTimeoutError):
            segment.deregister(cancel=cancel, timeout_s=0.1)
        standin.standin_hold(0)
        segment.deregister(cancel=cancel)
        with pytest.raises((SegmentClosedError, TransferCancelledError)):
            batch.wait()
        cuda.put(address, b"\x11" * size)
        time.sleep(0.02)
        assert cuda.get(address, size) == b"\x11" * size
    cuda.free(address)


def test_close_under_use(cuda: Cuda, standin: ctypes.CDLL) -> None:
    size = 64 * MIB
    address = cuda.allocate(size)
    for op in (Op.READ, Op.WRITE) * 2:
        engine = TransferEngine(token=TOKEN)
        segment = engine.register((address, size))
        standin.standin_delay(50)
        batch = engine.submit([Transfer(op, engine.allocate(size), segment)])
        engine.close()
        assert batch.done
    assert standin.standin_depth() == 0
    cuda.free(address)


@pytest.mark.parametrize("transports", [(), ("tcp", "cuda")], ids=["all", "tcp"])
def test_peer(
    cuda: Cuda, start_cuda_target: Callable[..., Target], transports: tuple[str, ...]
) -> None:
    """From host memory here to device memory there, and back."""
    target = start_cuda_target(*transports)
    with TransferEngine(token=TOKEN, transports=transports) as engine:
        peer = engine.connect(target.address)
        assert peer["source"].location == "cuda:0"
        memory = engine.allocate(SIZE)
        bytes_ = np.frombuffer(memory, np.uint8)
        engine.read(memory, peer["source"])
        np.testing.assert_array_equal(bytes_, pattern(SIZE))
        rng = np.random.default_rng(6)
        for length in (1, 4097, MIB + 1, 5 * MIB):
            at, near = (int(rng.integers(0, SIZE - length + 1)) for _ in range(2))
            engine.write(memory[near : near + length], peer["sink"][at : at + length])
            there = memory[0:length]
            engine.read(there, peer["sink"][at : at + length])
            np.testing.assert_array_equal(bytes_[:length], pattern(SIZE)[near : near + length])
            bytes_[:] = pattern(SIZE)
        engine.write(memory, peer["sink"])
        assert target.tell("cuda.get(sink, SIZE) == cuda.get(device, SIZE) and 1") == 1


def test_peer_ends(start_cuda_target: Callable[..., Target]) -> None:
    target = start_cuda_target()
    with TransferEngine(token=TOKEN) as engine:
        peer = engine.connect(target.address)
        sink = peer["sink"]
        memory = engine.allocate(SIZE)
        batch = engine.submit([Transfer(Op.WRITE, memory, sink)] * 20)
        assert target.tell("segments['sink'].deregister(cancel=True)") is None
        with pytest.raises(SegmentClosedError):
            batch.wait()
        with pytest.raises(SegmentClosedError):
            engine.write(memory, sink)
        batch = engine.submit([Transfer(Op.READ, memory, peer["source"])] * 20)
        target.process.kill()
        with pytest.raises(PeerDiedError):
            batch.wait()


def bytes_by_transport(engine: TransferEngine) -> dict[str, int]:
    totals: dict[str, int] = {}
    for path in engine.paths():
        totals[path.transport] = (
            totals.get(path.transport, 0) + path.read_bytes + path.written_bytes
        )
    return totals


def test_devices_of_one_process(engine: TransferEngine, cuda: Cuda) -> None:
    """Within a device, between two, and between two engines, to whom memory has to be offered."""
    size = 5 * MIB + 77
    numbers = [0, min(1, cuda.num_devices() - 1)]
    addresses = [cuda.allocate(size, number) for number in numbers]
    one, two = (engine.register((address, size)) for address in addresses)
    assert [one.location, two.location] == [f"cuda:{number}" for number in numbers]
    source = pattern(size).tobytes()
    cuda.put(addresses[0], source, numbers[0])
    cuda.put(addresses[1], bytes(size), numbers[1])
    engine.write(one[100:size], two[99 : size - 1])
    expected = bytes(99) + source[100:] + b"\0"
    assert cuda.get(addresses[1], size, numbers[1]) == expected
    engine.read(one[0 : 3 * MIB], two[1 : 3 * MIB + 1])
    assert cuda.get(addresses[0], size) == expected[1 : 3 * MIB + 1] + source[3 * MIB :]
    one.deregister()
    two.deregister()
    with TransferEngine(token=TOKEN) as other:
        offered = other.register((addresses[1], size), name="offered")
        other.allocate(size, name="host", remote=Access.WRITE)
        peer = engine.connect(other.address)
        mine = engine.register((addresses[0], size))
        engine.read(mine, peer["offered"])
        assert cuda.get(addresses[0], size) == expected
        engine.write(mine, peer["host"])
        memory = engine.allocate(size)
        engine.read(memory, peer["host"])
        assert bytes(memory) == expected
        engine.read(memory, peer["offered"])
        assert bytes(memory) == expected
        with pytest.raises(SegmentAccessError):
            engine.write(mine, peer["offered"])
        with engine.register((addresses[1], size)) as same:
            with pytest.raises(SegmentOverlapError):
                engine.read(same[0:100], peer["offered"][99:199])
            engine.read(same[0:100], peer["offered"][100:200])
        assert bytes_by_transport(engine)["cuda"] >= 4 * size
        known = peer["offered"]
        offered.deregister()
        with pytest.raises(SegmentClosedError):
            engine.read(mine, known)
        mine.deregister()
    for address, number in zip(addresses, numbers, strict=True):
        cuda.free(address, number)


@pytest.mark.parametrize("place", ["host", "device"])
def test_another_process(
    engine: TransferEngine, cuda: Cuda, start_cuda_target: Callable[..., Target], place: str
) -> None:
    """Its device memory is mapped here: nothing goes over a connection."""
    target = start_cuda_target()
    peer = engine.connect(target.address)
    address = cuda.allocate(SIZE)
    device = engine.register((address, SIZE))
    host = engine.allocate(SIZE)
    local = host if place == "host" else device

    def content() -> bytes:
        return bytes(host) if place == "host" else cuda.get(address, SIZE)

    engine.read(local, peer["source"])
    source = pattern(SIZE).tobytes()
    assert content() == source
    model = np.zeros(SIZE, np.uint8)
    engine.write(engine.allocate(SIZE), peer["sink"])
    rng = np.random.default_rng(7)
    for length in [1, 4097, 65536, MIB + 1, 7 * MIB] * 3:
        at, near = (int(rng.integers(0, SIZE - length + 1)) for _ in range(2))
        engine.write(local[near : near + length], peer["sink"][at : at + length])
        model[at : at + length] = pattern(SIZE)[near : near + length]
    assert target.tell("digest(0, SIZE)") == hashlib.blake2b(model.tobytes()).hexdigest()
    totals = bytes_by_transport(engine)
    assert totals["cuda"] > 2 * SIZE and totals.get("tcp", 0) == totals.get("staging", 0) == 0
    with pytest.raises(SegmentAccessError):
        engine.write(local, peer["source"])
    # Verified bytes take the one transport that verifies.
    engine.read(local, peer["sink"], verify=True)
    assert content() == model.tobytes()
    assert bytes_by_transport(engine)["tcp"] >= SIZE
    device.deregister()
    cuda.free(address)


@pytest.mark.parametrize("why", ["mapped", "refused"])
def test_memory_that_cannot_be_mapped(
    engine: TransferEngine,
    cuda: Cuda,
    standin: ctypes.CDLL,
    start_cuda_target: Callable[..., Target],
    why: str,
) -> None:
    """Of torch with expandable segments, say: through buffers, with the same bytes."""
    target = start_cuda_target()
    if why == "mapped":
        target.tell(
            "segments.update(x=engine.register((cuda.allocate(SIZE, "
            "call='standin_allocate_mapped'), SIZE), name='x', remote=Access.WRITE))"
        )
    else:
        target.tell("segments['sink'].deregister()")
        target.tell(
            "segments.update(x=engine.register((sink, SIZE), name='x', remote=Access.WRITE))"
        )
        standin.standin_fail(b"cuIpcOpenMemHandle_v2", 0, 201)
    address = cuda.allocate(SIZE)
    device = engine.register((address, SIZE))
    cuda.put(address, pattern(SIZE).tobytes())
    peer = engine.connect(target.address)
    engine.write(device, peer["x"])
    cuda.put(address, bytes(SIZE))
    engine.read(device, peer["x"])
    assert cuda.get(address, SIZE) == pattern(SIZE).tobytes()
    assert bytes_by_transport(engine).get("cuda", 0) == 0
    # The buffers of both ends are locked for their devices.
    assert standin.standin_registered() == 1
    assert target.tell("cuda.library.standin_registered()") == 1
    target.tell("segments['x'].deregister()")
    device.deregister()
    cuda.free(address)


def test_owner_waits_for_who_has_mapped(
    engine: TransferEngine,
    cuda: Cuda,
    standin: ctypes.CDLL,
    start_cuda_target: Callable[..., Target],
) -> None:
    target = start_cuda_target()
    peer = engine.connect(target.address)
    address = cuda.allocate(SIZE)
    device = engine.register((address, SIZE))
    engine.write(device, peer["sink"])
    source = peer["source"]
    engine.read(device, source)
    assert standin.standin_imports() == 1  # both lie in one allocation
    # Nothing under way: at once.
    begun = time.monotonic()
    target.tell("segments['source'].deregister(timeout_s=5)")
    assert time.monotonic() - begun < 4 and standin.standin_imports() == 1
    with pytest.raises(SegmentClosedError):
        engine.read(device, source)
    # A copy under way: after it, and what is written there later stays.
    for _ in range(5):
        write = Transfer(Op.WRITE, device, peer["sink"])
        batch = submit_and_hold(engine, standin, [write] * 3)
        begun = time.monotonic()
        timer = threading.Timer(0.2, standin.standin_hold, [0])
        timer.start()
        target.tell("segments['sink'].deregister(timeout_s=20)")
        assert time.monotonic() - begun > 0.1 and standin.standin_imports() == 0
        target.tell("cuda.put(sink, bytes([9]) * SIZE)")
        with pytest.raises(SegmentClosedError):
            batch.wait()
        time.sleep(0.02)
        assert target.tell("digest(0, SIZE)") == hashlib.blake2b(b"\t" * SIZE).hexdigest()
        target.tell(
            "segments.update(sink=engine.register((sink, SIZE), name='sink', remote=Access.WRITE))"
        )
        engine.write(device, peer["sink"])
    device.deregister()
    cuda.free(address)


def test_initiator_that_is_stopped_killed_or_closed(
    engine: TransferEngine,
    cuda: Cuda,
    standin: ctypes.CDLL,
    start_cuda_target: Callable[..., Target],
) -> None:
    address = cuda.allocate(SIZE)
    for end in ("stop", "kill", "close"):
        mine = engine.register((address, SIZE), name="mine", remote=Access.WRITE)
        initiator = start_cuda_target()
        initiator.tell(f"segments.update(far=engine.connect({engine.address!r})['mine'])")
        initiator.tell("engine.write(segments['source'], segments['far'])")
        assert cuda.get(address, SIZE) == pattern(SIZE).tobytes()
        initiator.tell("cuda.library.standin_delay(2000)")
        initiator.tell(
            "segments.update(batch=engine.submit([__import__('inlay.transfer').transfer.Transfer("
            "1, segments['source'], segments['far'])] * 9))"
        )
        if end == "stop":
            initiator.stop()
            with pytest.raises(WaitTimeoutError):
                mine.deregister(timeout_s=0.2)
            initiator.go_on()
        elif end == "kill":
            initiator.process.kill()
        else:
            initiator.tell("engine.close()")
        mine.deregister(timeout_s=10)
        cuda.put(address, b"\x07" * SIZE)
        time.sleep(0.02)
        assert cuda.get(address, SIZE) == b"\x07" * SIZE
    cuda.free(address)


def test_owner_that_is_killed_or_closed(
    engine: TransferEngine,
    cuda: Cuda,
    standin: ctypes.CDLL,
    start_cuda_target: Callable[..., Target],
) -> None:
    address = cuda.allocate(SIZE)
    device = engine.register((address, SIZE))
    for end in ("kill", "close"):
        owner = start_cuda_target()
        peer = engine.connect(owner.address)
        source = peer["source"]
        engine.read(device, source)
        standin.standin_delay(500)
        batch = engine.submit([Transfer(Op.READ, device, source)] * 9)
        if end == "kill":
            owner.process.kill()
        else:
            owner.tell("engine.close()")
        with pytest.raises((PeerDiedError, SegmentClosedError)):
            batch.wait()
        standin.standin_delay(0)
        deadline = time.monotonic() + 20
        while standin.standin_imports() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert standin.standin_imports() == 0
        with pytest.raises((PeerDiedError, SegmentClosedError)):
            engine.read(device, source)
    device.deregister()
    cuda.free(address)


def test_fault(cuda: Cuda, standin: ctypes.CDLL) -> None:
    """Last of all cases: afterwards this process's device does nothing more."""
    size = 16 * MIB
    address = cuda.allocate(size)
    assert standin.standin_registered() == standin.standin_imports() == 0
    with TransferEngine(token=TOKEN) as engine:
        segment = engine.register((address, size))
        memory = engine.allocate(size, name="memory", remote=Access.WRITE)
        standin.standin_fault_after(3)
        for _ in range(2):
            with pytest.raises(DeviceTransferError, match="illegal memory access"):
                engine.write(memory, segment)
        # Host memory is reached as ever.
        engine.read(engine.allocate(size), engine.connect(engine.address)["memory"])
        segment.deregister()
