"""A real instance whose engine stands still while its sockets answer."""

import asyncio
import time

import pytest
import zmq

from inlay import kernels
from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.dispatcher import Dispatcher
from inlay.cluster.instances import Instances
from inlay.cluster.policies import make_policy
from inlay.cluster.stalls import StallWatch
from inlay.core.clock import SystemClock
from inlay.core.instance_socket import connect_instance
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from tests.support.instances import RunningInstance
from tests.support.pause import StoppedThread, pause

CONFIG = {"threads": 1, "max_context_tokens": 4096, "cache": {"pages": 300}, "device": "cpu"}
TOKENS, ENDLESS = 200, 4000
STALL_S = 4.0


def request(name, max_tokens):
    return GenerateRequest(
        request_id=name,
        prompt=pack_token_ids([5, 6, 7]),
        params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        arrival_s=SystemClock().now(),
    )


def token_ids(outputs):
    return [token for output in outputs for one in output.choices for token in one.token_ids]


async def until(condition, timeout_s=20.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["thread", "process"])
def test_requests_go_on_and_the_instance_is_told_of(how, tmp_path):
    listen = f"ipc://{tmp_path}"  # as in a deployment
    running = {name: RunningInstance(CONFIG, name=name, listen=listen) for name in "ab"}
    stalled, held = [], []

    async def scenario(dispatcher, instances):
        whole = [output async for output in dispatcher.generate(request("whole", TOKENS))]
        seen = []
        generating = dispatcher.generate(request("cut", ENDLESS))
        seen.append(await anext(generating))
        (name,) = [one.name for one in instances if one.attempts]
        pid = running[name].process.pid
        if how == "process":
            pause(pid)
        else:
            try:
                held.append(StoppedThread(pid))
            except OSError as error:
                pytest.skip(f"threads of other processes cannot be stopped here: {error}")
        while len(token_ids(seen)) < TOKENS:
            seen.append(await anext(generating))
        assert token_ids(seen)[:TOKENS] == token_ids(whole)
        await until(lambda: stalled)
        assert stalled[0] == name
        assert not instances.find(name).takes_requests
        await generating.aclose()

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
        watch = StallWatch(
            instances,
            chooser,
            stall_s=STALL_S,
            tell=lambda instance, silent_s: stalled.append(instance.name),
        )
        members = tuple(
            Member(name=name, role="both", address=one.wait_ready().address, run=1, state="ready")
            for name, one in running.items()
        )
        instances.follow(Roster(number=1, members=members))
        watching = asyncio.ensure_future(watch.run())
        try:
            await until(lambda: sum(one.takes_requests for one in instances) == 2)
            await asyncio.wait_for(scenario(dispatcher, instances), 60)
        finally:
            watching.cancel()
            dispatcher.close()
            context.destroy(linger=0)

    try:
        asyncio.run(run())
    finally:
        for thread in held:
            thread.close()
        for instance in running.values():
            instance.process.kill()
            instance.stop()
