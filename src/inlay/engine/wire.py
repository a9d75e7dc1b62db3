"""What a worker is told at its start, and the socket to the front that started it."""

from pathlib import Path

import msgspec

from inlay.core.instance_setup import InstanceSetup
from inlay.engine.config import EngineConfig

# Exit status of an engine process that could say why it did not start.
START_FAILED = 3


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reads from its standard input, one line of JSON.

    Attributes:
        parent_pid: the process whose end is also the worker's.
        directory: private directory of the front's socket; both sides remove it when they end.
            None: no front has this engine for itself.
        instance: it is one of a deployment, and listens for dispatchers.
    """

    config: EngineConfig
    parent_pid: int
    directory: str | None = None
    instance: InstanceSetup | None = None


def front_address(directory: Path | str) -> str:
    """ZeroMQ address of the front's socket, a DEALER, in its directory."""
    return f"ipc://{directory}/engine"
