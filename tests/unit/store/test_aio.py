"""The awaited calls: the same results, and a loop that goes on meanwhile."""

import asyncio
import secrets

import pytest

from inlay.core.errors import ArgumentError, KeyNotFound, ObjectExists
from inlay.store import PutOptions, Store, aio


def test_calls() -> None:
    async def main(store: Store) -> None:
        value = secrets.token_bytes(300_000)
        assert (await aio.put(store, "k", value)).stored
        assert await aio.get(store, "k") == value
        assert await aio.get_many(store, ["none", "k", "k"]) == [None, value, value]
        assert await aio.get_or_none(store, "none") is None
        buffer = bytearray(300_000)
        assert await aio.get_into(store, "k", buffer) == 300_000 and buffer == value
        assert (await aio.put_parts(store, "p", [b"a", b"", b"b"])).stored
        assert await aio.get(store, "p") == b"ab"
        assert not (await aio.put(store, "k", b"")).stored
        assert (await aio.upsert(store, "k", b"")).stored and await aio.get(store, "k") == b""
        one, other = bytearray(1), bytearray(1)
        assert await aio.get_parts(store, "p", [one, other], [(1, 1), (0, 1)]) == 2
        assert (one, other) == (b"b", b"a")
        assert await aio.get_parts_many(store, ["none", "p"], [[], [one, other]]) == [None, 2]
        view = await aio.view(store, "p", verify=True)
        with view as memory:
            assert memory == b"ab"
        assert (await aio.stat(store, "p")).size_bytes == 2
        for missing in (aio.view(store, "none"), aio.stat(store, "none")):
            with pytest.raises(KeyNotFound):
                await missing
        assert await aio.exists_many(store, ["k", "none"]) == [True, False]
        assert await aio.remove_many(store, ["k", "none"]) == [True, False]
        with pytest.raises(KeyNotFound):
            await aio.get(store, "k")
        with pytest.raises(ObjectExists):
            await aio.put(store, "p", b"", PutOptions(if_exists="error"))
        with pytest.raises(ArgumentError, match="buffer 1"):
            await aio.get_into(store, "p", bytearray(1))

    with Store.embedded(memory="16MiB") as store:
        asyncio.run(main(store))


def test_many_at_once() -> None:
    async def main(store: Store) -> None:
        async def one(i: int) -> None:
            value = str(i).encode() * 1000
            await aio.put(store, str(i), value)
            assert await aio.get(store, str(i)) == value

        await asyncio.gather(*(one(i) for i in range(200)))

    with Store.embedded(memory="16MiB") as store:
        asyncio.run(main(store))


def test_cancelled() -> None:
    async def main(store: Store) -> None:
        tasks = [asyncio.create_task(aio.put(store, f"k{i}", bytes(100_000))) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert (await aio.put(store, "after", b"1")).stored

    with Store.embedded(memory="16MiB") as store:
        asyncio.run(main(store))
