"""Two ranks' pages in one process: what the engine asks of the other one, and what it answers."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from inlay.cache.other_rank import OtherRank
from inlay.cache.rank_messages import PageWrite
from inlay.cache.rank_pages import OwnPages
from inlay.cache.rank_server import RankServer
from inlay.core.errors import GrantError, InlayError, TransferError
from inlay.core.instance_messages import RankTarget
from inlay.core.kv_format import gqa_format
from inlay.core.tensor_parallel import Rank
from inlay.transfer import Access, TransferEngine

PAGES = 8
FORMAT = gqa_format(layers=2, kv_heads=2, head_dim=4, dtype="float32", page_tokens=4)


class Process:
    """A transfer engine and all pages of a rank."""

    def __init__(self, rank: Rank) -> None:
        kv_format = FORMAT.of_rank(rank)
        self.memory = np.zeros((PAGES, kv_format.page_bytes), np.uint8)
        self.engine = TransferEngine()
        segment = self.engine.register(
            self.memory, name="kv", remote=Access.WRITE, page_bytes=kv_format.page_bytes
        )
        self.pages = OwnPages(self.engine, segment, kv_format, guarded=True)


class Shared:
    """An engine's process and another rank's, of which it asks things."""

    def __init__(self) -> None:
        self.first, self.second = Process(Rank(0, 2)), Process(Rank(1, 2))
        self.server = RankServer(self.second.engine, self.second.pages, self.first.engine.address)
        self.other = OtherRank(self.first.engine, self.second.engine.address)

    async def ask(self, work):
        """The result of what needs answers, which are listened for meanwhile."""

        async def listen() -> None:
            async for message in self.first.engine.messages():
                self.other.hear(message)

        listening = asyncio.create_task(listen())
        try:
            return await work
        finally:
            listening.cancel()


def page_ids(*ids: int) -> bytes:
    return np.array(ids, "<u4").tobytes()


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.server.close()
    made.first.engine.close()


@pytest.fixture
def alone() -> Iterator[Process]:
    made = Process(Rank())
    yield made
    made.engine.close()


def write(target: Process, grant: int) -> PageWrite:
    return PageWrite(
        pages=page_ids(5, 6),
        remote_pages=page_ids(2, 1),
        layer=None,
        segment="kv",
        ranks=(RankTarget(target.engine.address, grant),),
    )


@pytest.mark.anyio
async def test_another_rank_writes_its_heads_under_a_grant(shared: Shared, alone: Process) -> None:
    shared.second.memory[5:7] = np.arange(2 * FORMAT.page_bytes // 2).reshape(2, -1) % 251
    pages = np.array([1, 2], np.int32)
    grant = alone.pages.grant(pages)
    await shared.ask(shared.other.write(write(alone, grant)))
    halves = alone.memory.reshape(PAGES, 2 * 2 * 4, 2, 16)  # of each token and plane, by head
    sent = shared.second.memory.reshape(PAGES, 2 * 2 * 4, 16)
    assert (halves[2, :, 1] == sent[5]).all() and (halves[1, :, 1] == sent[6]).all()
    assert not halves[:, :, 0].any()
    assert alone.pages.revoke(grant)
    with pytest.raises(TransferError, match="granted it no such write"):
        await shared.ask(shared.other.write(write(alone, grant)))


@pytest.mark.anyio
async def test_grants_of_another_rank_are_given_and_taken_back(
    shared: Shared, alone: Process
) -> None:
    pages = np.array([1, 2], np.int32)
    alone.memory[5:7] = 7
    grant = await shared.ask(asyncio.to_thread(shared.other.grant, pages))
    with pytest.raises(InlayError, match="1"):  # a page has one grant at a time
        await shared.ask(asyncio.to_thread(shared.other.grant, pages))
    ranks = (
        RankTarget(shared.first.engine.address, shared.first.pages.grant(pages)),
        RankTarget(shared.second.engine.address, grant),
    )
    both = write(alone, 0)
    both = PageWrite(both.pages, both.remote_pages, None, "kv", ranks)
    await alone.pages.write(both)
    assert (shared.first.memory[1:3] == 7).all() and (shared.second.memory[1:3] == 7).all()
    assert await shared.ask(asyncio.to_thread(shared.other.revoke, grant))
    with pytest.raises(GrantError):
        await alone.pages.write(both)


@pytest.mark.anyio
async def test_a_rank_that_is_gone(shared: Shared, alone: Process, monkeypatch) -> None:
    shared.server.close()
    with pytest.raises(InlayError):
        await shared.ask(shared.other.write(write(alone, 1)))
    with pytest.raises(InlayError):
        await shared.ask(asyncio.to_thread(shared.other.grant, np.array([1], np.int32)))
    assert await shared.ask(asyncio.to_thread(shared.other.revoke, 1))


@pytest.mark.anyio
async def test_an_instance_that_is_gone(shared: Shared, alone: Process) -> None:
    alone.engine.close()
    with pytest.raises(TransferError):
        await shared.ask(shared.other.write(write(alone, 1)))


@pytest.mark.anyio
async def test_nobody_else_asks(shared: Shared, alone: Process, monkeypatch) -> None:
    monkeypatch.setattr("inlay.cache.other_rank._ANSWER_S", 0.2)
    stranger = OtherRank(alone.engine, shared.second.engine.address)
    with pytest.raises(InlayError, match="did not answer in 0.2 s"):
        await asyncio.to_thread(stranger.grant, np.array([1], np.int32))


@pytest.mark.anyio
async def test_a_write_that_is_cancelled(shared: Shared, alone: Process) -> None:
    grant = alone.pages.grant(np.array([1, 2], np.int32))
    work = asyncio.ensure_future(shared.other.write(write(alone, grant)))

    async def cancel() -> None:
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.sleep(0)
        work.cancel()  # while it ends
        with pytest.raises(asyncio.CancelledError):
            await work

    await shared.ask(cancel())
    assert not shared.other._asked
    assert alone.pages.revoke(grant)
