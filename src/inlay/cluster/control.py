"""What is said to the supervisor of a deployment, and what it says.

It listens on a ROUTER socket in a directory that only its user may enter. Dispatchers and commands
connect a DEALER each; a message is one frame of MessagePack. A command asks once and is answered
once, when what it asked for is done. A dispatcher sends `Follow` and is sent the `Roster`, then and
whenever it changes.

As in `core.messages`, fields are only ever added at the end, with a default.
"""

from pathlib import Path
from typing import Literal

import msgspec

from inlay.core.instance_messages import Role

State = Literal["starting", "ready", "draining", "gone"]
Kind = Literal["master", "node", "instance", "dispatcher"]


class Member(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One instance of a deployment.

    Attributes:
        name: unique in the deployment.
        role: that it is to have. Where its `InstanceInfo` has another one, a dispatcher sends it
            `SetRole`.
        address: of its ROUTER socket, for ZeroMQ; empty until it is known.
        run: how many times it was started; a restarted instance is another run, elsewhere.
        state: `ready` takes requests, `draining` ends those that it has, and `gone` will not come
            back. One that was lost is `starting` until it is back.
    """

    name: str
    role: Role
    address: str
    run: int
    state: State


class Roster(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """All instances. Each roster stands for itself: who is not in it is gone.

    Attributes:
        number: one more at each change, for logs.
    """

    number: int
    members: tuple[Member, ...]


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Send me the roster, now and whenever it changes.

    Attributes:
        dispatcher: name of the one who asks, as its setup has it.
    """

    dispatcher: str


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No request of mine is at an instance that is `draining`, and none will be sent there.

    Each dispatcher says it once for each run that it finds so; the supervisor stops an instance
    when all have.
    """

    dispatcher: str
    instance: str
    run: int


class Stalled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An instance stands still: kill it, and start it again.

    Attributes:
        run: of the instance; another one is left alone.
        silent_s: for how long it said nothing.
    """

    instance: str
    run: int
    silent_s: float


class Differs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A dispatcher sends an instance nothing, since it is not like the others.

    Attributes:
        run: of the instance; another one may be used.
        difference: in words.
    """

    dispatcher: str
    instance: str
    run: int
    difference: str


class Serves(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """By which weights an instance computes new requests: said when it is met, and when it changes.

    Attributes:
        run: of the instance; another one may have others.
        version: empty: those that were loaded first.
    """

    instance: str
    run: int
    version: str


class Scale(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Have `count` instances in a group; done when the new ones are ready and others gone."""

    group: str
    count: int


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Give an instance no new requests, and stop it when it has none; done when it is gone."""

    instance: str


class ChangeRole(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let an instance have another role; done when the dispatchers are told."""

    instance: str
    role: Role


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ask for the `Status` now."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop all processes, then the supervisor; done when the processes are gone.

    Attributes:
        at_once: kill them.
    """

    at_once: bool = False


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One process of a deployment.

    Attributes:
        group: of an instance; empty for others.
        role: of an instance; empty for others.
        where: the machine, or empty for this one.
        pid: 0 while it does not run.
        run: how many times it was started.
        since_s: for how long it has been in its state.
        note: why it was started last, or why it does not run; empty where all went well.
        log: the file of its log, on the supervisor's machine.
        refused: why dispatchers send it nothing, though it is ready; empty where they do.
        weight_version: of an instance's weights; empty: those that it loaded first.
    """

    name: str
    kind: Kind
    state: State
    group: str = ""
    role: str = ""
    address: str = ""
    where: str = ""
    pid: int = 0
    run: int = 0
    since_s: float = 0.0
    note: str = ""
    log: str = ""
    refused: str = ""
    weight_version: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """How a deployment is.

    Attributes:
        deployment: its name.
        model: what it serves, as its file names it.
        url: where clients reach it.
        uptime_s: since the supervisor started.
        processes: in the order in which they are started.
        started: all processes of its file were ready once.
    """

    deployment: str
    model: str
    url: str
    pid: int
    uptime_s: float
    processes: tuple[ProcessStatus, ...]
    started: bool = False


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a command asked for is done; the text says what that was."""

    text: str


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a command asked for cannot be done: an error's code and message."""

    code: str
    message: str


ToSupervisor = (
    Follow
    | Drained
    | Stalled
    | Differs
    | Serves
    | Scale
    | Drain
    | ChangeRole
    | StatusRequest
    | Stop
)
FromSupervisor = Roster | Status | Done | Refused


def control_address(directory: Path | str) -> str:
    """ZeroMQ address of the supervisor's socket in its private directory."""
    return f"ipc://{directory}/control"
