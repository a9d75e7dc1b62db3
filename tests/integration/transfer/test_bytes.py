"""The right bytes in the right places, and nowhere else."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from inlay.transfer import Access, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern

SIZES = [
    1,
    2,
    63,
    4095,
    4096,
    4097,
    65535,
    65536,
    65537,
    (1 << 20) - 1,
    1 << 20,
    5_000_003,
    64 << 20,
]


@pytest.fixture(params=["tcp", "shm"])
def engine(request: pytest.FixtureRequest) -> Iterator[TransferEngine]:
    """Over each way to the target; "local" for the engine itself."""
    with TransferEngine(token=TOKEN, transports=["local", request.param]) as engine:
        yield engine


@pytest.fixture
def target(shared_target: Target) -> Target:
    """With nothing in its sink."""
    shared_target.tell("np.frombuffer(segments['sink'], np.uint8).fill(0)")
    return shared_target


@pytest.mark.parametrize("size", SIZES)
def test_read_and_write(engine: TransferEngine, target: Target, size: int) -> None:
    peer = engine.connect(target.address)
    expected = pattern(SIZE)
    for near, far in ((0, 0), (1, 4097), (77, 3)):
        local = engine.allocate(size + 200)
        view = np.frombuffer(local, np.uint8)
        engine.read(local[near : near + size], peer["source"][far : far + size])
        np.testing.assert_array_equal(view[near : near + size], expected[far : far + size])
        assert not view[:near].any() and not view[near + size :].any()
        engine.write(local[near : near + size], peer["sink"][far : far + size])
        digest = hashlib.blake2b(expected[far : far + size]).hexdigest()
        assert target.sink_digest(far, far + size) == digest
        local.deregister()


def random_ranges(rng: np.random.Generator, count: int, most: int) -> tuple[np.ndarray, ...]:
    """Ranges that lie apart locally, anywhere remotely."""
    lengths = rng.integers(0, most, count)
    gaps = rng.integers(0, 3, count)
    starts = np.cumsum(lengths + gaps) - lengths
    return starts, rng.integers(0, SIZE - most, count), lengths


@pytest.mark.parametrize(("count", "most"), [(1, 10), (300, 7), (5000, 9000), (40, 1 << 21)])
def test_gather(engine: TransferEngine, target: Target, count: int, most: int) -> None:
    rng = np.random.default_rng(count)
    near, far, lengths = random_ranges(rng, count, most)
    local = engine.allocate(int(near[-1] + lengths[-1]) + 1)
    remote = engine.connect(target.address)["source"]
    engine.submit([Ranges(Op.READ, local, remote, near, far, lengths)]).wait()
    source, expected = pattern(SIZE), np.zeros(len(local), np.uint8)
    for a, b, n in zip(near, far, lengths, strict=True):
        expected[a : a + n] = source[b : b + n]
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), expected)


def test_thousands_of_small_transfers(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    count, size = 3000, 40
    local = engine.allocate(count * size)
    order = np.random.default_rng(2).permutation(count).tolist()
    transfers = [
        Transfer(
            Op.READ, local[i * size : (i + 1) * size], peer["source"][j * size : (j + 1) * size]
        )
        for i, j in enumerate(order)
    ]
    for some in (transfers[:1600], transfers):  # over the small lane, then the bulk lane
        engine.submit(some).wait()
    expected = pattern(SIZE)[: count * size].reshape(count, size)[order]
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), expected.ravel())


def test_scatter(engine: TransferEngine, target: Target) -> None:
    count, length = 4000, 5000
    far = np.random.default_rng(1).permutation(count).astype(np.int64) * (length + 1)
    near = np.arange(count, dtype=np.int64) * length
    data = pattern(count * length, 3)
    local = engine.register(data)
    remote = engine.connect(target.address)["sink"]
    engine.submit([Ranges(Op.WRITE, local, remote, near, far, length)]).wait()
    expected = np.zeros(SIZE, np.uint8)
    for a, b in zip(near, far, strict=True):
        expected[b : b + length] = data[a : a + length]
    assert target.sink_digest(0, SIZE) == hashlib.blake2b(expected).hexdigest()


def test_a_batch_mixes_peers_directions_and_sizes(engine: TransferEngine, start_target) -> None:  # type: ignore[no-untyped-def]
    targets = [start_target(), start_target()]
    peers = [engine.connect(target.address) for target in targets]
    local = engine.allocate(40 << 20)
    data = engine.register(pattern(10 << 20, 5))
    batch = engine.submit(
        [
            Transfer(Op.READ, local=local[0:100], remote=peers[0]["source"][7:107]),
            Transfer(Op.WRITE, local=data, remote=peers[1]["sink"][0 : 10 << 20]),
            Transfer(
                Op.READ, local=local[100 : 30 << 20], remote=peers[1]["source"][100 : 30 << 20]
            ),
            Transfer(Op.WRITE, local=data[5:10], remote=peers[0]["sink"][0:5]),
            Transfer(Op.READ, local=local[0:0], remote=peers[0]["source"][0:0]),
        ]
    )
    batch.wait(60)
    assert batch.done and batch.settled and len(batch) == 5
    assert [batch.status(i).bytes_done for i in range(5)] == [100, 10 << 20, (30 << 20) - 100, 5, 0]
    assert all(batch.status(i).state == "done" for i in range(5))
    view, source = np.frombuffer(local, np.uint8), pattern(SIZE)
    np.testing.assert_array_equal(view[:100], source[7:107])
    np.testing.assert_array_equal(view[100 : 30 << 20], source[100 : 30 << 20])
    expected = hashlib.blake2b(pattern(10 << 20, 5)).hexdigest()
    assert targets[1].sink_digest(0, 10 << 20) == expected
    engine.submit([]).wait()


def test_threads_share_a_peer(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"]
    source = pattern(SIZE)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        local = engine.allocate(3 << 20)
        view = np.frombuffer(local, np.uint8)
        for _ in range(40):
            size = int(rng.integers(1, 3 << 20 if seed % 2 else 5000))
            at = int(rng.integers(0, SIZE - size))
            engine.read(local[0:size], remote[at : at + size])
            if not np.array_equal(view[:size], source[at : at + size]):
                wrong.append(f"{seed}: {size} at {at}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not wrong and not any(thread.is_alive() for thread in threads)


async def test_a_batch_goes_on_without_a_waiter(engine: TransferEngine, target: Target) -> None:
    local = engine.allocate(32 << 20)
    remote = engine.connect(target.address)["source"]
    batch = engine.submit([Transfer(Op.READ, local, remote[0 : 32 << 20])])
    async with asyncio.timeout(60):
        while not batch.done:
            await asyncio.sleep(0.001)
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), pattern(SIZE)[: 32 << 20])


def test_an_engine_is_its_own_peer(engine: TransferEngine) -> None:
    data = pattern(1 << 20)
    engine.register(data, name="here")
    local = engine.allocate(1 << 20)
    engine.read(local, engine.connect(engine.address)["here"])
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), data)
    assert engine.connect(f"localhost:{engine.port}").engine_id == engine.engine_id


def test_written_bytes_are_there_when_write_returns(engine: TransferEngine, target: Target) -> None:
    sink = engine.connect(target.address)["sink"]
    local = engine.allocate(1, remote=Access.NONE)
    view = np.frombuffer(local, np.uint8)
    for value in range(50):
        view[0] = value
        engine.write(local, sink[9:10])
        assert target.tell("segments['sink'] and memoryview(segments['sink'])[9]") == value
