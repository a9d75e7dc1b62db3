"""Instances and dispatchers as processes of their own, without a supervisor.

with running_instance("a") as a, running_dispatcher([a.member]) as dispatcher:
    httpx.get(dispatcher.url + "/health")
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from inlay.cluster.control import Member
from inlay.core.instance_messages import Role
from inlay.core.instance_setup import MODULE

SECRET = "of the tests"


class Process:
    """A child that reads a setup and answers with lines of JSON. Its log is kept.

    Args:
        home: where it runs and has its cache, as if on a machine of its own.
    """

    def __init__(
        self, module: str, setup: dict[str, Any], log: Path, home: Path | None = None
    ) -> None:
        self.log = log
        environment = dict(os.environ)
        if home is not None:
            home.mkdir(exist_ok=True)
            environment["INLAY_CACHE_DIR"] = str(home / "cache")
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=home,
                env=environment,
            )
        assert self._process.stdin is not None
        setup = {**setup, "parent_pid": os.getpid()}
        self._process.stdin.write(json.dumps(setup).encode() + b"\n")
        self._process.stdin.flush()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The next line that it prints."""
        found = self._lines.get(timeout=timeout_s)
        assert found is not None, f"it ended:\n{self.log.read_text()}"
        return found

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    def hang_up(self) -> None:
        """Close its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, timeout_s: float = 20.0) -> int:
        code = self._process.wait(timeout_s)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return code


class RunningInstance(Process):
    """A worker that serves the demo model, or another one, to dispatchers."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        role: Role = "both",
        port: int = 0,
        run: int = 1,
        home: Path | None = None,
        **config: Any,
    ) -> None:
        config.setdefault("model", None)
        config.setdefault("device", "cpu")
        config.setdefault("threads", 1)
        config.setdefault("exchange", "127.0.0.1:0")
        config["cache"] = {"secret": SECRET, **config.get("cache", {})}
        instance = {"name": name, "role": role, "listen": f"127.0.0.1:{port}"}
        setup = {"config": config, "instance": instance}
        super().__init__(MODULE, setup, directory / f"{name}.log", home)
        bound = self.line()
        assert bound["state"] == "bound", bound
        self.member = Member(name=name, role=role, address=bound["address"], run=run, state="ready")

    def wait_ready(self) -> "RunningInstance":
        line = self.line()
        assert line["state"] == "ready", (line, self.log.read_text())
        return self


class RunningDispatcher(Process):
    """A dispatcher with a fixed roster, or a supervisor's.

    Attributes:
        url: without a slash at the end.
    """

    def __init__(
        self,
        members: Sequence[Member],
        directory: Path,
        *,
        home: Path | None = None,
        **setup: Any,
    ) -> None:
        fields = {
            "name": "d0",
            "members": [msgspec.to_builtins(member) for member in members],
            "port": 0,
            "secret": SECRET,
            "policy": "round_robin",
            "serve": {"page": False},
        }
        log = directory / "dispatcher.log"
        super().__init__("inlay.serve.dispatcher", fields | setup, log, home)
        self.first_line = self.line()
        self.url = self.first_line.get("address", "")


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Kill them in the end."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
