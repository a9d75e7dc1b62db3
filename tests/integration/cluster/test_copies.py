"""Blocks that one real instance gets from another, because a dispatcher wants them there."""

import asyncio
import os

import pytest
import zmq

from inlay import kernels
from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.decision import Copy
from inlay.cluster.dispatcher import Dispatcher, _begin
from inlay.cluster.instances import Instances
from inlay.cluster.policies import make_policy
from inlay.core.clock import SystemClock
from inlay.core.instance_socket import connect_instance
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from tests.support.instances import RunningInstance

CONFIG = {
    "threads": 1,
    "max_context_tokens": 1024,
    "cache": {"pages": 200},
    "device": "cpu",
    "exchange": "127.0.0.1:0",
}
PROMPT = [(7 * n) % 250 + 1 for n in range(640)]


@pytest.fixture(scope="module")
def running():
    instances = [RunningInstance(CONFIG, name=name) for name in ("a", "b")]
    try:
        yield [instance.wait_ready() for instance in instances]
    finally:
        for instance in instances:
            instance.stop()


def request(number, token_ids):
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    return GenerateRequest(
        request_id=f"r{number}",
        prompt=pack_token_ids(token_ids),
        params=params,
        arrival_s=SystemClock().now(),
    )


def dispatched(running, scenario):
    """Run a scenario with a dispatcher that takes instances in turn."""

    async def run():
        context, clock = zmq.Context(), SystemClock()
        chooser = Chooser(make_policy("round_robin", {}, 0))
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
            Member(name=name, role="both", address=one.address, run=1, state="ready")
            for name, one in zip("ab", running, strict=True)
        )
        instances.follow(Roster(number=1, members=members))
        try:
            while sum(one.takes_requests for one in instances) < 2:
                await asyncio.wait_for(asyncio.sleep(0.01), 10)
            return await asyncio.wait_for(scenario(dispatcher), 30)
        finally:
            dispatcher.close()
            context.destroy(linger=0)

    return asyncio.run(run())


def went_to(dispatcher):
    """The slot of the latest request."""
    name = next(dispatcher.chooser.log.describe(0.0))["decode"]
    return next(one.slot for one in dispatcher.instances if one.name == name)


async def answer(dispatcher, message):
    outputs = [output async for output in dispatcher.generate(message)]
    tokens = [t for output in outputs for delta in output.choices for t in delta.token_ids]
    return tokens, outputs[0].cached_tokens


def begun(dispatcher, message):
    """A request whose blocks have names, and which has gone nowhere yet."""
    live = _begin(message)
    dispatcher._naming.name(live)
    return live


def test_copied_blocks_are_used_there(running):
    async def scenario(dispatcher):
        first = await answer(dispatcher, request(1, PROMPT))
        source = went_to(dispatcher)
        (target,) = {one.slot for one in dispatcher.instances} - {source}
        live = begun(dispatcher, request(2, PROMPT))
        await dispatcher.copies.run(Copy(source, target, 0, 39), live, 16)
        assert dispatcher.copies.copied_blocks == 39
        second = await answer(dispatcher, request(3, PROMPT))
        assert went_to(dispatcher) == target
        return first, second

    (first, cached), (second, cached_there) = dispatched(running, scenario)
    assert first == second
    assert (cached, cached_there) == (0, 624)


def test_a_holder_that_is_gone_is_no_loss(running):
    fresh = [token + 1 for token in PROMPT]

    async def scenario(dispatcher):
        first, _ = await answer(dispatcher, request(1, fresh))
        source = went_to(dispatcher)
        (target,) = {one.slot for one in dispatcher.instances} - {source}
        live = begun(dispatcher, request(2, fresh))
        holder = dispatcher.instances.at(source)
        copying = asyncio.ensure_future(
            dispatcher.copies.run(Copy(source, target, 0, 39), live, 16)
        )
        await asyncio.sleep(0)
        holder.lost("the test says so")
        await copying
        second, _ = await answer(dispatcher, request(3, fresh))
        return first, second

    first, second = dispatched(running, scenario)
    assert first == second
    for one in running:
        assert one.process.poll() is None
        os.kill(one.process.pid, 0)
