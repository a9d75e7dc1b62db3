"""Starts a deployment in the background."""

import subprocess
import sys
import time
from pathlib import Path

from inlay.cluster.control import Status, StatusRequest
from inlay.cluster.control_client import ask
from inlay.cluster.deployment_directory import DeploymentDirectory
from inlay.core.errors import DeploymentError, EngineStartError, WaitTimeoutError

_LOOK_S = 0.2
_ANSWER_S = 5.0


def start_detached(file: Path, directory: DeploymentDirectory, *, timeout_s: float) -> Status:
    """Start `inlay up` as a process that outlives this one; returns when all is ready.

    Raises:
        DeploymentError: it is running already, or its directory cannot be written to.
        EngineStartError: it ended before, with what it wrote; or it was not ready in `timeout_s`.
    """
    if (running := directory.running()) is not None:
        raise DeploymentError(directory.taken(running))
    directory.make()
    log = directory.logs / "supervisor.log"
    with log.open("ab") as stream:
        began = stream.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "inlay", "up", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        return _wait_ready(process, directory, timeout_s)
    except ChildProcessError:
        written = log.read_bytes()[began:].decode(errors="replace").strip()
        said = written.rpartition("inlay: error: ")[2]
        raise EngineStartError(said or f"it ended and said nothing; see {log}") from None
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _wait_ready(
    process: "subprocess.Popen[bytes]", directory: DeploymentDirectory, timeout_s: float
) -> Status:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise ChildProcessError
        running = directory.running()
        if running is not None and running.pid == process.pid:
            try:
                found = ask(running.control, StatusRequest(), timeout_s=_ANSWER_S)
            except WaitTimeoutError:  # it fetches the model
                continue
            if isinstance(found, Status) and found.started:
                return found
        time.sleep(_LOOK_S)
    raise EngineStartError(f"deployment {directory.name!r} was not ready after {timeout_s:g} s")
