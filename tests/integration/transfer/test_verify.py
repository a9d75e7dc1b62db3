"""Verified transfers: what is damaged on its way is found where it lands, and sent again."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from inlay.core.errors import ChecksumError, TransportUnavailableError
from inlay.transfer import Op, Ranges, RemoteSegment, Transfer, TransferEngine
from tests.integration.transfer.conftest import ROOT, Target
from tests.integration.transfer.relay import MARK
from tests.integration.transfer.target import SIZE, TOKEN, pattern

SIZES = [1, 4095, 65536, 262144, 262145, 1 << 20, 5_000_003]


class Relay:
    """The process in the middle."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.transfer.relay", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def damage(self, times: int) -> int:
        """Damages so many marks from now on; returns how many it has since the last call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{times}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def relay(target: Target) -> Iterator[Relay]:
    relay = Relay(target.address)
    yield relay
    relay.end()


@pytest.fixture
def tcp() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=["tcp"]) as engine:
        yield engine


def marked(size: int, *offsets: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    data = pattern(size, 3)
    for at in offsets:
        data[at : at + len(MARK)] = np.frombuffer(MARK, np.uint8)
    return data


def fill_sink(target: Target, offset: int) -> None:
    """Puts a mark into the target's memory."""
    target.tell(
        f"np.frombuffer(segments['sink'], np.uint8)[{offset}:{offset + len(MARK)}]"
        f".__setitem__(slice(None), list({MARK!r}))"
    )


def sink_bytes(target: Target, start: int, stop: int) -> bytes:
    return bytes(target.tell(f"list(memoryview(segments['sink'])[{start}:{stop}])"))


@pytest.mark.parametrize("size", SIZES)
def test_what_is_whole_lands(tcp: TransferEngine, target: Target, size: int) -> None:
    peer = tcp.connect(target.address)
    local = tcp.allocate(size + 9)
    view = np.frombuffer(local, np.uint8)
    tcp.read(local[5 : 5 + size], peer["source"][3 : 3 + size], verify=True)
    np.testing.assert_array_equal(view[5 : 5 + size], pattern(SIZE)[3 : 3 + size])
    assert not view[:5].any() and not view[5 + size :].any()
    tcp.write(local[5 : 5 + size], peer["sink"][7 : 7 + size], verify=True)
    back = tcp.allocate(size)
    tcp.read(back, peer["sink"][7 : 7 + size])
    np.testing.assert_array_equal(np.frombuffer(back, np.uint8), view[5 : 5 + size])


def test_ranges_and_both_directions_at_once(tcp: TransferEngine, target: Target) -> None:
    peer = tcp.connect(target.address)
    local = tcp.allocate(16 << 20)
    view = np.frombuffer(local, np.uint8)
    view[8 << 20 :] = pattern(8 << 20, 5)
    rng = np.random.default_rng(1)
    count, length = 3000, 2048
    far = rng.integers(0, SIZE - length, count)
    near = rng.permutation(4096)[:count] * length
    written = np.arange(1000) * 5000
    batch = tcp.submit(
        [
            Ranges(Op.READ, local, peer["source"], near, far, length),
            Ranges(Op.WRITE, local, peer["sink"], (8 << 20) + written, written, 5000),
        ],
        verify=True,
    )
    batch.wait()
    source = pattern(SIZE)
    for at, start in zip(near, far, strict=True):
        assert (view[at : at + length] == source[start : start + length]).all()
    back = tcp.allocate(5_000_000)
    tcp.read(back, peer["sink"][0:5_000_000], verify=True)
    np.testing.assert_array_equal(
        np.frombuffer(back, np.uint8), view[8 << 20 : (8 << 20) + 5_000_000]
    )


def remote_of(engine: TransferEngine, relay: Relay, name: str = "sink") -> RemoteSegment:
    return engine.connect(relay.address)[name]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("size", [4096, 3_000_000])
def test_a_damaged_write_is_sent_again(
    tcp: TransferEngine, target: Target, relay: Relay, size: int, times: int
) -> None:
    sink = remote_of(tcp, relay)
    data = marked(size, size // 2)
    relay.damage(times)
    tcp.write(tcp.register(data), sink[0:size], verify=True)
    assert relay.damage(0) == times
    expected = tcp.allocate(size)
    tcp.read(expected, tcp.connect(target.address)["sink"][0:size])
    np.testing.assert_array_equal(np.frombuffer(expected, np.uint8), data)


@pytest.mark.parametrize("times", [1, 3])
def test_a_damaged_read_is_sent_again(
    tcp: TransferEngine, target: Target, relay: Relay, times: int
) -> None:
    fill_sink(target, 1_000_000)
    local = tcp.allocate(2_000_000)
    relay.damage(times)
    tcp.read(local, remote_of(tcp, relay)[0:2_000_000], verify=True)
    assert relay.damage(0) == times
    assert bytes(memoryview(local)[1_000_000 : 1_000_000 + len(MARK)]) == MARK


def test_verified_bytes_go_over_tcp_where_others_go_by_themselves(
    engine: TransferEngine, target: Target, relay: Relay
) -> None:
    data = marked(1 << 20, 5000)
    relay.damage(1)
    engine.write(engine.register(data), remote_of(engine, relay)[0 : 1 << 20], verify=True)
    assert relay.damage(0) == 1
    assert sink_bytes(target, 5000, 5000 + len(MARK)) == MARK


def test_a_transport_that_does_not_verify_is_not_used(target: Target) -> None:
    with TransferEngine(token=TOKEN, transports=["shm"]) as shm:
        local = shm.allocate(4096)
        source = shm.connect(target.address)["source"][0:4096]
        with pytest.raises(TransportUnavailableError, match="verify=False"):
            shm.read(local, source, verify=True)
        shm.read(local, source)


def test_nobody_finds_it_unasked(tcp: TransferEngine, target: Target, relay: Relay) -> None:
    data = marked(4096, 100)
    relay.damage(1)
    tcp.write(tcp.register(data), remote_of(tcp, relay)[0:4096])
    assert relay.damage(0) == 1
    assert sink_bytes(target, 0, 4096) != data.tobytes()


@pytest.mark.parametrize("op", [Op.READ, Op.WRITE])
def test_what_stays_damaged_fails(
    tcp: TransferEngine, target: Target, relay: Relay, op: Op
) -> None:
    sink = remote_of(tcp, relay)
    local = tcp.register(marked(4096, 100))
    fill_sink(target, 100)
    relay.damage(1000)
    with pytest.raises(ChecksumError, match="damaged four times") as caught:
        (tcp.read if op == Op.READ else tcp.write)(local, sink[0:4096], verify=True)
    assert relay.damage(0) == 4
    assert (caught.value.segment, caught.value.peer) == ("sink", relay.address)
    # The peer and its lanes live on.
    tcp.write(local, sink[0:4096], verify=True)
    tcp.read(local, sink[0:4096], verify=True)


def test_the_other_transfers_of_a_batch_are_done(
    tcp: TransferEngine, target: Target, relay: Relay
) -> None:
    sink = remote_of(tcp, relay)
    data = marked(64 * 4096, 20 * 4096 + 7)
    local = tcp.register(data)
    relay.damage(1000)
    pieces = [slice(i * 4096, (i + 1) * 4096) for i in range(64)]
    batch = tcp.submit([Transfer(Op.WRITE, local[p], sink[p]) for p in pieces], verify=True)
    with pytest.raises(ChecksumError):
        batch.wait()
    states = [batch.status(i).state for i in range(64)]
    assert states == ["failed" if i == 20 else "done" for i in range(64)]
    assert isinstance(batch.status(20).error, ChecksumError)
    for i in (0, 19, 21, 63):
        assert sink_bytes(target, i * 4096, (i + 1) * 4096) == data[pieces[i]].tobytes()
