"""A peer that writes granted pages is stopped, killed or slow: what is taken back stays back."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from inlay.core.errors import GrantError, WaitTimeoutError
from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import TOKEN

PAGE = 1 << 20
PAGES = 64
ALL = np.arange(PAGES, dtype=np.int32)
# What its owner and its writer put there.
OURS, THEIRS = 7, 1


class Pool:
    """Guarded pages of this process, and another one that writes them."""

    def __init__(self, engine: TransferEngine, target: Target) -> None:
        self.memory: NDArray[np.uint8] = np.zeros((PAGES, PAGE), np.uint8)
        self.segment = engine.register(self.memory, name="kv", remote=Access.WRITE, page_bytes=PAGE)
        self.target = target
        self.grant = self.segment.grant(ALL)
        target.tell(f"segments.update(kv=engine.connect('{engine.address}')['kv'])")
        target.tell(
            f"segments.update(data=engine.register(np.full({PAGES * PAGE}, {THEIRS}, 'u1')))"
        )

    def begin_write(self) -> None:
        """Returns when its first bytes are here."""
        self.memory[:] = 0
        self.target.tell(
            "segments.update(batch=engine.submit([Transfer(Op.WRITE, segments['data'], "
            f"segments['kv'], grant={self.grant})], deadline_s=60))"
        )
        end = time.monotonic() + 20
        while not self.memory[:, 0].any():
            assert time.monotonic() < end

    def take_back(self) -> None:
        begin = time.monotonic()
        assert self.segment.revoke(self.grant, timeout_s=10)
        assert time.monotonic() - begin < 5  # microseconds, on a machine that has them
        self.memory[:] = OURS

    def is_ours(self) -> bool:
        return bool((self.memory == OURS).all())

    def result(self) -> str:
        """What became of the batch."""
        status = "segments['batch'].status(0)"
        end = time.monotonic() + 20
        while (state := self.target.tell(f"{status}.state")) == "running":
            assert time.monotonic() < end
            self.target.tell("__import__('time').sleep(0.01)")
        failed: str = self.target.tell(f"type({status}.error).__name__")
        return "done" if state == "done" else failed


@pytest.fixture(params=["tcp", "shm"])
def pool(request: pytest.FixtureRequest, start_target: Callable[..., Target]) -> Iterator[Pool]:
    with TransferEngine(token=TOKEN, transports=[request.param]) as engine:
        yield Pool(engine, start_target("127.0.0.1:0", request.param))


def rounds(pool: Pool, disturb: Callable[[], None], end: Callable[[], None]) -> list[str]:
    """What became of writes whose grant was taken back while they ran."""
    results = []
    for _ in range(10):
        pool.begin_write()
        disturb()
        pool.take_back()
        assert pool.is_ours()
        end()
        results.append(pool.result())
        assert pool.is_ours()
        pool.grant = pool.segment.grant(ALL)
    return results


def test_a_writer_that_goes_on(pool: Pool) -> None:
    results = rounds(pool, lambda: None, lambda: None)
    assert set(results) <= {"GrantError", "done"} and "GrantError" in results


def test_a_writer_that_is_stopped(pool: Pool) -> None:
    results = rounds(pool, pool.target.stop, pool.target.go_on)
    assert set(results) <= {"GrantError", "done"}


def test_a_writer_that_stays_stopped(pool: Pool) -> None:
    pool.begin_write()
    pool.target.stop()
    pool.take_back()
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        assert pool.is_ours()
    other = pool.segment.grant(ALL)  # for somebody else
    pool.target.go_on()
    assert pool.result() in ("GrantError", "done")
    assert pool.is_ours() and other != pool.grant


def test_a_writer_that_is_killed(pool: Pool) -> None:
    pool.begin_write()
    pool.target.process.kill()
    pool.take_back()
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        assert pool.is_ours()
    pool.segment.grant(ALL)


def test_what_its_owner_does_not_read_lands_no_more(
    start_target: Callable[..., Target],
) -> None:
    """Bytes that wait in the owner's socket while its grant is taken back."""
    owner = start_target("127.0.0.1:0", "tcp")
    owner.tell(
        "segments.update(kv=engine.allocate(64 << 20, name='kv', remote=Access.WRITE, "
        "page_bytes=1 << 20))"
    )
    grant = owner.tell("segments['kv'].grant(np.arange(64, dtype=np.int32))")
    with TransferEngine(token=TOKEN, transports=["tcp"]) as engine:
        remote = engine.connect(owner.address)["kv"]
        local = engine.register(np.full(64 << 20, THEIRS, np.uint8))
        engine.submit([Transfer(Op.WRITE, local, remote, grant=grant)]).wait(20)
        owner.stop()
        batch = engine.submit([Transfer(Op.WRITE, local, remote, grant=grant)], deadline_s=20)
        with pytest.raises(WaitTimeoutError):
            batch.wait(0.1)
        # Its commands and its engine's thread race for what waits, whoever is first.
        owner.go_on()
        filled = f"np.frombuffer(segments['kv'], 'u1').fill({OURS})"
        assert owner.tell(f"[segments['kv'].revoke({grant}), {filled}][0]") in (True, 1)
        with pytest.raises(GrantError):
            batch.wait(20)
        assert owner.tell("sorted(set(np.frombuffer(segments['kv'], 'u1').tolist()))") == [OURS]
