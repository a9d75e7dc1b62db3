"""Several machines at one switch, each by one link of a chosen rate in both directions.

    with ShapedStar(5, 800) as star:
        peer = star.start(0, [sys.executable, "-m", "...", star.address(0)])

Each machine is a network namespace; a bridge in one more is the switch. Both ends of a link have a
token bucket. Namespaces live as long as the processes that hold them, which end with this one.
"""

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.netns import BURST_BYTES, COMMAND_S, ENTER_SYS, HOLD, LATENCY, NetnsError
from tests.support.netns import netns_problem as links_problem

BRIDGE = "switch"


@functools.cache
def star_problem() -> str | None:
    """Why there is no such star here, or None."""
    if problem := links_problem():
        return problem
    try:
        ShapedStar(1, 100).close()
        return None
    except NetnsError as error:
        return str(error)


class ShapedStar:
    """See the module. Use it in a `with` block; needs root.

    Args:
        num_machines: 1 to 200.
        mbit: of each link, 10^6 bits per second with all headers.

    Raises:
        NetnsError: namespaces, bridges or token buckets are not allowed here or not known.
    """

    def __init__(self, num_machines: int, mbit: float) -> None:
        self._holders: list[subprocess.Popen[str]] = []
        self._started: list[subprocess.Popen[Any]] = []
        try:
            for _ in range(num_machines + 1):
                self._holders.append(_namespace())
            self._switch = self._holders[-1]
            self._run(self._switch, f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up")
            rate = f"tbf rate {round(mbit * 1000)}kbit burst {BURST_BYTES} {LATENCY}"
            for number in range(num_machines):
                machine = self._holders[number]
                self._run(
                    self._switch,
                    f"ip link add port{number} type veth peer name card netns {machine.pid}"
                    f" && ip link set port{number} master {BRIDGE} up"
                    f" && tc qdisc add dev port{number} root {rate}",
                )
                self._run(
                    machine,
                    f"ip addr add {self.address(number)}/24 dev card && ip link set card up"
                    f" && tc qdisc add dev card root {rate}",
                )
        except BaseException:
            self.close()
            raise

    def address(self, number: int) -> str:
        """Of a machine."""
        return f"10.78.0.{number + 1}"

    def start(self, number: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a machine; `options` are Popen's. It is killed when the block ends."""
        enter = ["nsenter", "--net", "--target", str(self._holders[number].pid)]
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *enter]
            + ["unshare", "--mount", "sh", "-c", ENTER_SYS, "sh", *command],
            **options,
        )
        self._started.append(process)
        return process

    def bytes_sent(self, number: int) -> int:
        """What has left the card of a machine, headers included."""
        text = Path(f"/proc/{self._holders[number].pid}/net/dev").read_text()
        for line in text.splitlines():
            if line.strip().startswith("card:"):
                return int(line.partition(":")[2].split()[8])
        raise NetnsError(f"machine {number} has no card")

    def cut(self, number: int) -> None:
        """Take a machine's cable out."""
        self._run(self._switch, f"ip link set port{number} down")

    def close(self) -> None:
        """End what was started, and the namespaces."""
        for process in (*self._started, *self._holders):
            process.kill()
        for process in (*self._started, *self._holders):
            process.wait(COMMAND_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _run(self, holder: "subprocess.Popen[str]", command: str) -> None:
        done = subprocess.run(
            ["nsenter", "--net", "--target", str(holder.pid), "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise NetnsError(f"{command}: {done.stderr.strip()}")

    def __enter__(self) -> "ShapedStar":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _namespace() -> "subprocess.Popen[str]":
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stderr is not None
    if holder.stdout.readline() != "ready\n":
        raise NetnsError(f"no network namespace: {holder.stderr.read().strip()}")
    return holder
