"""Which peer gets what, over real sockets inside one process."""

import msgspec
import pytest
import zmq

from inlay.core.clock import FakeClock
from inlay.core.errors import ContextLengthError, OverloadedError, RequestError
from inlay.core.instance_messages import FromInstance, KvTarget
from inlay.core.instance_peers import Peers
from inlay.core.instance_socket import new_socket
from inlay.core.messages import (
    EngineStats,
    GenerateRequest,
    OutputBatch,
    RequestOutput,
    RequestTimes,
    SamplingParams,
)
from inlay.core.token_ids import pack_token_ids


class Bench:
    """A worker's socket and any number of peers; what the engine was given is in `added`."""

    def __init__(self):
        self.context = zmq.Context()
        self.clock = FakeClock(1000.0)
        self.router = new_socket(self.context, zmq.ROUTER)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.bind("inproc://worker")
        self.peers = Peers(self.router, self.clock)
        self.added = []
        self.sockets = []

    def connect(self):
        """Another peer: its socket, and how the worker knows it."""
        socket = new_socket(self.context, zmq.DEALER)
        socket.connect("inproc://worker")
        self.sockets.append(socket)
        socket.send(b"hello")
        peer, data = self.receive()
        assert data == b"hello"
        return socket, peer

    def receive(self):
        assert self.router.poll(5000), "nothing came"
        return self.peers.receive()

    def admit(self, peer, request_id, **fields):
        message = GenerateRequest(
            request_id=request_id,
            prompt=pack_token_ids([1]),
            params=SamplingParams(),
            **({"arrival_s": 990.0} | fields),
        )
        self.peers.admit(peer, message, self.added.append)
        return self.added[-1]

    def close(self):
        for socket in [self.router, *self.sockets]:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.close()


def _read(socket):
    assert socket.poll(5000), "nothing came"
    return msgspec.msgpack.decode(socket.recv(), type=FromInstance)


def _output(request, **fields):
    return RequestOutput(request_id=request.request_id, **fields)


def test_equal_ids_of_two_peers(bench):
    (a, peer_a), (b, peer_b) = bench.connect(), bench.connect()
    first, second = bench.admit(peer_a, "x:1"), bench.admit(peer_b, "x:1")
    assert first.request_id != second.request_id
    third = bench.admit(peer_a, "y")
    bench.peers.deliver(
        [_output(first, prompt_tokens=1), _output(second, prompt_tokens=2), _output(third)]
    )
    assert _read(a) == OutputBatch(
        (RequestOutput(request_id="x:1", prompt_tokens=1), RequestOutput(request_id="y"))
    )
    assert _read(b) == OutputBatch((RequestOutput(request_id="x:1", prompt_tokens=2),))
    assert not a.poll(0)
    assert not b.poll(0)


def test_an_id_is_free_again_after_its_last_output(bench):
    socket, peer = bench.connect()
    request = bench.admit(peer, "x")
    with pytest.raises(RequestError, match="request id 'x' is in use"):
        bench.admit(peer, "x")
    bench.peers.deliver([_output(request, finished=True)])
    bench.admit(peer, "x")
    assert _read(socket).outputs[0].request_id == "x"


def test_what_the_engine_refuses_is_no_request(bench):
    socket, peer = bench.connect()

    def refuse(request):
        raise OverloadedError("full")

    message = GenerateRequest(
        request_id="x", prompt=pack_token_ids([1]), params=SamplingParams(), arrival_s=0.0
    )
    with pytest.raises(OverloadedError) as caught:
        bench.peers.admit(peer, message, refuse)
    bench.peers.refuse(peer, "x", caught.value)
    (output,) = _read(socket).outputs
    assert (output.request_id, output.finished, output.error_code) == ("x", True, "overloaded")
    bench.admit(peer, "x")


@pytest.mark.parametrize(("age_s", "arrival_s"), [(None, 990.0), (2.0, 998.0), (0.0, 1000.0)])
def test_times_are_those_of_the_peers_clock(bench, age_s, arrival_s):
    socket, peer = bench.connect()
    request = bench.admit(peer, "x", age_s=age_s)
    assert request.arrival_s == arrival_s
    times = RequestTimes(
        arrival_s=arrival_s, scheduled_s=arrival_s + 1, first_token_s=arrival_s + 2,
        finished_s=arrival_s + 3,
    )  # fmt: skip
    bench.peers.deliver([_output(request, finished=True, times=times)])
    assert _read(socket).outputs[0].times == RequestTimes(
        arrival_s=990.0, scheduled_s=991.0, first_token_s=992.0, finished_s=993.0
    )


def test_a_target_goes_to_the_peer_whose_request_it_is(bench):
    (a, _), (b, peer_b) = bench.connect(), bench.connect()
    request = bench.admit(peer_b, "x")
    target = KvTarget(
        request_id=request.request_id, address="h:1", segment="s", grant=1, first_block=0,
        pages=b"", num_tokens=5, ticket=request.request_id,
    )  # fmt: skip
    bench.peers.deliver_kv(target)
    assert _read(b) == msgspec.structs.replace(target, request_id="x")
    assert not a.poll(0)


def test_a_peer_that_is_gone_leaves_orphans(bench):
    (a, peer_a), (b, peer_b) = bench.connect(), bench.connect()
    peer_a.subscribed = peer_b.subscribed = True
    lost = {bench.admit(peer_a, name).request_id for name in "xy"}
    bench.admit(peer_b, "x")
    a.close(linger=0)
    orphans = []
    for _ in range(1000):  # its end is noticed by another thread
        bench.peers.send(bench.peers.subscribers, EngineStats())
        orphans += bench.peers.take_orphans()
        if orphans:
            break
        b.poll(10)
    assert set(orphans) == lost
    assert bench.peers.take_orphans() == []
    assert bench.peers.subscribers == bench.peers.everyone == [peer_b]
    bench.peers.deliver([_output(bench.added[0], finished=True)])  # nobody wants it any more
    assert isinstance(_read(b), EngineStats)


def test_messages_of_several_frames_are_ignored(bench):
    socket, peer = bench.connect()
    socket.send_multipart([b"one", b"two"])
    socket.send(b"good")
    assert bench.receive() == (peer, b"good")
    assert bench.peers.receive() is None


def test_the_front_hears_without_having_spoken(bench, tmp_path):
    address = f"ipc://{tmp_path}/engine"
    front = new_socket(bench.context, zmq.DEALER)
    bench.sockets.append(front)
    front.bind(address)
    peer = bench.peers.connect_front(address)
    bench.peers.send([peer], EngineStats(running=3))
    assert _read(front) == EngineStats(running=3)
    front.send(b"hello")
    assert bench.receive() == (peer, b"hello")


def test_what_cannot_be_taken_is_answered(bench):
    """A request that the engine refuses, one on which it fails, and one that cannot be read."""
    socket, peer = bench.connect()

    def failing(error):
        def add(message):
            raise error

        message = GenerateRequest(
            request_id="x", prompt=pack_token_ids([1]), params=SamplingParams(), arrival_s=990.0
        )
        bench.peers.take(peer, message, add)
        (output,) = _read(socket).outputs
        assert output.request_id == "x" and output.finished
        return output

    assert "too long" in failing(ContextLengthError("too long", "prompt")).error
    assert "cannot be added: KeyError" in failing(KeyError("y")).error
    data = msgspec.msgpack.encode(["GenerateRequest", "z", 5])
    bench.peers.refuse_unread(peer, data, ValueError("expected bytes"))
    (output,) = _read(socket).outputs
    assert output.request_id == "z" and "wrong type: expected bytes" in output.error
    bench.peers.refuse_unread(peer, b"\xc1", ValueError("no message"))
    assert not socket.poll(0)
