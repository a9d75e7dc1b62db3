"""KV events over real sockets: what is missed is asked for again, or forgotten."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
import zmq

from inlay.connect.foreign.event_feed import EventFeed, EventSource
from inlay.connect.foreign.names import BlockNames
from inlay.core.block_hash import chain
from tests.support.kv_publisher import KvPublisher, removed, stored

KEY = b"a key"
WAIT_S = 60.0


class Follower:
    """A feed and what it says of blocks."""

    def __init__(
        self, publisher: KvPublisher, *, replay: bool = True, silence_s: float = 3.0
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._changed = asyncio.Event()
        self.names = BlockNames(lambda salt, adapter: KEY, 16)
        source = EventSource(events=publisher.events, replay=publisher.replay if replay else None)
        self.feed = EventFeed(
            self._context, source, self.names, self._changed.set, silence_s=silence_s
        )

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    async def until_held(self, *prompts: list[int]) -> None:
        expected = {digest for prompt in prompts for digest in chain(KEY, prompt)}
        with contextlib.suppress(TimeoutError):
            await self.until(lambda: set(self.names.digests()) == expected)
        assert set(self.names.digests()) == expected

    def close(self) -> None:
        self.feed.close()
        self._context.term()


def prompt(seed: int, blocks: int = 4) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(50_000) for _ in range(16 * blocks)]


@pytest.fixture
def publisher():
    made = KvPublisher()
    yield made
    made.close()


@contextlib.asynccontextmanager
async def following(publisher, **options):
    follower = Follower(publisher, **options)
    try:
        await asyncio.to_thread(publisher.wait_subscribed)
        yield follower
    finally:
        follower.close()


def test_what_was_said_before_is_said_again(publisher):
    async def run():
        publisher.publish(stored(prompt(1)))
        publisher.publish(stored(prompt(2)))
        async with following(publisher) as follower:
            await follower.until_held(prompt(1), prompt(2))
            publisher.publish(removed(prompt(1)))
            publisher.publish(stored(prompt(3)))
            await follower.until_held(prompt(2), prompt(3))
            assert publisher.asked == [0]

    asyncio.run(run())


def test_a_gap_is_asked_for(publisher):
    async def run():
        async with following(publisher) as follower:
            publisher.publish(stored(prompt(1)))
            await follower.until_held(prompt(1))
            publisher.publish(stored(prompt(2)), lose=True)
            publisher.publish(removed(prompt(1)), lose=True)
            publisher.publish(stored(prompt(3)))
            await follower.until_held(prompt(2), prompt(3))
            assert publisher.asked == [0, 1]
            assert follower.feed.gaps == 0

    asyncio.run(run())


def test_a_gap_that_nobody_says_again():
    """What was known is forgotten; what comes later counts, and children of what was known do."""

    async def run(kept, replay):
        publisher = KvPublisher(kept)
        try:
            async with following(publisher, replay=replay) as follower:
                publisher.publish(stored(prompt(1)[:32]))
                await follower.until_held(prompt(1)[:32])
                for _ in range(3):
                    publisher.publish(removed(prompt(1)[:32]), lose=True)
                publisher.publish(stored(prompt(1), first=2), stored(prompt(2)))
                await follower.until(lambda: follower.feed.gaps > 0 and follower.names.num_held)
                held = set(follower.names.digests())
                assert held == {*chain(KEY, prompt(1))[2:], *chain(KEY, prompt(2))}
                assert follower.feed.gaps == 1
        finally:
            publisher.close()

    asyncio.run(run(kept=2, replay=True))
    asyncio.run(run(kept=0, replay=False))


def test_a_gap_in_what_comes_during_a_replay_is_asked_for(publisher):
    async def run():
        async with following(publisher) as follower:
            publisher.publish(stored(prompt(1)))
            await follower.until_held(prompt(1))
            publisher.answers.clear()
            publisher.publish(stored(prompt(2)), lose=True)
            publisher.publish(stored(prompt(3)))
            async with asyncio.timeout(WAIT_S):
                while publisher.asked != [0, 1]:
                    await asyncio.sleep(0.01)
                publisher.publish(removed(prompt(1)), lose=True)
                publisher.publish(stored(prompt(4)))
                while len(follower.feed._behind or ()) < 2:
                    await asyncio.sleep(0.01)
            publisher.answers.set()
            await follower.until_held(prompt(2), prompt(3), prompt(4))
            assert publisher.asked == [0, 1, 3]
            assert follower.feed.gaps == 0

    asyncio.run(run())


def test_a_replay_that_says_nothing(publisher):
    """What was known is forgotten."""

    async def run():
        async with following(publisher) as follower:
            publisher.publish(stored(prompt(1)))
            await follower.until_held(prompt(1))
            publisher.publish(removed(prompt(1)), lose=True, keep=False)
            publisher.publish(stored(prompt(2)), keep=False)
            await follower.until_held(prompt(2))
            assert publisher.asked == [0, 1]
            assert follower.feed.gaps == 1

    asyncio.run(run())


def test_what_a_replay_said_may_come_late(publisher):
    """The messages before it arrive behind it: the engine was not started again."""

    for seed in range(4):
        publisher.publish(stored(prompt(seed)))

    async def run():
        async with following(publisher) as follower:
            await follower.until_held(*map(prompt, range(4)))
            publisher.say_late(range(4))
            publisher.publish(stored(prompt(4)))
            await follower.until_held(*map(prompt, range(5)))
            assert publisher.asked == [0]
            assert follower.feed.gaps == 0

    asyncio.run(run())


def test_another_run_of_the_engine(publisher):
    async def run():
        async with following(publisher) as follower:
            for seed in range(4):
                publisher.publish(stored(prompt(seed)))
            await follower.until(lambda: follower.names.num_held == 16)
            publisher.restart()
            publisher.publish(stored(prompt(8)))
            await follower.until_held(prompt(8))
            assert follower.feed.gaps == 0

    asyncio.run(run())


def test_a_message_that_cannot_be_read(publisher):
    async def run():
        async with following(publisher) as follower:
            publisher.publish(stored(prompt(1)))
            await follower.until_held(prompt(1))
            publisher.publish({"type": "BlockStored", "block_hashes": "what"})
            await follower.until_held()
            publisher.publish(stored(prompt(2)))
            await follower.until_held(prompt(2))

    asyncio.run(run())


def test_long_replays_come_in_parts():
    """A ROUTER drops what its queue has no room for, so one question may not bring all."""

    async def run():
        publisher = KvPublisher(kept=20_000)
        try:
            prompts = [prompt(seed, blocks=1) for seed in range(2500)]
            for one in prompts:
                publisher.publish(stored(one), lose=True)
            async with following(publisher, silence_s=2.0) as follower:
                await follower.until(lambda: follower.names.num_held == len(prompts))
                assert follower.feed.gaps == 0
        finally:
            publisher.close()

    asyncio.run(run())
