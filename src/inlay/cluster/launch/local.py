"""Processes of a deployment as child processes of the supervisor."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from inlay.cluster.launch.launcher import ProcessSpec, Running, Said
from inlay.cluster.launch.log_file import Log, LogFile

_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20


class LocalLauncher:
    """Starts child processes.

    They end when the supervisor does, however that ends: the system closes their standard input,
    which they watch.

    Args:
        logs: directory of their logs.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    async def start(self, spec: ProcessSpec) -> Running:
        """Start one; raises OSError."""
        return LocalProcess(spec, LogFile(Path(self.log_file(spec.name))))

    def log_file(self, name: str) -> str:
        """The file of a process's log."""
        return str(self._logs / f"{name}.log")

    async def close(self) -> None:
        """Nothing is held."""


class LocalProcess:
    """A child process. All methods are called on the event loop that made it."""

    where = ""

    def __init__(self, spec: ProcessSpec, log: Log) -> None:
        self._log = log
        self._stop_signal = spec.stop_signal
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._partial = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", spec.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal is for the supervisor alone
        )
        self.pid = self._process.pid
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdout = self._process.stdout.fileno()
        self._stderr = self._process.stderr.fileno()
        self._pidfd = os.pidfd_open(self.pid)
        if spec.cpus:
            with contextlib.suppress(OSError):  # it ended already, or these CPUs are gone
                os.sched_setaffinity(self.pid, spec.cpus)
        setup = msgspec.json.encode({**spec.setup, "parent_pid": os.getpid()})
        with contextlib.suppress(BrokenPipeError):  # it ended already, and its log says why
            self._process.stdin.write(setup + b"\n")
        for stream, take in ((self._stdout, self._take_output), (self._stderr, self._log.write)):
            os.set_blocking(stream, False)
            self._loop.add_reader(stream, self._read, stream, take)
        self._loop.add_reader(self._pidfd, self._on_exit)

    async def lines(self) -> AsyncIterator[Said]:
        """What it says, until its end."""
        while (said := await self._said.get()) is not None:
            yield said

    async def ended(self) -> str:
        """Wait for its end; how that was."""
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and kill it after `grace_s`."""
        if not self._ended.done():
            self._ask_to_end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ended), grace_s)
        self.kill()
        await self.ended()

    def kill(self) -> None:
        """Kill it and its process group, which ranks of one instance share."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def log_end(self) -> Sequence[str]:
        """The last lines of its log."""
        return self._log.tail

    def _ask_to_end(self) -> None:
        assert self._process.stdin is not None
        if self._stop_signal:
            self._process.send_signal(self._stop_signal)
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read(self, stream: int, take: Callable[[bytes], None]) -> bool:
        """Pass on what is there; False when there is nothing."""
        try:
            data = os.read(stream, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(stream)
            return False
        take(data)
        return True

    def _take_output(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            try:
                self._said.put_nowait(msgspec.json.decode(line, type=Said))
            except msgspec.MsgspecError:
                self._log.write(line + b"\n")

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        # Of its group, what is left has no reason to live on. Before `wait`, the id is not reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        for stream, take in ((self._stdout, self._take_output), (self._stderr, self._log.write)):
            while self._read(stream, take):
                pass
            self._loop.remove_reader(stream)
        os.close(self._pidfd)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log.close()
        self._said.put_nowait(None)
        self._ended.set_result(_how(status))


def _how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
