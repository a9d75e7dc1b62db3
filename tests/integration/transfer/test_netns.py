"""The links that other tests stand on: rates, cuts, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import Link, NetnsError, ShapedLinks

pytestmark = pytest.mark.netns

# Receives on each address given, and says how much has come for each line it reads.
RECEIVE = """
import socket, sys, threading, time, json
counts = {}
def serve(address, listener):
    connection, _ = listener.accept()
    room = bytearray(1 << 20)
    while n := connection.recv_into(room):
        counts[address] = counts.get(address, 0) + n
for address in sys.argv[1:]:
    listener = socket.create_server((address, 7001))
    threading.Thread(target=serve, args=(address, listener), daemon=True).start()
    print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(counts), flush=True)
"""
SEND = """
import socket, sys, threading
def send(address):
    connection = socket.create_connection((address, 7001))
    while True:
        connection.sendall(bytes(1 << 20))
for address in sys.argv[1:]:
    threading.Thread(target=send, args=(address,)).start()
"""


class Stream:
    """Bytes from left to right over some links, as fast as they go."""

    def __init__(self, links: ShapedLinks, chosen: list[Link]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        addresses = [link.right for link in chosen]
        self._receiver = links.start("right", [sys.executable, "-c", RECEIVE, *addresses], **pipes)
        assert [self._line() for _ in chosen] == ["ready"] * len(chosen)
        links.start("left", [sys.executable, "-c", SEND, *addresses])

    def _line(self) -> str:
        line: str = self._receiver.stdout.readline()
        return line.strip()

    def received(self) -> dict[str, int]:
        """Bytes so far, by address."""
        self._receiver.stdin.write("\n")
        self._receiver.stdin.flush()
        counts: dict[str, int] = json.loads(self._line())
        return counts

    def rates(self, seconds: float) -> dict[str, float]:
        """10^6 bits per second, by address."""
        before, start = self.received(), time.monotonic()
        time.sleep(seconds)
        after, took = self.received(), time.monotonic() - start
        return {key: (after[key] - before.get(key, 0)) * 8e-6 / took for key in after}

    def wait_for_bytes(self, timeout_s: float = 10) -> None:
        before, end = self.received(), time.monotonic() + timeout_s
        while self.received() == before:
            assert time.monotonic() < end, "nothing comes"
            time.sleep(0.02)

    def wait_for_silence(self, timeout_s: float = 10) -> None:
        end = time.monotonic() + timeout_s
        while any(self.rates(0.1).values()):
            assert time.monotonic() < end, "bytes still come"


@pytest.fixture
def one_link() -> Iterator[ShapedLinks]:
    with ShapedLinks([400]) as links:
        yield links


def test_four_links_have_their_rates_at_the_same_time() -> None:
    mbits = [1600, 800, 533, 400]
    with ShapedLinks(mbits) as links:
        stream = Stream(links, list(links))
        stream.wait_for_bytes()
        time.sleep(0.3)  # the buckets are full at first
        sent = [link.bytes_sent("left") for link in links]
        rates = stream.rates(1.0)
        for link, mbit, before in zip(links, mbits, sent, strict=True):
            # Headers take 3.3 %; what is missing below that is this machine's other work.
            assert 0.7 * mbit < rates[link.right] < 1.02 * mbit, rates
            assert link.bytes_sent("left") - before > rates[link.right] / 8e-6 * 0.95


@pytest.mark.parametrize("silently", [False, True])
def test_a_cut_link_carries_nothing_and_comes_back(one_link: ShapedLinks, silently: bool) -> None:
    link = one_link[0]
    stream = Stream(one_link, [link])
    stream.wait_for_bytes()
    link.cut(silently=silently)
    stream.wait_for_silence()
    assert ("DOWN" in one_link.run("right", "ip -br link")) == (not silently)
    link.restore()
    stream.wait_for_bytes()


def test_rates_change(one_link: ShapedLinks) -> None:
    stream = Stream(one_link, list(one_link))
    stream.wait_for_bytes()
    one_link[0].set_rate(100)
    time.sleep(0.3)
    assert 50 < stream.rates(0.5)[one_link[0].right] < 105
    one_link[0].restore()
    time.sleep(0.3)
    assert 200 < stream.rates(0.5)[one_link[0].right] < 420


def test_the_sides_see_only_their_own_cards(one_link: ShapedLinks) -> None:
    inside = one_link.start("left", ["ls", "/sys/class/net"], stdout=subprocess.PIPE, text=True)
    assert inside.communicate()[0].split() == ["left0", "lo"]
    assert "left0" not in os.listdir("/sys/class/net")


def test_a_wrong_command_says_what_failed(one_link: ShapedLinks) -> None:
    with pytest.raises(NetnsError, match=r"ip link show nothere: Device .* does not exist"):
        one_link.run("left", "ip link show nothere")


def test_nothing_is_left_of_a_test_that_is_killed() -> None:
    code = (
        "import subprocess, time\n"
        "from tests.support.netns import ShapedLinks\n"
        "links = ShapedLinks([100])\n"
        "inside = links.start('left', ['sleep', '1000'])\n"
        "print(inside.pid, *(h.pid for h in links._holders.values()), flush=True)\n"
        "time.sleep(1000)\n"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert killed.stdout is not None
    pids = [int(pid) for pid in killed.stdout.readline().split()]
    assert len(pids) == 3 and all(_lives(pid) for pid in pids)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    end = time.monotonic() + 10
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < end, f"still there of {pids}"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


KINDS = """
import json
from inlay.transfer import read_topology
nics = read_topology().nics
print(json.dumps({nic.name: [nic.kind, nic.usable] for nic in nics}))
"""


def test_cards_with_equal_indices_are_usable() -> None:
    with ShapedLinks([None]) as links:
        indices = [
            links.run(side, f"cat /proc/net/igmp | grep -w {name} | cut -f1").strip()
            for side, name in (("left", "left0"), ("right", "right0"))
        ]
        assert indices[0] == indices[1]  # else this test shows nothing
        links.run("left", "ip link add bridge0 type bridge && ip link set bridge0 up")
        shown = links.start(
            "left", [sys.executable, "-c", KINDS], stdout=subprocess.PIPE, text=True
        )
        kinds = json.loads(shown.stdout.readline())
    assert kinds["left0"] == ["veth", True]
    assert kinds["lo"] == ["loopback", False] and kinds["bridge0"] == ["virtual", False]
