"""Several network cards on one machine: two network namespaces, joined by links of chosen rates.

    with ShapedLinks([1600, 800, 533, 400]) as links:
        target = links.start("right", [sys.executable, "-m", "...", links[0].right])
        links[2].cut()

Each link is a veth pair, shaped at both ends by a token bucket. A namespace lives as long as the
process that holds it, which ends with this one however it ends: nothing is left behind. What is
started inside sees the cards of its side alone, in /sys too.
"""

import functools
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

Side = Literal["left", "right"]

COMMAND_S = 10
PROGRAMS = ("unshare", "nsenter", "setpriv", "mount", "ip", "tc")
HOLD = "mount -t sysfs sysfs /sys && ip link set lo up && echo ready && read -r _"
ENTER_SYS = 'mount -t sysfs sysfs /sys && exec "$@"'
# What is left of the burst lets an acknowledgement pass at once, and after 200 s one packet more.
# With 1 kbit/s that took 12 s at most, but 6 where small packets had gone before: a sign of life.
NOTHING = "rate 64bit burst 1600b"
BURST_BYTES = 1 << 20
LATENCY = "latency 20ms"


class NetnsError(RuntimeError):
    """A command that makes or changes links failed; the message has it and what it printed."""


@functools.cache
def netns_problem() -> str | None:
    """Why there are no shaped links here, or None."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"no {', '.join(missing)} (Debian: iproute2, util-linux)"
    try:
        ShapedLinks([100]).close()
        return None
    except NetnsError as error:
        return str(error)


@dataclass
class Link:
    """One pair of network cards.

    Attributes:
        left, right: the addresses of its ends.
        left_name, right_name: the names of its cards.
        mbit: its rate in each direction, 10^6 bits per second with all headers; None: unshaped.
    """

    links: "ShapedLinks"
    left: str
    right: str
    left_name: str
    right_name: str
    mbit: float | None
    _changed: bool = field(default=False, init=False)  # its rate, from its own

    def cut(self, *, silently: bool = False) -> None:
        """Let nothing pass any more.

        Both cards go down, which the system tells at once to who listens; or `silently` nobody is
        told, and packets wait in a queue of 4 MB.
        """
        if silently:
            self._changed = True
            self._shape("replace", NOTHING + " limit 4mb")
        else:
            self._set("down")

    def restore(self) -> None:
        """Let pass what did before either cut; packets that waited silently go first.

        Cards are up at once, but that they work (`operstate`) is told up to a second later. What
        is sent before a card works is lost, and if that was a question for an Ethernet address,
        the system asks again only after a second: so nothing is sent here after cards were down.
        """
        self._set("up")
        if self._changed:
            self.set_rate(self.mbit)

    def set_rate(self, mbit: float | None) -> None:
        """Change the rate for now; `restore` brings the link's own back."""
        self._changed = mbit != self.mbit
        if mbit is None:
            for side, name in self._ends:
                self.links.run(side, f"tc qdisc del dev {name} root", check=False)
            return
        burst = f"burst {self.links.burst_bytes}"
        self._shape("replace", f"rate {round(mbit * 1000)}kbit {burst} {LATENCY}")
        # Something to send makes the queue look at its new rate; before, it slept by the old one.
        for side, other in (("left", self.right), ("right", self.left)):
            self.links.run(side, f"bash -c 'echo > /dev/udp/{other}/9'", check=False)

    def bytes_sent(self, side: Side) -> int:
        """What has left the card of this side, headers included."""
        name = self.left_name if side == "left" else self.right_name
        for line in self.links.file(side, "net/dev").read_text().splitlines():
            if line.strip().startswith(f"{name}:"):
                return int(line.partition(":")[2].split()[8])
        raise NetnsError(f"no card {name} in the {side} namespace")

    @property
    def _ends(self) -> tuple[tuple[Side, str], tuple[Side, str]]:
        return ("left", self.left_name), ("right", self.right_name)

    def _set(self, state: str) -> None:
        for side, name in self._ends:
            self.links.run(side, f"ip link set {name} {state}")

    def _shape(self, verb: str, rate: str) -> None:
        for side, name in self._ends:
            self.links.run(side, f"tc qdisc {verb} dev {name} root tbf {rate}")


class ShapedLinks(Sequence[Link]):
    """The two namespaces and their links. Use it in a `with` block; needs root.

    Args:
        mbits: the rate of each link; None: as fast as it goes.
        burst_bytes: what a link that rested sends at once.

    Raises:
        NetnsError: namespaces, veth pairs or token buckets are not allowed here or not known.
    """

    def __init__(self, mbits: Sequence[float | None], *, burst_bytes: int = BURST_BYTES) -> None:
        self.burst_bytes = burst_bytes
        self._links: list[Link] = []
        self._holders: dict[Side, subprocess.Popen[str]] = {}
        self._started: list[subprocess.Popen[Any]] = []
        try:
            self._make(mbits)
        except BaseException:
            self.close()
            raise

    def _make(self, mbits: Sequence[float | None]) -> None:
        for side in ("left", "right"):
            holder = subprocess.Popen(
                ["unshare", "--net", "--mount", "sh", "-c", HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._holders[side] = holder
            assert holder.stdout is not None and holder.stderr is not None
            if holder.stdout.readline() != "ready\n":
                raise NetnsError(f"no network namespace: {holder.stderr.read().strip()}")
        for index, mbit in enumerate(mbits):
            link = Link(
                self, f"10.77.{index}.1", f"10.77.{index}.2", f"left{index}", f"right{index}", mbit
            )
            self.run(
                "left",
                f"ip link add {link.left_name} type veth "
                f"peer name {link.right_name} netns {self._holders['right'].pid}",
            )
            for side, name, address in (
                ("left", link.left_name, link.left),
                ("right", link.right_name, link.right),
            ):
                self.run(side, f"ip addr add {address}/24 dev {name}")
                self.run(side, f"ip link set {name} up")
            if mbit is not None:
                link.set_rate(mbit)
            self._links.append(link)

    def start(self, side: Side, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process inside; `options` are Popen's.

        It is killed when the block, or the thread that called this, ends.
        """
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._enter(side)]
            + ["unshare", "--mount", "sh", "-c", ENTER_SYS, "sh", *command],
            **options,
        )
        self._started.append(process)
        return process

    def run(self, side: Side, command: str, *, check: bool = True) -> str:
        """Run a shell command inside and return what it printed.

        Raises:
            NetnsError: its status is not 0, unless `check` is false.
        """
        done = subprocess.run(
            [*self._enter(side), "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        if check and done.returncode:
            raise NetnsError(f"{command}: {done.stderr.strip()}")
        return done.stdout

    def file(self, side: Side, name: str) -> Path:
        """A file under /proc of a process inside, e.g. `net/dev`, `net/tcp`."""
        return Path(f"/proc/{self._holders[side].pid}/{name}")

    def close(self) -> None:
        """End what was started inside, and the namespaces."""
        for process in (*self._started, *self._holders.values()):
            process.kill()
        for process in (*self._started, *self._holders.values()):
            process.wait(COMMAND_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _enter(self, side: Side) -> list[str]:
        return ["nsenter", "--net", "--target", str(self._holders[side].pid)]

    def __getitem__(self, index: Any) -> Any:
        return self._links[index]

    def __len__(self) -> int:
        return len(self._links)

    def wait_until_up(self) -> None:
        """Return when the system says that all cards work: up to a second after they are made."""
        end = time.monotonic() + COMMAND_S
        for side in ("left", "right"):
            while " DOWN " in self.run(side, "ip -br link"):
                if time.monotonic() > end:
                    raise NetnsError(f"cards do not come up: {self.run(side, 'ip -br link')}")
                time.sleep(0.02)

    def __enter__(self) -> "ShapedLinks":
        try:
            self.wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
