"""`await batch`, on asyncio's own loop and on uvloop."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import uvloop

from inlay.core.errors import (
    PeerDiedError,
    SegmentClosedError,
    TransferCancelledError,
    TransferTimeoutError,
)
from inlay.transfer import Op, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, pattern

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on that loop; none may take longer than 60 s."""
    factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]

    def run(main: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(limited())

    return run


def test_many_at_once(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"]
    source = pattern(SIZE)
    sizes = [1, 5000, 70000, 3 << 20]
    ends = {}

    async def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        local = engine.allocate(3 << 20)
        view = np.frombuffer(local, np.uint8)
        for size in sizes:
            at = int(rng.integers(0, SIZE - size))
            await engine.submit([Transfer(Op.READ, local[0:size], remote[at : at + size])])
            np.testing.assert_array_equal(view[:size], source[at : at + size])
        ends[seed] = True

    async def main() -> None:
        await asyncio.gather(*(read(seed) for seed in range(20)))

    run(main)
    assert len(ends) == 20


def test_one_descriptor_and_no_thread(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"][0 : 8 << 20]
    local = [engine.allocate(8 << 20) for _ in range(30)]

    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    async def main() -> None:
        await asyncio.sleep(0)
        before = used()
        batches = [engine.submit([Transfer(Op.READ, near, remote)]) for near in local]

        async def wait(batch) -> None:  # type: ignore[no-untyped-def]
            await batch

        tasks = [asyncio.create_task(wait(batch)) for batch in batches]
        await asyncio.sleep(0)
        during = used()
        await asyncio.gather(*tasks)
        assert during[0] <= before[0] + 1 and during[1] == before[1]

    run(main)


def test_the_loop_goes_on_meanwhile(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"][0 : 1 << 20]
    local = engine.allocate(1 << 20)
    target.stop()

    async def main() -> None:
        batch = engine.submit([Transfer(Op.READ, local, remote)])
        task = asyncio.ensure_future(batch)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        target.go_on()
        await task
        assert batch.done

    run(main)


def test_failures_are_raised(engine: TransferEngine, target: Target, run: Run) -> None:
    peer = engine.connect(target.address)
    remote = peer["source"][0 : 1 << 20]
    sink = peer["sink"]
    local = engine.allocate(1 << 20)
    target.tell("segments['sink'].deregister()")

    async def main() -> None:
        with pytest.raises(SegmentClosedError):
            await engine.submit([Transfer(Op.WRITE, local, sink[0 : 1 << 20])])
        target.stop()
        with pytest.raises(TransferTimeoutError, match=target.address):
            await engine.submit([Transfer(Op.READ, local, remote)], deadline_s=0.1)
        batch = engine.submit([Transfer(Op.READ, local, remote)])
        target.process.kill()
        with pytest.raises(PeerDiedError, match=target.address):
            await batch
        with pytest.raises(PeerDiedError):  # and again, of a batch that is over
            await batch

    run(main)


@pytest.mark.parametrize("op", list(Op))
def test_a_cancelled_task_cancels_its_batch(
    engine: TransferEngine, target: Target, run: Run, op: Op
) -> None:
    peer = engine.connect(target.address)
    remote = peer["source" if op == Op.READ else "sink"]
    local, other = engine.allocate(SIZE), engine.allocate(100)
    view = np.frombuffer(local, np.uint8)
    target.stop()

    async def main() -> None:
        batch = engine.submit([Transfer(op, local, remote)])

        async def use() -> None:
            await batch

        task = asyncio.create_task(use())
        for _ in range(5):
            await asyncio.sleep(0)
        begin = time.monotonic()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, while it waits for its memory
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 1 and batch.done
        with pytest.raises(TransferCancelledError):
            batch.wait(0)
        view[:] = 7
        target.go_on()
        again = engine.connect(target.address)["source"]
        await engine.submit([Transfer(Op.READ, other, again[0:100])])
        assert (view == 7).all()  # what was on its way before that did not land

    run(main)


def test_a_timeout_around_it(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"][0:100]
    local = engine.allocate(100)
    target.stop()

    async def main() -> None:
        batch = engine.submit([Transfer(Op.READ, local, remote)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await batch
        assert batch.done and batch.status(0).state == "cancelled"

    run(main)


def test_two_tasks_await_one_batch(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"][0 : 16 << 20]
    local = engine.allocate(16 << 20)

    async def main() -> None:
        batch = engine.submit([Transfer(Op.READ, local, remote)])

        async def wait() -> None:
            await batch

        await asyncio.gather(wait(), wait())
        assert batch.done

    run(main)


def test_loops_of_several_threads(engine: TransferEngine, target: Target, run: Run) -> None:
    remote = engine.connect(target.address)["source"]
    failures = []

    def work(seed: int) -> None:
        local = engine.allocate(2 << 20)

        async def main() -> None:
            for i in range(20):
                size = (i % 3 + 1) * 300_000
                await engine.submit([Transfer(Op.READ, local[0:size], remote[i : i + size])])
                if bytes(local_view(local)[:100]) != source[i : i + 100]:
                    failures.append((seed, i))

        run(main)

    source = pattern(SIZE)[:200].tobytes()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


def local_view(local: object) -> memoryview:
    return memoryview(local)  # type: ignore[arg-type]


def test_loops_come_and_go(engine: TransferEngine, target: Target, run: Run) -> None:
    """No descriptor stays of a loop that is closed."""
    remote = engine.connect(target.address)["source"][0 : 1 << 20]
    local = engine.allocate(1 << 20)

    async def main() -> None:
        await engine.submit([Transfer(Op.READ, local, remote)])

    run(main)
    run(main)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        run(main)
    # The engine's thread may be about to let go of the last one.
    end = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < end
