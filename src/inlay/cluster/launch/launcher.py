"""What is started, and what a launcher makes of it.

All processes of a deployment keep one contract. A process reads a line of JSON, its setup, from
standard input, and ends when that is closed or its parent is gone. On standard output it writes
lines of JSON, each a `Said`; its log goes to standard error.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from inlay.cluster.control import Kind


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process to be started, any number of times.

    Attributes:
        name: unique in the deployment; its log is called so.
        module: that Python runs as `-m`.
        setup: plain data for standard input. The launcher adds `parent_pid`, of the process which
            holds the other end.
        group, role: of an instance.
        host: address of the machine that it is to run on; empty: the supervisor's.
        device: of an instance, as `engine.device`.
        cpus: that it may use; none: all.
        num_cpus, num_gpus: to be set aside for it, where a launcher divides machines.
        stop_signal: what asks it to end; 0: the end of its standard input does.
        grace_s: how long it may take then.
    """

    name: str
    kind: Kind
    module: str
    setup: Mapping[str, Any]
    group: str = ""
    role: str = ""
    host: str = ""
    device: str = ""
    cpus: Sequence[int] = ()
    num_cpus: int = 0
    num_gpus: int = 0
    stop_signal: int = 0
    grace_s: float = 6.0


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a process writes; it may have more fields.

    Attributes:
        state: `bound`: others may connect; `ready`: it serves; `failed`: it will not.
        address: where it is reached, once it is known.
        code, message: of the error, where it failed.
    """

    state: Literal["bound", "ready", "failed"]
    address: str = ""
    code: str = ""
    message: str = ""


class Running(Protocol):
    """A process that was started.

    Attributes:
        pid: on its machine.
        where: its machine; empty for this one.
    """

    pid: int
    where: str

    def lines(self) -> AsyncIterator[Said]:
        """What it says, until its end. Lines that are none of its contract go to the log."""
        ...

    async def ended(self) -> str:
        """Wait for its end; how that was, as `was killed by SIGKILL`."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Let it end, and kill it after `grace_s`; returns when it is gone."""
        ...

    def kill(self) -> None:
        """Kill it and what it started, now."""
        ...

    def log_end(self) -> Sequence[str]:
        """The last lines of its log."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    async def start(self, spec: ProcessSpec) -> Running:
        """Start one.

        Raises:
            InlayError, OSError: it cannot be started.
        """
        ...

    def log_file(self, name: str) -> str:
        """The file of a process's log on this machine; empty where there is none."""
        ...

    async def close(self) -> None:
        """Give back what the launcher holds. All processes have ended."""
        ...
