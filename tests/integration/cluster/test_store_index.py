"""Blocks that only the store has, as a dispatcher counts on them."""

import asyncio
import os
import time

import pytest
import zmq

from inlay import kernels
from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.dispatcher import Dispatcher
from inlay.cluster.instances import Instances
from inlay.cluster.policies import make_policy
from inlay.cluster.store_index import StoreIndex
from inlay.core.clock import SystemClock
from inlay.core.instance_socket import connect_instance
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.store.key_feed import KeyFeed
from tests.support.directories import free_port
from tests.support.instances import RunningInstance
from tests.support.store import StoreProcess, close_all

PROMPT = [(7 * n) % 250 + 1 for n in range(400)]
BLOCKS = 24  # of 16 tokens, without the one of the last token


@pytest.fixture
def store(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    running = []

    def start(*arguments, says):
        process = StoreProcess(tmp_path, *arguments)
        running.append(process)
        process.wait_for(says)
        return process

    def master():
        return start("master", "--listen", address, "--admin", "none", says="master at")

    try:
        first = master()
        # A node follows no master older than one that a node of its name has followed.
        name = f"index-{os.getpid()}"
        node = ("node", "--master", address, "--name", name, "--memory", "64MiB")
        start(*node, says="objects found")
        yield address, first, master
    finally:
        close_all(running)


def request(number):
    return GenerateRequest(
        request_id=f"r{number}",
        prompt=pack_token_ids(PROMPT),
        params=SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
        arrival_s=SystemClock().now(),
    )


async def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


async def ask(dispatcher, number):
    """The first output, which has the counts, and the entry in the log of decisions."""
    outputs = [output async for output in dispatcher.generate(request(number))]
    entry = next(dispatcher.chooser.log.describe(SystemClock().now()))
    return outputs[0], entry


def test_a_prefix_that_only_the_store_has(store):
    address, master, restart = store
    config = {
        "threads": 1,
        "max_context_tokens": 1024,
        "cache": {"pages": 100, "store": address},
        "device": "cpu",
    }
    running = [RunningInstance(config, name=name) for name in "ab"]

    async def scenario(dispatcher, stored):
        nothing, entry = await ask(dispatcher, 0)
        assert nothing.cached_tokens == 0 and entry["store_blocks"] == 0
        await until(lambda: len(stored) >= BLOCKS)
        await dispatcher.reset_prefix_cache()
        slots = [one.slot for one in dispatcher.instances]
        index = dispatcher.chooser.index
        await until(lambda: not any(index.num_blocks(slot) for slot in slots))
        await asyncio.sleep(0.1)
        index.match(b"", SystemClock().now() + 60)  # what was expected is over
        loaded, entry = await ask(dispatcher, 1)
        assert entry["store_blocks"] >= BLOCKS
        assert entry["loaded_blocks"] == entry["reused_blocks"] == BLOCKS
        assert loaded.cached_tokens == BLOCKS * 16
        assert loaded.tier_tokens.get("store") == BLOCKS * 16
        # Another master knows what the node tells it; until then there is nothing.
        known = len(stored)
        master.kill()
        await until(lambda: len(stored) == 0)
        restart()
        await until(lambda: len(stored) == known)

    async def run():
        context, clock, stored = zmq.Context(), SystemClock(), StoreIndex()
        feed = KeyFeed(address, stored)
        chooser = Chooser(make_policy("kv_centric"), store=stored)
        instances = Instances(
            chooser,
            lambda address: connect_instance(context, address, ""),
            secret=b"",
            name="test",
            clock=clock,
        )
        dispatcher = Dispatcher(
            instances, chooser, hash_chain=kernels.block_hash_chain, secret=b"", clock=clock
        )
        members = tuple(
            Member(name=name, role="both", address=one.wait_ready().address, run=1, state="ready")
            for name, one in zip("ab", running, strict=True)
        )
        instances.follow(Roster(number=1, members=members))
        try:
            await until(lambda: sum(one.takes_requests for one in instances) == 2)
            await asyncio.wait_for(scenario(dispatcher, stored), 60)
        finally:
            feed.close()
            dispatcher.close()
            context.destroy(linger=0)

    try:
        asyncio.run(run())
    finally:
        for instance in running:
            instance.stop()
