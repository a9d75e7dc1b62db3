"""Pages of a segment that peers write under grants alone."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError, EngineClosedError, GrantError
from inlay.kernels import native_problem
from inlay.transfer import Access, Op, Peer, Ranges, Segment, Transfer, TransferEngine

TOKEN = bytes(range(32))
PAGE = 4096
PAGES = 64


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN) as engine:
        yield engine


@pytest.fixture
def memory() -> NDArray[np.uint8]:
    return np.zeros((PAGES, PAGE), np.uint8)


@pytest.fixture
def pool(engine: TransferEngine, memory: NDArray[np.uint8]) -> Segment:
    return engine.register(memory, name="kv", remote=Access.WRITE, page_bytes=PAGE)


@pytest.fixture
def peer(engine: TransferEngine, pool: Segment) -> Peer:
    return engine.connect(engine.address)


def pages(*ids: int) -> NDArray[np.int32]:
    return np.array(ids, np.int32)


def write(engine: TransferEngine, peer: Peer, ids: list[int], grant: int, value: int = 1) -> None:
    """Pages, each as two pieces."""
    local = engine.register(np.full(len(ids) * PAGE, value, np.uint8))
    here = np.arange(0, local.size, PAGE // 2, dtype=np.int64)
    there = np.repeat(np.array(ids, np.int64) * PAGE, 2) + here % PAGE
    with local:
        engine.submit(
            [Ranges(Op.WRITE, local, peer["kv"], here, there, PAGE // 2, grant=grant)]
        ).wait(20)


def test_granted_pages_alone_are_written(
    engine: TransferEngine,
    pool: Segment,
    peer: Peer,
    memory: NDArray[np.uint8],
) -> None:
    grant = pool.grant(pages(3, 60, 5))
    assert 0 < grant < 2**64
    write(engine, peer, [5, 60], grant)
    write(engine, peer, [3], grant, 2)
    for ids, under in (([3], 0), ([3], 1), ([3], grant ^ 1), ([4], grant), ([5, 6], grant)):
        with pytest.raises(GrantError, match="granted it no such write") as caught:
            write(engine, peer, ids, under, 9)
        assert caught.value.segment == "kv" and caught.value.peer == engine.address
    assert [int(memory[page, 0]) for page in (3, 4, 6, 60)] == [2, 0, 0, 1]
    assert memory[[page for page in range(PAGES) if page not in (3, 5, 60)]].sum() == 0


def test_a_write_across_pages_needs_all_of_them(
    engine: TransferEngine,
    pool: Segment,
    peer: Peer,
    memory: NDArray[np.uint8],
) -> None:
    grant = pool.grant(pages(7, 8))
    local = engine.register(np.ones(PAGE, np.uint8))
    remote = peer["kv"]
    middle = 7 * PAGE + PAGE // 2
    engine.submit([Transfer(Op.WRITE, local, remote[middle : middle + PAGE], grant=grant)]).wait(20)
    assert memory.sum() == PAGE
    for at in (middle - PAGE, middle + PAGE):
        with pytest.raises(GrantError):
            engine.submit([Transfer(Op.WRITE, local, remote[at : at + PAGE], grant=grant)]).wait(20)
    with pytest.raises(GrantError):
        engine.write(local, remote[7 * PAGE : 8 * PAGE])
    assert memory.sum() == PAGE
    engine.read(local, remote[9 * PAGE : 10 * PAGE])  # who may write may read all of it


def test_taken_back(engine: TransferEngine, pool: Segment, peer: Peer) -> None:
    first = pool.grant(pages(1, 2))
    other = pool.grant(pages(3))
    assert pool.revoke(first)
    assert pool.revoke(first) and pool.revoke(12345)
    with pytest.raises(GrantError):
        write(engine, peer, [1], first)
    write(engine, peer, [3], other)
    again = pool.grant(pages(2, 1))
    assert again not in (first, other)
    with pytest.raises(GrantError):
        write(engine, peer, [1], first)
    write(engine, peer, [1, 2], again)


def test_grants_that_cannot_be(engine: TransferEngine, pool: Segment, peer: Peer) -> None:
    taken = pool.grant(pages(9))
    for ids, problem in (
        ([], "at least one"),
        ([0, PAGES], f"page {PAGES} is none of the segment's {PAGES}"),
        ([0, -1], "page -1 is none"),
        ([0, 1, 0], "page 0 is named twice"),
        ([0, 9], "page 9 is granted"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            pool.grant(pages(*ids))
    with pytest.raises(ArgumentError, match="int"):
        pool.grant(np.zeros(1, np.int64))  # type: ignore[arg-type]
    write(engine, peer, [9], taken)
    pool.grant(pages(0, 1))  # nothing of the refused ones stays
    with pytest.raises(ArgumentError, match="timeout_s"):
        pool.revoke(taken, timeout_s=0)


def test_segments_that_take_none(engine: TransferEngine) -> None:
    plain = engine.allocate(PAGE, remote=Access.WRITE)
    with pytest.raises(ArgumentError, match="page_bytes"):
        plain.grant(pages(0))
    with pytest.raises(ArgumentError, match="page_bytes"):
        plain.revoke(1)
    for page_bytes in (0, -1, PAGE - 1, 2 * PAGE):
        with pytest.raises(ArgumentError, match="page_bytes: must divide the segment's 4096"):
            engine.allocate(PAGE, remote=Access.WRITE, page_bytes=page_bytes)
    with pytest.raises(ArgumentError, match=r"remote=Access\.WRITE"):
        engine.register(bytearray(PAGE), page_bytes=PAGE)
    # A write elsewhere may carry one.
    remote = engine.connect(engine.address)[plain.name]
    engine.submit([Transfer(Op.WRITE, engine.allocate(PAGE), remote, grant=5)]).wait(20)


def test_after_the_segment_or_the_engine(engine: TransferEngine, pool: Segment) -> None:
    grant = pool.grant(pages(0))
    pool.deregister()
    assert pool.revoke(grant)
    other = TransferEngine(token=TOKEN)
    segment = other.allocate(PAGE, remote=Access.WRITE, page_bytes=PAGE)
    grant = segment.grant(pages(0))
    other.close()
    assert segment.revoke(grant)
    with pytest.raises(EngineClosedError):
        other.connect(other.address)


def test_nothing_lands_after_a_revoke(
    engine: TransferEngine,
    pool: Segment,
    peer: Peer,
    memory: NDArray[np.uint8],
) -> None:
    """Again and again, while a thread writes all pages without a pause."""
    refused = [0]
    grants = [pool.grant(np.arange(PAGES, dtype=np.int32))]
    over = threading.Event()

    def keep_writing() -> None:
        while not over.is_set():
            try:
                write(engine, peer, list(range(PAGES)), grants[0])
            except GrantError:
                refused[0] += 1

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        for _ in range(200):
            assert pool.revoke(grants[0], timeout_s=10)
            memory[:] = 0
            assert memory.sum() == 0 and memory.sum() == 0
            grants[0] = pool.grant(np.arange(PAGES, dtype=np.int32))
    finally:
        over.set()
        thread.join(20)
    assert not thread.is_alive()
