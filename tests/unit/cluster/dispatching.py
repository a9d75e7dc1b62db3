"""A dispatcher over instances that stand in, and a client that reads from it."""

import asyncio
from typing import Any

import zmq

from inlay import kernels
from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.decision import Decision, Refusal
from inlay.cluster.dispatcher import Dispatcher, DispatcherConfig
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.policies import make_policy
from inlay.core.clock import FakeClock
from inlay.core.messages import GenerateRequest, RequestOutput, SamplingParams
from inlay.core.token_ids import pack_token_ids
from tests.unit.cluster.instance_stand_in import SECRET, InstanceStandIn, next_token


class Refusing:
    """Admission that takes nobody."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        self._refusal = Refusal(reason, retry_after_s)

    def choose(self, request: Any, matches_S: Any, state: Any, now_s: float) -> Decision:
        return Decision(policy="round_robin", refusal=self._refusal)


PROMPT = list(range(40))


class Cluster:
    """A dispatcher and its instances."""

    def __init__(self, **config: Any) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clock = FakeClock(100.0)
        self.chooser = Chooser(make_policy("round_robin"))
        self.refused: list[tuple[str, str]] = []
        self.instances = Instances(
            self.chooser,
            self._connect,
            secret=SECRET,
            name="d0",
            clock=self.clock,
            refused=lambda one: self.refused.append((one.name, one.difference)),
        )
        self.drained: list[str] = []
        self.dispatcher = Dispatcher(
            self.instances,
            self.chooser,
            hash_chain=kernels.block_hash_chain,
            secret=SECRET,
            clock=self.clock,
            config=DispatcherConfig(**{"instance_wait_s": 10.0, **config}),
            drained=self._drained,
        )
        self.stand_ins: dict[str, InstanceStandIn] = {}
        self.states: dict[str, str] = {}

    def _connect(self, address: str) -> "zmq.Socket[bytes]":
        socket = self.context.socket(zmq.DEALER)
        socket.connect(address)
        return socket

    def _drained(self, instance: Instance) -> None:
        self.drained.append(instance.name)

    def follow(self) -> None:
        members = tuple(
            Member(
                name=name,
                role=one.info.role,
                address=one.address,
                run=1,
                state=self.states.get(name, "ready"),  # type: ignore[arg-type]
            )
            for name, one in self.stand_ins.items()
        )
        self.instances.follow(Roster(number=1, members=members))

    async def add(self, name: str, **fields: Any) -> InstanceStandIn:
        """An instance joins; returns when the dispatcher knows it and its load."""
        one = self.stand_ins[name] = InstanceStandIn(self.context, name, **fields)
        self.follow()
        while (found := self.instances.find(name)) is None or found.silent_s is None:
            await asyncio.sleep(0)
        return one

    def close(self) -> None:
        self.dispatcher.close()
        for one in self.stand_ins.values():
            one.close()
        self.context.term()


def request(request_id: str = "r", *, n: int = 1, **fields: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 6, "seed": 5, "n": n, **fields.pop("params", {})})
    return GenerateRequest(
        **{
            "request_id": request_id,
            "prompt": pack_token_ids(PROMPT),
            "params": params,
            "arrival_s": 99.0,
        }
        | fields
    )


def expected(index: int = 0, seed: int = 5, count: int = 6) -> str:
    return "".join(f"{next_token(PROMPT, seed, index, i)} " for i in range(count))


class Reading:
    """A client that reads a request to its end."""

    def __init__(self, cluster: Cluster, message: GenerateRequest) -> None:
        self.outputs: list[RequestOutput] = []
        self.news = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(cluster, message))

    async def _read(self, cluster: Cluster, message: GenerateRequest) -> None:
        async for output in cluster.dispatcher.generate(message):
            self.outputs.append(output)
            self.news.set()

    async def until(self, count: int) -> None:
        while len(self.outputs) < count:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)

    async def end(self) -> None:
        await asyncio.wait_for(self.task, 10)

    def text(self, index: int = 0) -> str:
        deltas = [delta for output in self.outputs for delta in output.choices]
        return "".join(delta.text for delta in deltas if delta.index == index)


def wire_id(instance: InstanceStandIn) -> str:
    return next(iter(instance.requests))
